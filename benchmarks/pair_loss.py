"""The pair loss of the Belief State Transformer, forward and backward, against gathering all pairs.

python benchmarks/pair_loss.py

T = 256, width 768, a three-layer head of 512, vocabulary 1000, one sequence: about 33,000 pairs. The reference does
what the paper's Figure 13 does, with the previous-token label that it means: [f; b] of all pairs at once, through the
whole head, cross-entropy, backward. Each way runs in a process of its own: the reference as a script of the paper would
do, with the system's allocator; ours with the allocator settings that `statewise train` makes, which keep freed memory
instead of giving its pages back at every step. What the reference would gain by them is printed, too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import own_process
import torch
from timing import Bars, in_turn
from torch import Tensor
from torch.nn import functional as F

from statewise.objectives.pair_loss import Pairs, pair_loss
from statewise.objectives.text_head import MLPHead
from statewise.training import machine

T, WIDTH, HIDDEN, VOCABULARY = 256, 768, 512, 1000
PAIRS = T * (T + 1) // 2


def inputs() -> tuple[MLPHead, Tensor, Tensor, Tensor]:
    """Head, prefix and suffix states at each slot, and tokens."""
    torch.manual_seed(0)
    head = MLPHead(WIDTH, HIDDEN, VOCABULARY)
    prefix, suffix = (torch.randn(1, T, WIDTH, requires_grad=True) for _ in range(2))
    return head, prefix, suffix, torch.randint(0, VOCABULARY, (1, T))


def blockwise(head: MLPHead, prefix: Tensor, suffix: Tensor, tokens: Tensor) -> Tensor:
    everywhere = torch.ones_like(tokens, dtype=torch.bool)
    pairs = Pairs(tokens, everywhere.long(), everywhere, everywhere, everywhere, range(T), (0, T))
    weights = torch.full((2,), 0.5 / PAIRS)
    return (pair_loss(head, prefix, suffix, pairs, weights) * weights).sum()


def gathered(head: MLPHead, prefix: Tensor, suffix: Tensor, tokens: Tensor) -> Tensor:
    first, last = torch.triu_indices(T, T)
    both = torch.cat((prefix[:, first], suffix[:, last]), dim=-1)
    hidden = F.relu(head.second(F.relu(head.first(both))))
    logits = head.third(hidden).view(-1, VOCABULARY)
    targets = torch.stack((tokens[:, first], tokens[:, last]), dim=-1)
    return F.cross_entropy(logits.float(), targets.flatten())


def step(way: Callable[..., Tensor], precision: str) -> Callable[[], list[Tensor]]:
    head, prefix, suffix, tokens = inputs()
    wanted = [prefix, suffix, *head.parameters()]

    def call() -> list[Tensor]:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            loss = way(head, prefix, suffix, tokens)
        return [loss.detach(), *torch.autograd.grad(loss, wanted)]

    return call


WAYS = {"blockwise": blockwise, "gathered": gathered}


def matmul_rate(precision: str) -> float:
    """FLOP/s of the largest product that the blocks do."""
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    left, right = torch.randn(1024, HIDDEN).to(dtype), torch.randn(HIDDEN, 2 * VOCABULARY).to(dtype)
    out = torch.empty(1024, 2 * VOCABULARY, dtype=dtype)
    seconds = in_turn({"": lambda: [torch.mm(left, right, out=out) for _ in range(20)]}, rounds=10)[""]
    return 20 * 2 * 1024 * HIDDEN * 2 * VOCABULARY / min(seconds)


def main() -> None:
    fast = machine.choose_precision("auto", "cpu")
    print(f"{machine.processor_name()}, {torch.get_num_threads()} threads, precision auto = {fast}")
    if fast != "bf16":
        print("  this processor is not fast at bf16: its bar is for one that is")
    bars = Bars()
    wanted = {precision: bar for precision, bar in {"bf16": 5.0, "fp32": 2.2}.items() if precision in (fast, "fp32")}
    cases = {
        "gathered": ("gathered", "standard"),
        "gathered, our allocator settings": ("gathered", "ours"),
        "blockwise": ("blockwise", "ours"),
    }
    measured = {
        precision: own_process.in_turn(
            __file__, {name: (way, precision, own) for name, (way, own) in cases.items()}, rounds=3
        )
        for precision in wanted
    }
    for precision, bar in wanted.items():
        rounds = measured[precision]
        ways = {name: step(way, precision) for name, way in WAYS.items()}
        for ours, theirs in zip(ways["blockwise"](), ways["gathered"]()):
            cosine = F.cosine_similarity(ours.flatten().double(), theirs.flatten().double(), dim=0)
            assert cosine > (0.99 if precision == "bf16" else 0.99999), f"the two ways differ: {cosine}"
        for name in cases:
            cost = own_process.typical(rounds, name)
            print(f"  {precision} {name:33} {cost.seconds:6.2f} s {cost.megabytes:8.0f} MB")
        best = min(found["blockwise"].seconds for found in rounds)
        arithmetic = 6 * PAIRS * HIDDEN * (HIDDEN + 2 * VOCABULARY)  # the second and third layer; the first is O(T)
        print(f"  {precision} share of the limit that matrix products set: "
              f"{100 * arithmetic / matmul_rate(precision) / best:.0f}%")  # fmt: skip
        for other in ("gathered, our allocator settings", "gathered"):
            faster = own_process.share(rounds, other, "blockwise").seconds
            if other == "gathered":
                bars.at_least(f"speed against gathering all pairs as a script does it, {precision}", faster, bar)
            else:
                print(f"  {precision} speed against gathering with our allocator settings: {faster:.2f}")
        share = own_process.share(rounds, "blockwise", "gathered").megabytes
        bars.at_most(f"peak memory against gathering all pairs, {precision}", share, 0.3)
    bars.finish()


if __name__ == "__main__":
    if sys.argv[1:2] == ["measure"]:
        way, precision, allocator = sys.argv[2:]
        if allocator == "ours":
            machine.keep_freed_memory()
        own_process.print_cost(lambda: step(WAYS[way], precision), 3)
    else:
        main()
