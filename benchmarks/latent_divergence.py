"""The divergences of next-latent prediction in blocks, forward and backward, against keeping all logits.

python benchmarks/latent_divergence.py

2,048 positions, width 512, vocabulary 16,384, a rollout of 4 steps, gradients of the rolled-out states taken. Keeping
all logits, what is known is turned into probabilities once for all steps; in blocks, anew at each step. Each way runs
in a process of its own, with the allocator settings that `statewise train` makes; the processes take turns.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import own_process
import torch
from timing import Bars
from torch import Tensor
from torch.nn import functional as F

from statewise.objectives.head_divergence import blockwise, whole
from statewise.training import machine

POSITIONS, WIDTH, VOCABULARY, STEPS = 2048, 512, 16384, 4
WAYS = ("whole", "blockwise")


def step(way: str, precision: str, positions: int, width: int, vocabulary: int) -> Callable[[], list[Tensor]]:
    torch.manual_seed(0)
    known = torch.randn(positions, width)
    rolled = [(known + 0.1 * torch.randn(positions, width)).requires_grad_() for _ in range(STEPS)]
    weight = 0.02 * torch.randn(vocabulary, width)
    counted = torch.rand(positions) < 0.9

    def call() -> list[Tensor]:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            if way == "whole":
                log_probs = F.linear(known, weight).float().log_softmax(-1)
                losses = [whole(ahead, log_probs, weight, counted) for ahead in rolled]
            else:
                losses = [blockwise(ahead, known, weight, counted) for ahead in rolled]
        loss = torch.stack(losses).sum() / positions
        return [loss.detach(), *torch.autograd.grad(loss, rolled)]

    return call


def agree(precision: str) -> None:
    """Raises unless both ways give the same."""
    ours, theirs = (step(way, precision, 256, WIDTH, VOCABULARY)() for way in ("blockwise", "whole"))
    for one, other in zip(ours, theirs):
        cosine = F.cosine_similarity(one.flatten().double(), other.flatten().double(), dim=0)
        assert cosine > (0.99 if precision == "bf16" else 0.99999), f"the two ways differ: {cosine}"


def main() -> None:
    fast = machine.choose_precision("auto", "cpu")
    print(f"{machine.processor_name()}, {torch.get_num_threads()} threads, precision auto = {fast}")
    precisions = ["fp32"] if fast == "fp32" else ["fp32", "bf16"]
    bars = Bars()
    measured = {
        precision: own_process.in_turn(__file__, {way: (way, precision) for way in WAYS}, rounds=2)
        for precision in precisions
    }
    for precision, rounds in measured.items():
        agree(precision)
        for way in WAYS:
            cost = own_process.typical(rounds, way)
            print(f"  {precision} {way:12} {cost.seconds:6.2f} s {cost.megabytes:8.0f} MB")
        share = own_process.share(rounds, "blockwise", "whole")
        bars.at_most(f"time against keeping all logits, {precision}", share.seconds, 1.3)
        bars.at_most(f"peak extra memory against keeping all logits, {precision}", share.megabytes, 0.25)
    bars.finish()


if __name__ == "__main__":
    if sys.argv[1:2] == ["measure"]:
        way, precision = sys.argv[2:]
        machine.keep_freed_memory()
        own_process.print_cost(
            lambda: step(way, precision, POSITIONS, WIDTH, VOCABULARY), 2, lambda: step(way, precision, 8, 8, 8)()
        )
    else:
        main()
