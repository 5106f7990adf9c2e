"""One training step of the objectives that add a loss to next-token or multi-token prediction, relative to it.

python benchmarks/auxiliary_losses.py

At the size of benchmarks/objectives.py: 8 layers, 768 wide, T = 256, vocabulary 1000, eight sequences a step.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from objectives import FULL, SMOKE, make, stepper
from one_step import like_the_trainer
from timing import Benchmark, parser, ratio


class Case(NamedTuple):
    objective: str
    fields: dict[str, Any]
    beside: str
    """The objective to which it adds a loss."""
    shared: dict[str, Any]
    """Fields of both."""
    bar: float | None
    """Step time relative to that objective; None: shown alone."""


CASES = {
    "token order": Case("token_order", {}, "next_token", {}, 1.1),
    "future summary, bag": Case("future_summary", {"summary": "bag"}, "next_token", {}, 1.1),
    "future summary, reverse": Case("future_summary", {}, "next_token", {}, None),
    "semantic tube": Case("semantic_tube", {}, "next_token", {}, None),
    "latent multi-token": Case("latent_multi_token", {}, "multi_token", {"horizon": 2}, 1.05),
}


def main(words: Sequence[str] | None = None) -> int:
    bench = Benchmark(parser(__doc__).parse_args(words).smoke)
    size = SMOKE if bench.smoke else FULL
    precision = like_the_trainer()
    for title, case in CASES.items():
        ways = {
            case.beside: stepper(make(case.beside, size, **case.shared), size, precision),
            title: stepper(make(case.objective, size, **case.fields, **case.shared), size, precision),
        }
        seconds = bench.in_turn(ways, rounds=5, warm_up=1)
        slower = ratio(seconds[title], seconds[case.beside])
        medians = ", ".join(f"{name} {statistics.median(found):.3f} s" for name, found in seconds.items())
        print(f"  {title}: {slower:.3f} x {case.beside} ({medians})")
        if case.bar is not None:
            bench.at_most(f"{title}: step time relative to {case.beside}", slower, case.bar)
    return bench.exit_code()


if __name__ == "__main__":
    sys.exit(main())
