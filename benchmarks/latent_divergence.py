"""The divergences of next-latent prediction in blocks, forward and backward, against keeping all logits.

python benchmarks/latent_divergence.py

2,048 positions, width 512, vocabulary 16,384, a rollout of 4 steps, gradients of the rolled-out states taken. Keeping
all logits, what is known is turned into probabilities once for all steps; in blocks, anew at each step. Each way runs
in a process of its own, with the allocator settings that `statewise train` makes; the processes take turns.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
from collections.abc import Callable

import torch
from timing import Bars, in_turn
from torch import Tensor
from torch.nn import functional as F

from statewise.objectives.head_divergence import blockwise, whole
from statewise.training import machine

POSITIONS, WIDTH, VOCABULARY, STEPS = 2048, 512, 16384, 4
ROUNDS = 2


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


def in_own_process(way: str, precision: str) -> tuple[float, float]:
    """Seconds of a step, the median of two after one to warm up, and MB that they take beyond what was in use."""
    command = [sys.executable, __file__, "measure", way, precision]
    seconds, megabytes = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return float(seconds), float(megabytes)


def measure(way: str, precision: str) -> None:
    machine.keep_freed_memory()
    call = step(way, precision, POSITIONS, WIDTH, VOCABULARY)
    step(way, precision, 8, 8, 8)()  # what the first products and the first backward pass load is not counted
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    times = in_turn({way: call}, rounds=2, warm_up=1)[way]
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(statistics.median(times), (after - before) / 1024)


def agree(precision: str) -> None:
    """Raises unless both ways give the same."""
    ours, theirs = (step(way, precision, 256, WIDTH, VOCABULARY)() for way in ("blockwise", "whole"))
    for one, other in zip(ours, theirs):
        cosine = F.cosine_similarity(one.flatten().double(), other.flatten().double(), dim=0)
        assert cosine > (0.99 if precision == "bf16" else 0.99999), f"the two ways differ: {cosine}"


def main() -> None:
    fast = machine.choose_precision("auto", "cpu")
    print(f"{machine.processor_name()}, {torch.get_num_threads()} threads, precision auto = {fast}")
    bars = Bars()
    # All processes before anything large happens here: a child inherits its parent's peak memory.
    measured = {
        precision: [{way: in_own_process(way, precision) for way in ("whole", "blockwise")} for _ in range(ROUNDS)]
        for precision in (["fp32"] if fast == "fp32" else ["fp32", "bf16"])
    }
    for precision, rounds in measured.items():
        agree(precision)
        for way in ("whole", "blockwise"):
            seconds, megabytes = (statistics.median(found[way][place] for found in rounds) for place in (0, 1))
            print(f"  {precision} {way:12} {seconds:6.2f} s {megabytes:8.0f} MB")
        shares = [
            statistics.median(found["blockwise"][place] / found["whole"][place] for found in rounds) for place in (0, 1)
        ]
        bars.at_most(f"time against keeping all logits, {precision}", shares[0], 1.3)
        bars.at_most(f"peak extra memory against keeping all logits, {precision}", shares[1], 0.25)
    bars.finish()


if __name__ == "__main__":
    if sys.argv[1:2] == ["measure"]:
        measure(*sys.argv[2:])
    else:
        main()
