"""A training step of the two-stream transformer against a standard one of the same size, on the same tokens.

python benchmarks/two_stream_step.py

The width of the paper's XS (512, 8 heads, vocabulary 50,304), 8 layers, one row of 1024 tokens, window 64, AdamW
included. Beside it the paper's own way: every slot through every layer, one dense mask.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from unittest.mock import patch

import torch
from timing import Bars, in_turn, ratio
from torch import Tensor

from statewise.backbones import two_stream
from statewise.backbones.base import Backbone
from statewise.backbones.two_stream import TwoStream, TwoStreamConfig
from statewise.nn.stream_attention import attend_dense
from statewise.objectives.next_token import NextToken, NextTokenConfig
from statewise.training import machine
from statewise.types import Batch

T, LAYERS = 1024, 8


def step(variant: str, batch: Batch, precision: str, papers_way: bool = False) -> Callable[[], None]:
    def make_backbone(**fields: object) -> Backbone:
        config = TwoStreamConfig(layers=LAYERS, heads=8, width=512, variant=variant, vocabulary_multiple=128)  # type: ignore[arg-type]
        return TwoStream(config, vocabulary=50257, context=T)

    torch.manual_seed(0)
    objective = NextToken(NextTokenConfig(), make_backbone)  # type: ignore[arg-type]
    optimizer = torch.optim.AdamW(objective.parameters(), fused=True)
    if papers_way:
        backbone = objective.backbone
        backbone.readouts = lambda tokens, documents=None: backbone(tokens, documents=documents).readout  # type: ignore[method-assign]

    def call() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            loss: Tensor = objective(batch).value()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    if not papers_way:
        return call

    def dense() -> None:
        with patch.object(two_stream, "attend_streams", attend_dense):
            call()

    return dense


def main() -> None:
    machine.keep_freed_memory()
    precision = machine.choose_precision("auto", "cpu")
    print(f"{machine.processor_name()}, {torch.get_num_threads()} threads, {precision}, {LAYERS} layers, T = {T}")
    tokens = torch.randint(0, 50257, (1, T))
    everywhere = torch.ones_like(tokens, dtype=torch.bool)
    scored = everywhere.clone()
    scored[:, 0] = False
    batch = Batch(tokens, scored, everywhere, None, (1, T))
    ways = {name: step(name, batch, precision) for name in ("standard", "sps", "strict")}
    ways["sps, the paper's way"] = step("sps", batch, precision, papers_way=True)
    seconds = in_turn(ways, rounds=5, warm_up=1)
    for name in ways:
        print(f"  {name:22} {statistics.median(seconds[name]):6.2f} s a step")
    slower = ratio(seconds["sps, the paper's way"], seconds["standard"])
    print(f"  the paper's way (every slot in every layer, dense mask) against standard: {slower:.2f}")
    bars = Bars()
    bars.at_most("training step of sps against standard", ratio(seconds["sps"], seconds["standard"]), 2.1)
    bars.at_most("training step of strict against standard", ratio(seconds["strict"], seconds["standard"]), 1.7)
    bars.finish()


if __name__ == "__main__":
    main()
