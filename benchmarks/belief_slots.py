"""A training step and a generated token of the belief-slot decoder, against a GPT's.

python benchmarks/belief_slots.py

4 layers of width 192, vocabulary 4096, chunks of 128 tokens, 4 slots, AdamW included. The GPT is trained on the same
tokens with a context of one chunk, so that both attend to as much. Generation is of 16 sequences of 512 tokens: there
the GPT looks back on all of them.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from one_step import like_the_trainer, one_step
from timing import Benchmark, parser, ratio
from torch import Tensor

from statewise.backbones.base import Backbone
from statewise.backbones.belief_slots import BeliefSlots, BeliefSlotsConfig
from statewise.backbones.gpt import GPT, GPTConfig
from statewise.data_types import Batch
from statewise.objectives.next_token import NextToken, NextTokenConfig


@dataclass(frozen=True)
class Size:
    rows: int
    chunk: int
    vocabulary: int
    backbone: dict[str, int]
    chunks: int = 4

    @property
    def tokens(self) -> int:
        return self.chunks * self.chunk


FULL = Size(rows=16, chunk=128, vocabulary=4096, backbone={"layers": 4, "width": 192, "heads": 4})
SMOKE = Size(rows=2, chunk=8, vocabulary=50, backbone={"layers": 1, "width": 32, "heads": 2})


def belief_slots(size: Size, **fields: Any) -> NextToken:
    config = BeliefSlotsConfig(**size.backbone, chunk=size.chunk, slots=4, **fields)
    return next_token(lambda **_: BeliefSlots(config, vocabulary=size.vocabulary, context=size.tokens))


def gpt(size: Size, context: int) -> NextToken:
    return next_token(lambda **_: GPT(GPTConfig(**size.backbone), vocabulary=size.vocabulary, context=context))


def next_token(make_backbone: Callable[..., Backbone]) -> NextToken:
    torch.manual_seed(0)
    return NextToken(NextTokenConfig(), make_backbone)


def step(made: NextToken, tokens: Tensor, precision: str, *, documents: bool) -> Callable[[], None]:
    everywhere = torch.ones_like(tokens, dtype=torch.bool)
    scored = everywhere.clone()
    scored[:, 0] = False
    T = tokens.shape[1]
    own = None
    if documents:  # one that goes through every row, and a short one at its end
        own = torch.ones_like(tokens)
        own[:, -T // 8 :] = 2
    batch = Batch(tokens, scored, everywhere, own, (1, T))
    return one_step(made, torch.optim.AdamW(made.parameters(), fused=True), [batch], precision)


def generation(made: NextToken, size: Size, precision: str) -> Callable[[], None]:
    predictor = made.eval().predictor()
    prompt = torch.randint(0, size.vocabulary, (size.rows, 8))

    def call() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            cursor, logits = predictor.start(prompt)
            for _ in range(size.tokens - 8):
                logits = predictor.extend(cursor, logits.argmax(-1)[:, None])[:, -1]

    return call


def main(words: Sequence[str] | None = None) -> int:
    bench = Benchmark(parser(__doc__).parse_args(words).smoke)
    size = SMOKE if bench.smoke else FULL
    precision = like_the_trainer()
    tokens = torch.randint(0, size.vocabulary, (size.rows, size.tokens))
    for documents in (False, True):
        ways = {
            "gpt, a chunk a row": step(
                gpt(size, size.chunk), tokens.view(-1, size.chunk), precision, documents=documents
            ),
            "belief slots": step(belief_slots(size), tokens, precision, documents=documents),
            "belief slots, gated": step(belief_slots(size, update="gated"), tokens, precision, documents=documents),
            "gpt, whole rows": step(gpt(size, size.tokens), tokens, precision, documents=documents),
        }
        seconds = bench.in_turn(ways, rounds=7, warm_up=1)
        for name in ways:
            print(f"  {name:22} {statistics.median(seconds[name]):6.2f} s a step")
        packed = ", packed" if documents else ""
        for name in ("belief slots", "belief slots, gated"):
            bench.at_most(f"training step of {name}{packed}", ratio(seconds[name], seconds["gpt, a chunk a row"]), 1.25)
    made = {"gpt": gpt(size, size.tokens), "belief slots": belief_slots(size)}
    ways = {name: generation(one, size, precision) for name, one in made.items()}
    seconds = bench.in_turn(ways, rounds=3, warm_up=1)
    bench.at_least("tokens generated a second against a GPT", ratio(seconds["gpt"], seconds["belief slots"]), 0.9)
    return bench.exit_code()


if __name__ == "__main__":
    sys.exit(main())
