"""The loss of a vocabulary head in blocks, forward and backward, against keeping all logits.

python benchmarks/token_loss.py

8,192 positions, width 512, vocabulary 16,384, the gradients of readout and head taken. The reference computes all
logits, their log-softmax and the loss, and leaves the rest to autograd. Each way runs in a process of its own. The
second part, left out with `--quick`, shows, without a bar, how the two ways compare at other sizes: `WHOLE_UP_TO` in
`losses/vocabulary_head.py` was read off it.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence

import torch
from head_in_blocks import WAYS, Size, against_whole
from products import precisions
from timing import Benchmark, parser, ratio
from torch import Tensor

from statewise.losses.vocabulary_head import BLOCK, WHOLE_UP_TO, blockwise_loss, whole_loss
from statewise.training import machine


def make(way: str, precision: str, size: Size) -> Callable[[], list[Tensor]]:
    torch.manual_seed(0)
    readout = torch.randn(size.positions, size.width, requires_grad=True)
    weight = (0.02 * torch.randn(size.vocabulary, size.width)).requires_grad_()
    targets = torch.randint(0, size.vocabulary, (size.positions,))

    def call() -> list[Tensor]:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            if way == "whole":
                loss = whole_loss(readout, weight, targets)
            else:
                loss = blockwise_loss(readout, weight, targets, max(1, BLOCK["cpu"] // size.vocabulary))
        return [loss.detach(), *torch.autograd.grad(loss / size.positions, (readout, weight))]

    return call


def main(words: Sequence[str] | None = None) -> int:
    given = parser(__doc__, quick=True).parse_args(words)
    bench = Benchmark(given.smoke, given.quick)
    size, alike_at = Size(8192, 512, 16384), Size(512, 512, 16384)
    others = [Size(4096, 128, 1000), Size(2048, 256, 4096), Size(4096, 256, 16384)]
    if bench.quick:
        others = []
    if bench.smoke:
        size = alike_at = Size(32, 64, 256)
        others = [size]
    against_whole(bench, make, size, alike_at=alike_at, alike={"fp32": 0.99999, "bf16": 0.999}, time_bar=1.1)
    machine.keep_freed_memory()
    print(f"blocks of {BLOCK['cpu']:,} logits; taken whole up to {WHOLE_UP_TO['cpu']:,}")
    for other, precision in itertools.product(others, precisions()):
        seconds = bench.in_turn({way: make(way, precision, other) for way in WAYS}, rounds=5, warm_up=1)
        print(
            f"  {precision} {other.positions} x {other.vocabulary}, width {other.width}: blockwise takes "
            f"{ratio(seconds['blockwise'], seconds['whole']):.2f} of the time"
        )
    return bench.exit_code()


if __name__ == "__main__":
    sys.exit(main())
