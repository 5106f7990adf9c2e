"""The loss of a vocabulary head in blocks, forward and backward, against keeping all logits.

python benchmarks/token_loss.py

8,192 positions, width 512, vocabulary 16,384, the gradients of readout and head taken. The reference computes all
logits, their log-softmax and the loss, and leaves the rest to autograd. Each way runs in a process of its own, with the
allocator settings that `statewise train` makes; the processes take turns. The second part shows, without a bar, how the
two ways compare at other sizes: `WHOLE_UP_TO` in `objectives/head_loss.py` was read off it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import own_process
import torch
from timing import Bars, in_turn, ratio
from torch import Tensor
from torch.nn import functional as F

from statewise.objectives.head_loss import BLOCK, WHOLE_UP_TO, blockwise, whole
from statewise.training import machine

POSITIONS, WIDTH, VOCABULARY = 8192, 512, 16384
WAYS = ("whole", "blockwise")


def step(way: str, precision: str, positions: int, width: int, vocabulary: int) -> Callable[[], list[Tensor]]:
    torch.manual_seed(0)
    readout = torch.randn(positions, width, requires_grad=True)
    weight = (0.02 * torch.randn(vocabulary, width)).requires_grad_()
    targets = torch.randint(0, vocabulary, (positions,))

    def call() -> list[Tensor]:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            if way == "whole":
                loss = whole(readout, weight, targets)
            else:
                loss = blockwise(readout, weight, targets, max(1, BLOCK["cpu"] // vocabulary))
        return [loss.detach(), *torch.autograd.grad(loss / positions, (readout, weight))]

    return call


def agree(precision: str) -> None:
    """Raises unless both ways give the same."""
    ours, theirs = (step(way, precision, 512, WIDTH, VOCABULARY)() for way in ("blockwise", "whole"))
    for one, other in zip(ours, theirs):
        cosine = F.cosine_similarity(one.flatten().double(), other.flatten().double(), dim=0)
        assert cosine > (0.999 if precision == "bf16" else 0.99999), f"the two ways differ: {cosine}"


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
        bars.at_most(f"time against keeping all logits, {precision}", share.seconds, 1.1)
        bars.at_most(f"peak extra memory against keeping all logits, {precision}", share.megabytes, 0.25)
    machine.keep_freed_memory()
    print(f"blocks of {BLOCK['cpu']:,} logits; taken whole up to {WHOLE_UP_TO['cpu']:,}")
    for positions, width, vocabulary in ((4096, 128, 1000), (2048, 256, 4096), (4096, 256, 16384)):
        for precision in precisions:
            ways = {way: step(way, precision, positions, width, vocabulary) for way in WAYS}
            seconds = in_turn(ways, rounds=5, warm_up=1)
            print(f"  {precision} {positions} x {vocabulary}, width {width}: blockwise takes "
                  f"{ratio(seconds['blockwise'], seconds['whole']):.2f} of the time")  # fmt: skip
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
