"""The pair loss of the Belief State Transformer, forward and backward, against gathering all pairs.

python benchmarks/pair_loss.py

T = 256, width 768, a three-layer head of 512, vocabulary 1000, one sequence: about 33,000 pairs. The reference does
what the paper's Figure 13 does, with the previous-token label that it means: [f; b] of all pairs at once, through the
whole head, cross-entropy, backward. Each way runs in a process of its own: the reference as a script of the paper would
do, with the system's allocator; ours with the allocator settings that `statewise train` makes, which keep freed memory
instead of giving its pages back at every step. What the reference would gain by them is printed, too.

How far apart the two can be depends on the processor, and on how fast the system hands out pages, which varies within a
day on a shared machine. So this run also measures how much faster than gathering products alone would be: 2.2 times as
fast as gathering is the bar in fp32 unless that limit leaves no room for it; then it is 85% of the limit. In both
precisions the loss must reach 80% of the speed that products alone would have.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import own_process
import torch
from products import precisions, rates
from timing import Benchmark, in_turn, parser, ratio
from torch import Tensor
from torch.nn import functional as F

from statewise.losses.belief_state.pair_loss import pair_loss
from statewise.losses.belief_state.pairs import Pairs, Sampling, layout
from statewise.losses.belief_state.text_head import MixtureHead, MLPHead, TextHead
from statewise.training import machine


@dataclass(frozen=True)
class Size:
    tokens: int
    width: int
    hidden: int
    vocabulary: int
    expert_width: int

    @property
    def pairs(self) -> int:
        return self.tokens * (self.tokens + 1) // 2


FULL, SMOKE = Size(256, 768, 512, 1000, 128), Size(24, 16, 16, 20, 8)


def blockwise(head: TextHead, prefix: Tensor, suffix: Tensor, tokens: Tensor) -> Tensor:
    everywhere, T = torch.ones_like(tokens, dtype=torch.bool), tokens.shape[1]
    weights = torch.full((2,), 1 / (T * (T + 1)))
    found = layout(Pairs(tokens, everywhere.long(), everywhere, everywhere, everywhere), Sampling(), None)
    # The state in each column stands for that of the prefix before it, and of the suffix behind it.
    states = prefix[0][found.prefix_rows], suffix[0][(found.suffix_rows - 2) % (T + 1)]
    return (pair_loss(head, *states, found, weights) * weights).sum()


def gathered(head: MLPHead, prefix: Tensor, suffix: Tensor, tokens: Tensor) -> Tensor:
    first, last = torch.triu_indices(tokens.shape[1], tokens.shape[1])
    both = torch.cat((prefix[:, first], suffix[:, last]), dim=-1)
    hidden = F.relu(head.second(F.relu(head.first(both))))
    targets = torch.stack((tokens[:, first], tokens[:, last]), dim=-1).flatten()
    return F.cross_entropy(head.third(hidden).view(len(targets), -1).float(), targets)


WAYS: dict[str, Callable[..., Tensor]] = {"blockwise": blockwise, "gathered": gathered, "mixture": blockwise}


def step(way: str, precision: str, size: Size) -> Callable[[], list[Tensor]]:
    torch.manual_seed(0)
    head: TextHead = MLPHead(size.width, size.hidden, size.vocabulary)
    if way == "mixture":
        head = MixtureHead(size.width, 8, size.expert_width, size.vocabulary)
    prefix, suffix = (torch.randn(1, size.tokens, size.width, requires_grad=True) for _ in range(2))
    tokens = torch.randint(0, size.vocabulary, (1, size.tokens))
    wanted = [prefix, suffix, *head.parameters()]

    def call() -> list[Tensor]:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            loss = WAYS[way](head, prefix, suffix, tokens)
        return [loss.detach(), *torch.autograd.grad(loss, wanted)]

    return call


def measure(way: str, allocator: str, precision: str, size: Size) -> own_process.Cost:
    if allocator == "ours":
        machine.keep_freed_memory()
    return own_process.cost(
        lambda: step(way, precision, size), 3, torch.randn(64, 64, requires_grad=True).sum().backward
    )


AT_HAND = "gathered, our allocator settings"
"""The case that a quick run leaves out, since it has no bar."""
CASES = {
    "gathered": ("gathered", "standard"),
    AT_HAND: ("gathered", "ours"),
    "blockwise": ("blockwise", "ours"),
    "mixture head": ("mixture", "ours"),
}


def packed(size: Size, apart: bool) -> Callable[[], list[Tensor]]:
    """A step on a row of four times the tokens. Documents have about as many tokens as a story, 60 to 320; `apart`:
    pairs are formed within them, and otherwise over the whole row."""
    torch.manual_seed(0)
    T = 4 * size.tokens
    lengths = torch.randint(max(2, T // 17), max(3, T // 3), (17,))
    documents = torch.arange(len(lengths)).repeat_interleave(lengths)[None, :T] + 1
    documents = documents if apart else torch.ones_like(documents)
    tokens, everywhere = torch.randint(0, size.vocabulary, (1, T)), torch.ones(1, T, dtype=torch.bool)
    head = MLPHead(size.width, size.hidden, size.vocabulary)
    states = [torch.randn(1 + T, size.width, requires_grad=True) for _ in range(2)]
    weights = torch.full((2,), 1 / (T * (T + 1)))

    def call() -> list[Tensor]:
        found = layout(Pairs(tokens, documents, everywhere, everywhere, everywhere), Sampling(), None)
        with torch.autocast("cpu", torch.bfloat16, enabled=machine.choose_precision("auto", "cpu") == "bf16"):
            chosen = (part[rows] for part, rows in zip(states, (found.prefix_rows, found.suffix_rows)))
            loss = (pair_loss(head, *chosen, found, weights) * weights).sum()
        return list(torch.autograd.grad(loss, [*states, *head.parameters()]))

    return call


def main(words: Sequence[str] | None = None) -> int:
    given = parser(__doc__, quick=True).parse_args(words)
    bench = Benchmark(given.smoke, given.quick)
    size = SMOKE if bench.smoke else FULL
    cases = {name: case for name, case in CASES.items() if not bench.quick or name != AT_HAND}
    measured = {
        precision: own_process.in_turn(
            measure,
            {name: (*case, precision, size) for name, case in cases.items()},
            rounds=1 if bench.quick else 3,
            smoke=bench.smoke,
        )
        for precision in precisions()
    }
    for precision, rounds in measured.items():
        for ours, theirs in zip(step("blockwise", precision, size)(), step("gathered", precision, size)()):
            cosine = F.cosine_similarity(ours.flatten().double(), theirs.flatten().double(), dim=0)
            assert cosine > (0.99 if precision == "bf16" else 0.99999), f"the two ways differ: {cosine}"
        own_process.print_costs(rounds, precision)
        # the second and third layer; the first grows with T, not with pairs
        arithmetic = 6 * size.pairs * size.hidden * (size.hidden + 2 * size.vocabulary)
        rate = rates(1024, size.hidden, 2 * size.vocabulary, (precision,))[precision]
        share = 100 * arithmetic / rate / min(found["blockwise"].seconds for found in rounds)
        faster = own_process.share(rounds, "gathered", "blockwise").seconds
        if AT_HAND in cases:
            at_hand = own_process.share(rounds, AT_HAND, "blockwise").seconds
            print(f"  {precision} speed against gathering with our allocator settings: {at_hand:.2f}")
        limit = 100 * faster / share
        print(f"  {precision} speed against gathering all pairs as a script does it: {faster:.2f}, limit {limit:.2f}")
        if precision == "fp32":
            bench.at_least(
                "speed against gathering as a script does it, fp32", faster, min(2.2, 0.85 * limit), f"{limit:.2f} x"
            )
        bench.at_least(
            f"% of the speed that products alone would have, {precision}", share, 80, f"{rate / 1e9:.0f} GFLOP/s"
        )
        memory = own_process.share(rounds, "blockwise", "gathered").megabytes
        bench.at_most(f"peak memory against gathering all pairs, {precision}", memory, 0.3)
        mixture = own_process.share(rounds, "blockwise", "mixture head").seconds
        bench.at_least(f"speed of the mixture head against the MLP head, {precision}", mixture, 6)
        memory = own_process.share(rounds, "mixture head", "gathered").megabytes
        bench.at_most(f"its peak memory against gathering all pairs for the MLP head, {precision}", memory, 0.25)
    ways = {"apart": packed(size, True), "whole": packed(size, False)}
    rows = in_turn(ways, 1, 0) if bench.quick else bench.in_turn(ways, rounds=2, warm_up=1)
    bench.at_least(
        f"packed rows of {4 * size.tokens}: speed against pairs over whole rows", ratio(rows["whole"], rows["apart"]), 4
    )
    return bench.exit_code()


if __name__ == "__main__":
    sys.exit(main())
