"""A training step of the two-stream transformer against a standard one of the same size, on the same tokens.

python benchmarks/two_stream_step.py

The width of the paper's XS (512, 8 heads, vocabulary 50,304), 8 layers, one row of 1024 tokens, window 64, AdamW
included. Beside it the paper's own way: every slot through every layer, one dense mask.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from unittest.mock import patch

import torch
from one_step import like_the_trainer, one_step
from timing import Benchmark, parser, ratio

from statewise.backbones import two_stream
from statewise.backbones.base import Backbone
from statewise.backbones.nn.attention import attend_dense
from statewise.backbones.two_stream import TwoStream, TwoStreamConfig
from statewise.data_types import Batch
from statewise.objectives.next_token import NextToken, NextTokenConfig


@dataclass(frozen=True)
class Size:
    backbone: TwoStreamConfig
    vocabulary: int
    tokens: int


FULL = Size(TwoStreamConfig(layers=8, heads=8, width=512, vocabulary_multiple=128), 50257, 1024)
SMOKE = Size(TwoStreamConfig(layers=2, heads=2, width=32), 100, 80)


def step(variant: str, batch: Batch, size: Size, precision: str, papers_way: bool = False) -> Callable[[], None]:
    def make_backbone(**fields: object) -> Backbone:
        return TwoStream(replace(size.backbone, variant=variant), vocabulary=size.vocabulary, context=size.tokens)  # type: ignore[arg-type]

    torch.manual_seed(0)
    objective = NextToken(NextTokenConfig(), make_backbone)  # type: ignore[arg-type]
    call = one_step(objective, torch.optim.AdamW(objective.parameters(), fused=True), [batch], precision)
    if not papers_way:
        return call
    backbone = objective.backbone
    backbone.readouts = lambda batch: backbone.encode(batch).readout  # type: ignore[method-assign]

    def dense() -> None:
        with patch.object(two_stream, "attend_streams", attend_dense):
            call()

    return dense


def main(words: Sequence[str] | None = None) -> int:
    bench = Benchmark(parser(__doc__).parse_args(words).smoke)
    size = SMOKE if bench.smoke else FULL
    precision = like_the_trainer(f"{size.backbone.layers} layers", f"T = {size.tokens}")
    tokens = torch.randint(0, size.vocabulary, (1, size.tokens))
    everywhere = torch.ones_like(tokens, dtype=torch.bool)
    scored = everywhere.clone()
    scored[:, 0] = False
    batch = Batch(tokens, scored, everywhere, None, (1, size.tokens))
    ways = {name: step(name, batch, size, precision) for name in ("standard", "sps", "strict")}
    ways["sps, the paper's way"] = step("sps", batch, size, precision, papers_way=True)
    seconds = bench.in_turn(ways, rounds=5, warm_up=1)
    for name in ways:
        print(f"  {name:22} {statistics.median(seconds[name]):6.2f} s a step")
    slower = ratio(seconds["sps, the paper's way"], seconds["standard"])
    print(f"  the paper's way (every slot in every layer, dense mask) against standard: {slower:.2f}")
    bench.at_most("training step of sps against standard", ratio(seconds["sps"], seconds["standard"]), 2.1)
    bench.at_most("training step of strict against standard", ratio(seconds["strict"], seconds["standard"]), 1.7)
    return bench.exit_code()


if __name__ == "__main__":
    sys.exit(main())
