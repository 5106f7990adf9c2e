"""statewise strips learn: learn an action model from traces."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from statewise.cli.arguments import Parser, at_least

if TYPE_CHECKING:
    import numpy as np


def run(words: list[str]) -> int:
    """Runs the command."""
    parser = Parser(
        "strips learn",
        "Learns an action model from positive and negative traces: trains restarts of the STRIPS Transformer in\n"
        "parallel, then pools their sound heads into one model. The same command continues after an interruption\n"
        "(with --lifted it starts over).\n\n"
        "  statewise strips learn train.csv --atoms 16 --out learned/\n"
        "  statewise strips learn train.csv --atoms auto --restarts 10 --out learned/\n"
        "  statewise strips learn train.csv --lifted --out learned/  # any size",
    )
    parser.add_argument("traces", metavar="FILE", help="CSV with trace_id,action[,label], or JSON lines")
    parser.add_argument("--atoms", default="auto", help="heads per restart, or auto: find the number (default)")
    parser.add_argument("--restarts", type=at_least(1), default=10)
    parser.add_argument("--steps", type=at_least(1), default=20_000, help="most steps (default 20000)")
    parser.add_argument("--noise", type=float, default=0.0, help="share of damaged traces to tolerate (default 0)")
    parser.add_argument("--pool", action="store_true", default=None, dest="pool", help="always use the pooled model")
    parser.add_argument("--no-pool", action="store_false", dest="pool", help="use the best single restart")
    parser.add_argument("--lifted", action="store_true",
                        help="share weights within a schema; actions are named `schema object object`")  # fmt: skip
    parser.add_argument("--seed", type=at_least(0), default=1)
    parser.add_argument("--out", metavar="FOLDER", required=True)
    parser.add_overwrite("replace an earlier result")
    options = parser.parse_args(words)
    if options.lifted and (options.atoms != "auto" or options.pool is not None):
        raise ValueError("--lifted finds and pools predicates by itself: omit --atoms, --pool and --no-pool")
    atoms = None if options.atoms == "auto" else _whole(options.atoms)

    from statewise.strips import Settings

    settings = Settings(atoms=atoms, restarts=options.restarts, steps=options.steps, noise=options.noise,
                        pool=options.pool, seed=options.seed)  # fmt: skip

    from statewise.strips import learn, learn_lifted, model_table, read_traces

    out = Path(options.out)
    given = read_traces(Path(options.traces))
    print(f"{options.traces}: {len(given)} traces ({given.positives} positive), {len(given.actions)} actions, "
          f"up to {given.longest} long", file=sys.stderr)  # fmt: skip
    if options.lifted:
        lifted = learn_lifted(given, settings, folder=out, overwrite=options.overwrite, progress=_progress())
        print("\n".join(lifted.as_lines()))
        print(f"{lifted.report['predicates']} predicates; {lifted.report['training_accuracy']:.4f} of the training "
              f"traces right at every prefix; wrote {out}")  # fmt: skip
        if not lifted.report["predicates"]:
            print("no predicate was found: give more --steps, --restarts or traces", file=sys.stderr)
        _warn_of_cover(lifted.report, "predicates")
        return 0
    learned = learn(given, settings, folder=out, overwrite=options.overwrite, progress=_progress())
    report = learned.report
    print(model_table(learned.model))
    restarts = report["restarts"]
    print()
    print(f"restarts   {sum(each['accuracy'] == 1 for each in restarts)} of {len(restarts)} judge all training "
          f"traces right; accuracies {', '.join(format(each['accuracy'], '.3f') for each in restarts)}")  # fmt: skip
    if report["pool"] is not None:
        pool = report["pool"]
        print(f"pool       {pool['sound']} sound heads, {pool['supported']} well supported; they catch "
              f"{pool['negatives_caught']:.4f} of the negatives"
              + ("" if report["pooled"] else ": the best single restart is used"))  # fmt: skip
    print(f"model      {report['atoms']} atoms; {report['training_accuracy']:.4f} of the training traces right")
    print(f"{report['seconds']:.0f} s; wrote {out}")
    if report["pooled"]:
        _warn_of_cover(report["pool"], "heads")
    return 0


def _warn_of_cover(pool: dict[str, Any], what: str) -> None:
    if not pool["cover_proven"]:
        print(f"of the {what} that the traces support too little, more may be in the model than needed: the search for "
              "the fewest that catch the remaining negatives reached its time limit", file=sys.stderr)  # fmt: skip


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"--atoms must be a number or auto, not {text!r}") from None


def _progress() -> Callable[[int, int, np.ndarray, int], None]:
    """On a terminal one line that changes, elsewhere a line every tenth call."""
    began, calls = time.monotonic(), 0

    def show(step: int, steps: int, accuracy: np.ndarray, active: int) -> None:
        nonlocal calls
        calls += 1
        right = int((accuracy == 1).sum())
        line = (f"step {step:>6}/{steps}  right on all traces: {right} of {len(accuracy)} restarts  mean accuracy "
                f"{accuracy.mean():.3f}  {active} active  {time.monotonic() - began:.0f} s")  # fmt: skip
        if sys.stderr.isatty():
            print(f"\r{line}", end="" if active and step < steps else "\n", file=sys.stderr, flush=True)
        elif calls % 10 == 1 or not active or step >= steps:
            print(line, file=sys.stderr, flush=True)

    return show
