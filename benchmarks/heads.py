"""Splitting and rotating heads in training on a CPU, forward and backward: by hand against what autograd records.

python benchmarks/heads.py

In float32, at the sizes of small recipes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from unittest import mock

import torch
from timing import Benchmark, parser, ratio

from statewise.backbones.nn import attention
from statewise.backbones.nn.attention import rotary_angles, split_heads
from statewise.training import machine

SIZES = {"path-star-g2-4": (128, 25, 64, 4), "city-small": (64, 43, 96, 4), "text-small": (16, 256, 192, 4)}
"""By recipe, rows, tokens, width and heads."""


def both_passes(by_hand: bool, rows: int, tokens: int, width: int, heads: int) -> Callable[[], list[torch.Tensor]]:
    """A call that returns the heads and the gradient of their weighted sum; the same numbers at each."""
    draw = torch.Generator().manual_seed(1)
    mixed = torch.randn(rows, tokens, 3 * width, generator=draw).requires_grad_()
    weights = torch.randn(3, rows, heads, tokens, width // heads, generator=draw).unbind()
    rotation = rotary_angles(torch.arange(tokens), width // heads)

    def call() -> list[torch.Tensor]:
        with mock.patch.object(attention, "written_by_hand", return_value=by_hand):
            found = split_heads(mixed, 3, heads, turned=2, rotation=rotation)
        return [*found, *torch.autograd.grad(found, mixed, weights)]

    return call


def main(words: Sequence[str] | None = None) -> int:
    bench = Benchmark(parser(__doc__).parse_args(words).smoke)
    machine.keep_freed_memory()
    torch.set_num_threads(1)
    for name, (rows, *size) in SIZES.items():
        calls = {by_hand: both_passes(by_hand, 1 if bench.smoke else rows, *size) for by_hand in (True, False)}
        for one, other in zip(calls[True](), calls[False](), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
        seconds = bench.in_turn({"by hand": calls[True], "autograd": calls[False]}, rounds=60)
        bench.at_least(f"{name}: speed against autograd", ratio(seconds["autograd"], seconds["by hand"]), 1.1)
    return bench.exit_code()


if __name__ == "__main__":
    sys.exit(main())
