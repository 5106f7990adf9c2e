"""A training step and a generated token of the belief-slot decoder, against a GPT's.

python benchmarks/belief_slots.py

4 layers of width 192, vocabulary 4096, chunks of 128 tokens, 4 slots, AdamW included. The GPT is trained on the same
tokens with a context of one chunk, so that both attend to as much. Generation is of 16 sequences of 512 tokens: there
the GPT looks back on all of them.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch
from timing import Bars, in_turn, ratio
from torch import Tensor

from statewise.backbones.base import Backbone
from statewise.backbones.belief_slots import BeliefSlots, BeliefSlotsConfig
from statewise.backbones.gpt import GPT, GPTConfig
from statewise.objectives.next_token import NextToken, NextTokenConfig
from statewise.training import machine
from statewise.types import Batch

ROWS, CHUNK, CHUNKS, VOCABULARY = 16, 128, 4, 4096
SIZE = {"layers": 4, "width": 192, "heads": 4}


def objective(slots: bool, context: int, **fields: object) -> NextToken:
    def make_backbone(**more: object) -> Backbone:
        if slots:
            config = BeliefSlotsConfig(**SIZE, chunk=CHUNK, slots=4, **fields)  # type: ignore[arg-type]
            return BeliefSlots(config, vocabulary=VOCABULARY, context=context)
        return GPT(GPTConfig(**SIZE), vocabulary=VOCABULARY, context=context)  # type: ignore[arg-type]

    torch.manual_seed(0)
    return NextToken(NextTokenConfig(), make_backbone)  # type: ignore[arg-type]


def step(made: NextToken, tokens: Tensor, precision: str, *, documents: bool) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(made.parameters(), fused=True)
    everywhere = torch.ones_like(tokens, dtype=torch.bool)
    scored = everywhere.clone()
    scored[:, 0] = False
    T = tokens.shape[1]
    own = None
    if documents:  # one that goes through every row, and a short one at its end
        own = torch.ones_like(tokens)
        own[:, -T // 8 :] = 2
    batch = Batch(tokens, scored, everywhere, own, (1, T))

    def call() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            loss: Tensor = made(batch).value()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return call


def generation(made: NextToken, precision: str) -> Callable[[], None]:
    predictor = made.eval().predictor()
    prompt = torch.randint(0, VOCABULARY, (ROWS, 8))

    def call() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            cursor, logits = predictor.start(prompt)
            for _ in range(CHUNK * CHUNKS - 8):
                logits = predictor.extend(cursor, logits.argmax(-1)[:, None])[:, -1]

    return call


def main() -> None:
    machine.keep_freed_memory()
    precision = machine.choose_precision("auto", "cpu")
    print(f"{machine.processor_name()}, {torch.get_num_threads()} threads, {precision}")
    tokens = torch.randint(0, VOCABULARY, (ROWS, CHUNK * CHUNKS))
    bars = Bars()
    for documents in (False, True):
        ways = {
            "gpt, a chunk a row": step(
                objective(False, CHUNK), tokens.view(ROWS * CHUNKS, CHUNK), precision, documents=documents
            ),
            "belief slots": step(objective(True, CHUNK * CHUNKS), tokens, precision, documents=documents),
            "belief slots, gated": step(
                objective(True, CHUNK * CHUNKS, update="gated"), tokens, precision, documents=documents
            ),
            "gpt, whole rows": step(objective(False, CHUNK * CHUNKS), tokens, precision, documents=documents),
        }
        seconds = in_turn(ways, rounds=7, warm_up=1)
        for name in ways:
            print(f"  {name:22} {statistics.median(seconds[name]):6.2f} s a step")
        packed = ", packed" if documents else ""
        for name in ("belief slots", "belief slots, gated"):
            bars.at_most(f"training step of {name}{packed}", ratio(seconds[name], seconds["gpt, a chunk a row"]), 1.25)
    ways = {name: generation(made, precision) for name, made in (
        ("gpt", objective(False, CHUNK * CHUNKS)), ("belief slots", objective(True, CHUNK * CHUNKS)))}  # fmt: skip
    seconds = in_turn(ways, rounds=3, warm_up=1)
    bars.at_least("tokens generated a second against a GPT", ratio(seconds["gpt"], seconds["belief slots"]), 0.9)
    bars.finish()


if __name__ == "__main__":
    main()
