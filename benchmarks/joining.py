"""A server's batch: one row leaves and another joins, against a copy of all rows, and as a share of a step.

python benchmarks/joining.py

With gradients on, caches copy every row, as autograd may have recorded them: the way that they are compared with.
"""

from __future__ import annotations

import copy
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from timing import Benchmark, parser, ratio

from statewise.backbones.gpt import GPT, GPTConfig
from statewise.objectives.predictors import HeadPredictor
from statewise.training import machine

VOCABULARY = 500


@dataclass(frozen=True)
class Size:
    backbone: GPTConfig
    rows: int
    read: int
    """Tokens that each row has read."""


SIZES = [
    Size(GPTConfig(layers=6, heads=4, width=256), 30, 500),
    Size(GPTConfig(layers=12, heads=12, width=768), 16, 400),
]
SMOKE = [Size(GPTConfig(layers=2, heads=2, width=32), 4, 20)]
ROUNDS = 9


def ways(size: Size) -> dict[str, Callable[[], object]]:
    """A step of all rows, and the exchange of one of them both ways."""
    torch.manual_seed(0)
    context = 2 * size.read
    predictor = HeadPredictor(GPT(size.backbone, vocabulary=VOCABULARY, context=context).eval())
    cursor, _ = predictor.start(torch.randint(VOCABULARY, (size.rows, size.read)))
    late, _ = predictor.start(torch.randint(VOCABULARY, (1, size.read // 2)))
    token = torch.zeros(size.rows, 1, dtype=torch.int64)
    gone = size.rows // 2
    stay = torch.tensor([size.rows - 1 if place == gone else place for place in range(size.rows - 1)])

    def step() -> None:
        predictor.extend(cursor, token)
        predictor.rewind(cursor, 1)

    def exchange() -> None:
        predictor.reorder(cursor, stay)
        predictor.join(cursor, copy.deepcopy(late))

    def copied() -> None:
        with torch.enable_grad():
            exchange()

    exchange()  # makes room for further rows
    return {"step": step, "copied": copied, "in place": exchange}


def main(words: Sequence[str] | None = None) -> int:
    bench = Benchmark(parser(__doc__).parse_args(words).smoke)
    machine.keep_freed_memory()  # copies into fresh memory, zeroed page by page, would take longer yet
    print(f"{machine.processor_name()}, {torch.get_num_threads()} thread(s)")
    for size in SMOKE if bench.smoke else SIZES:
        with torch.no_grad():
            seconds = bench.in_turn(ways(size), ROUNDS)
        shape = f"{size.backbone.layers} x {size.backbone.width}, {size.rows} rows of {size.read}"
        print(f"  {shape}: " + ", ".join(f"{name} {1000 * statistics.median(s):.1f} ms" for name, s in seconds.items()))
        bench.at_least(f"{shape}: copied / in place", ratio(seconds["copied"], seconds["in place"]), 8.0)
        bench.at_most(f"{shape}: in place / step", ratio(seconds["in place"], seconds["step"]), 0.25)
    return bench.exit_code()


if __name__ == "__main__":
    sys.exit(main())
