"""The divergences of next-latent prediction in blocks, forward and backward, against keeping all logits.

python benchmarks/latent_divergence.py

2,048 positions, width 512, vocabulary 16,384, a rollout of 4 steps, gradients of the rolled-out states taken. Keeping
all logits, what is known is turned into probabilities once for all steps; in blocks, anew at each step. Each way runs
in a process of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import torch
from head_in_blocks import Size, against_whole
from timing import Benchmark, parser
from torch import Tensor
from torch.nn import functional as F

from statewise.losses.vocabulary_head import blockwise_divergence, whole_divergence

STEPS = 4


def make(way: str, precision: str, size: Size) -> Callable[[], list[Tensor]]:
    torch.manual_seed(0)
    known = torch.randn(size.positions, size.width)
    rolled = [(known + 0.1 * torch.randn(known.shape)).requires_grad_() for _ in range(STEPS)]
    weight = 0.02 * torch.randn(size.vocabulary, size.width)
    counted = torch.rand(size.positions) < 0.9

    def call() -> list[Tensor]:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            if way == "whole":
                log_probs = F.linear(known, weight).float().log_softmax(-1)
                target = log_probs, log_probs.exp()
                losses = [whole_divergence(ahead, target, weight, counted) for ahead in rolled]
            else:
                losses = [blockwise_divergence(ahead, known, weight, counted) for ahead in rolled]
        loss = torch.stack(losses).sum() / size.positions
        return [loss.detach(), *torch.autograd.grad(loss, rolled)]

    return call


def main(words: Sequence[str] | None = None) -> int:
    bench = Benchmark(parser(__doc__).parse_args(words).smoke)
    size, alike_at = Size(2048, 512, 16384), Size(256, 512, 16384)
    if bench.smoke:
        size = alike_at = Size(32, 64, 256)
    against_whole(bench, make, size, alike_at=alike_at, alike={"fp32": 0.99999, "bf16": 0.99}, time_bar=1.3)
    return bench.exit_code()


if __name__ == "__main__":
    sys.exit(main())
