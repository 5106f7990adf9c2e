"""What two scripts share: a loss over a vocabulary head in blocks, forward and backward, against keeping all logits.

Each way runs in a process of its own, with the allocator settings that `statewise train` makes; the processes take
turns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import own_process
from products import precisions
from timing import Benchmark
from torch import Tensor
from torch.nn import functional as F

from statewise.training import machine

WAYS = ("whole", "blockwise")


@dataclass(frozen=True)
class Size:
    """Sizes of the readouts (positions, width) and of the head (vocabulary, width)."""

    positions: int
    width: int
    vocabulary: int


Make = Callable[[str, str, Size], Callable[[], list[Tensor]]]
"""Way, precision, size -> a call that returns the loss and its gradients."""


def measure(make: Make, way: str, precision: str, size: Size) -> own_process.Cost:
    machine.keep_freed_memory()
    return own_process.cost(lambda: make(way, precision, size), 2, make(way, precision, Size(8, 8, 8)))


def against_whole(
    bench: Benchmark, make: Make, size: Size, *, alike_at: Size, alike: dict[str, float], time_bar: float
) -> None:
    """Bars for time and memory in every precision. Raises unless the two ways agree: `alike_at` is the size at which
    they are compared, `alike` the least cosine by precision."""
    measured = {
        precision: own_process.in_turn(
            measure,
            {way: (make, way, precision, size) for way in WAYS},
            rounds=1 if bench.quick else 2,
            smoke=bench.smoke,
        )
        for precision in precisions()
    }
    for precision, rounds in measured.items():
        ours, theirs = (make(way, precision, alike_at)() for way in ("blockwise", "whole"))
        for one, other in zip(ours, theirs):
            cosine = F.cosine_similarity(one.flatten().double(), other.flatten().double(), dim=0)
            assert cosine > alike[precision], f"the two ways differ: {cosine}"
        own_process.print_costs(rounds, precision)
        share = own_process.share(rounds, "blockwise", "whole")
        bench.at_most(f"time against keeping all logits, {precision}", share.seconds, time_bar)
        bench.at_most(f"peak extra memory against keeping all logits, {precision}", share.megabytes, 0.25)
