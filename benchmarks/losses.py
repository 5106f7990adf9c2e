"""The losses of `statewise.losses` against the same formulas with all logits kept, and what importing them costs.

python benchmarks/losses.py

4 rows of 256 tokens, width 128, vocabulary 32,000; gradients of the hidden states, the head (which is the embedding)
and the loss's own parameters. The reference is what one would write in a training loop: logits of all positions,
cross-entropy and divergence by PyTorch's functions. Each way runs in a process of its own, with the allocator as
PyTorch leaves it.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import own_process
import torch
from timing import Benchmark, parser
from torch import Tensor
from torch.nn import functional as F

from statewise.losses import NextLatentLoss

HORIZON = 2
WAYS = ("all logits", "statewise.losses")


@dataclass(frozen=True)
class Size:
    """Rows of so many tokens, width and vocabulary."""

    rows: int
    length: int
    width: int
    vocabulary: int


def plain(loss: NextLatentLoss, hidden: Tensor, tokens: Tensor, weight: Tensor) -> Tensor:
    """`NextLatentLoss` of rows of one document, as its equations stand."""
    logits = F.linear(hidden, weight)
    total = F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    goal, known, embedded, states = (
        hidden.detach(),
        logits.detach().log_softmax(-1),
        F.embedding(tokens, weight),
        hidden,
    )
    for step in range(1, HORIZON + 1):
        states = loss.dynamics(states[:, :-1], embedded[:, step:])
        total = total + F.smooth_l1_loss(states, goal[:, step:]) / HORIZON
        ahead = F.linear(states[:, :-1], weight.detach()).log_softmax(-1).flatten(0, 1)
        there = known[:, step:-1].flatten(0, 1)
        total = total + F.kl_div(ahead, there, reduction="batchmean", log_target=True) / HORIZON
    return total


def make(way: str, size: Size) -> Callable[[], list[Tensor]]:
    torch.manual_seed(0)
    loss = NextLatentLoss(size.width, HORIZON)
    hidden = torch.randn(size.rows, size.length, size.width, requires_grad=True)
    weight = (0.02 * torch.randn(size.vocabulary, size.width)).requires_grad_()
    tokens = torch.randint(size.vocabulary, (size.rows, size.length))
    leaves = [hidden, weight, *loss.parameters()]

    def call() -> list[Tensor]:
        if way == "all logits":
            value = plain(loss, hidden, tokens, weight)
        else:
            value = loss(hidden, tokens, head_weight=weight, embedding=weight).loss
        return [value.detach(), *torch.autograd.grad(value, leaves)]

    return call


def measure(way: str, size: Size) -> own_process.Cost:
    torch.set_num_threads(1)
    return own_process.cost(lambda: make(way, size), 3, make(way, Size(1, 4, 8, 8)))


def import_seconds(rounds: int) -> float:
    """CPU seconds of importing a loss after PyTorch."""
    code = (
        "import time, torch\nstarted = time.process_time()\n"
        "from statewise.losses import NextLatentLoss\nprint(time.process_time() - started)"
    )
    spent = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(rounds)
    ]
    return statistics.median(float(one.stdout) for one in spent)


def main(words: Sequence[str] | None = None) -> int:
    bench = Benchmark(parser(__doc__).parse_args(words).smoke)
    size, rounds = (Size(2, 16, 8, 64), 1) if bench.smoke else (Size(4, 256, 128, 32_000), 3)
    costs = own_process.in_turn(measure, {way: (way, size) for way in WAYS}, rounds, smoke=bench.smoke)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    ours, theirs = (make(way, size)() for way in WAYS[::-1])
    torch.set_num_threads(threads)
    for one, other in zip(ours, theirs):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    print(f"loss {ours[0]:.6f}, with all logits {theirs[0]:.6f}")
    own_process.print_costs(costs, f"next_latent, V = {size.vocabulary:,}")
    share = own_process.share(costs, WAYS[1], WAYS[0])
    bench.at_most("peak extra memory against keeping all logits", share.megabytes, 0.5)
    bench.at_most("time against keeping all logits", share.seconds, 1.1)
    if not bench.smoke:  # it loads PyTorch anew
        bench.at_most("CPU seconds of the import beyond PyTorch's", import_seconds(rounds), 0.2)
    return bench.exit_code()


if __name__ == "__main__":
    sys.exit(main())
