"""Steps until learned schemas are exact: exploring (`strips explore`) against random walks.

python benchmarks/strips/explore.py --out results/

All four ways make the same number of steps from the initial state, in walks of at most 30. Exploring and random walks
are told which actions are possible; attempts are not, so that a step may be in vain. All learn by the exact method with
all labels, and the verifier compares the schemas with the domain on drawn traces. Exit code 1 if exploring is not exact
in more cells than random walks.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from pathlib import Path

import numpy as np

from statewise.strips import Domain, DomainSimulator, Traces, domain, explore, learn_lifted_exact, verify

DOMAINS = ("blocksworld:3", "ferry:3x2", "gripper:2", "miconic:3x2", "hanoi:3")
STEPS = (15, 30, 60, 120, 240, 480)
LONGEST = 30
WAYS = ("explored", "random", "explored attempts", "random attempts")


def random_traces(world: Domain, steps: int, seed: int, *, tells: bool) -> Traces:
    """Random walks of this many steps; what was possible before in a walk and then is not, is a negative trace."""
    rng, simulator, rows, made = np.random.default_rng(seed), DomainSimulator(world), dict[tuple[int, ...], int](), 0
    names = world.model.names
    while made < steps:
        simulator.reset()
        row: list[int] = []
        last: dict[int, int] = {}
        while made < steps and len(row) < LONGEST:
            possible = world.model.applicable(simulator.state) if tells else range(len(names))
            at = int(possible[int(rng.integers(len(possible)))])
            made += 1
            if simulator.step(names[at]):
                last[at] = len(row)
                row.append(at)
            elif at in last:
                rows[(*row[last[at] :], at)] = 1
        if row:
            rows[tuple(row)] = 0
    return Traces(names, tuple(rows), tuple(rows.values()))


def drawn(way: str, world: Domain, steps: int, seed: int) -> Traces:
    """The traces of one way."""
    tells = "attempts" not in way
    if way.startswith("random"):
        return random_traces(world, steps, seed, tells=tells)
    simulator = DomainSimulator(world, tells=tells)
    return explore(simulator, steps, lifted=True, max_length=LONGEST, seed=seed).traces


def main() -> int:
    """Runs all cells and writes `explore.csv`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--domains", default=",".join(DOMAINS))
    parser.add_argument("--steps", default=",".join(map(str, STEPS)))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("results"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    total = dict.fromkeys(WAYS, 0)
    with (options.out / "explore.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["domain", "steps", "way", "seed", "exact", "seconds"])
        for spec in options.domains.split(","):
            world = domain(spec)
            for steps in map(int, options.steps.split(",")):
                counts = {}
                for way in WAYS:
                    counts[way] = 0
                    for seed in range(1, options.seeds + 1):
                        begun = time.perf_counter()
                        traces = drawn(way, world, steps, seed)
                        seconds = time.perf_counter() - begun
                        exact = False
                        if len(traces):  # a few attempts may all be in vain
                            learned = learn_lifted_exact(traces).ground(world.model.names)
                            exact = verify(learned, world, drawn_only=True).outcome == "equivalent"
                        counts[way] += exact
                        table.writerow([spec, steps, way, seed, int(exact), round(seconds, 2)])
                    total[way] += counts[way]
                print(
                    f"{spec:14} {steps:4} steps  " + "  ".join(f"{way} {each}" for way, each in counts.items()),
                    flush=True,
                )
    print("exact in all: " + ", ".join(f"{way} {each}" for way, each in total.items()))
    return int(total["explored"] <= total["random"] or total["explored attempts"] <= total["random attempts"])


if __name__ == "__main__":
    sys.exit(main())
