"""Schemas from logs that leave arguments out (`strips learn --implicit-arguments`), compared with the domain.

python benchmarks/strips/implicit.py --out results/
python benchmarks/strips/implicit.py --actions-alone --walks 40 --out results/

Walks of up to 30 actions without the arguments that the state determines, as `strips traces --implicit` draws, with
the states of some predicates or with none. The verifier compares the schemas with the domain on drawn traces. Exit code
1 if a model of logs with all predicates and the most walks is not exact.
"""

from __future__ import annotations

import argparse
import csv
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from statewise.strips import (
    Observed,
    compared_with,
    domain,
    implicit_log,
    learn_implicit,
    named_arguments,
    traces,
    verify,
    with_states,
)

STATES = (
    *("blocksworld:3", "ferry:3x2", "gripper:2", "hanoi:3", "miconic:3x2", "logistics:2x2x2", "tiles:2x3"),
    *("visit-all:3x3", "satellite:1x3", "npuzzle:2x3", "grid:3x3", "sokoban:3x4"),
    *("npuzzle:2x3/at,up-of,left-of", "sokoban:3x4/robot,at,up-of,left-of", "gripper:2/at,carry,at-robby"),
)
"""Domains, with the predicates that states show; without these all."""
ALONE = ("ferry:3x2", "visit-all:3x3", "miconic:3x2", "gripper:2", "blocksworld:3", "hanoi:3")


def main(words: Sequence[str] | None = None) -> int:
    """Runs all cells and writes `implicit.csv`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--domains", nargs="*", metavar="DOMAIN[/PREDICATES]")
    parser.add_argument("--actions-alone", action="store_true")
    parser.add_argument("--walks", default="10,30")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--smoke", action="store_true", help="one small domain, in seconds")
    options = parser.parse_args(words)
    if options.smoke:
        options.domains, options.walks, options.seeds = ["visit-all:2x2"], "10", 1
        options.out = Path(tempfile.mkdtemp())
    options.out.mkdir(parents=True, exist_ok=True)
    missed = 0
    with (options.out / "implicit.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["domain", "predicates", "walks", "seed", "outcome", "arguments", "seconds"])
        for cell in options.domains or (ALONE if options.actions_alone else STATES):
            spec, _, predicates = cell.partition("/")
            world = domain(spec)
            for walks in map(int, options.walks.split(",")):
                exact, spent = 0, 0.0
                for seed in range(1, options.seeds + 1):
                    drawn = traces(world, walks, 30, seed, negatives=0.0, start="both")
                    log = implicit_log(
                        with_states(world, drawn, predicates.split(",") if predicates else None), named_arguments(world)
                    )
                    if options.actions_alone:
                        log = Observed(log.traces, tuple((None,) * len(each) for each in log.states))
                    begun = time.process_time()
                    outcome, found = "", 0
                    try:
                        model = learn_implicit(log, seconds=options.seconds)
                        spent += (seconds := time.process_time() - begun)
                        found = sum(map(len, model.report["implicit"]["arguments"].values()))
                        learned = compared_with(model, world)
                        assert learned is not None
                        outcome = verify(learned, world, drawn_only=True, seconds=60).outcome
                    except ValueError as error:  # other arguments than the domain's
                        seconds, outcome = time.process_time() - begun, str(error)
                    exact += outcome == "equivalent"
                    table.writerow([spec, predicates, walks, seed, outcome, found, round(seconds, 2)])
                    file.flush()
                print(
                    f"{cell:36} {walks:4} walks  exact {exact} of {options.seeds}  {spent / options.seeds:.2f} s",
                    flush=True,
                )
                if not options.actions_alone and not predicates and walks == max(map(int, options.walks.split(","))):
                    missed += exact < options.seeds
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
