"""Tiny exact stand-ins and the small models that many tests share."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from statewise.backbones.base import Backbone
from statewise.backbones.gpt import GPT, GPTConfig
from statewise.data import collate
from statewise.decoding.base import Predictor
from statewise.objectives import OBJECTIVES
from statewise.objectives.base import Objective
from statewise.types import Batch, Examples, Hidden

VOCABULARY, CONTEXT = 11, 24

SMALL_RUN = ["--backbone.width=16", "--backbone.heads=2", "--backbone.layers=1", "--trainer.batch_size=8"]
"""Flags that make a run of any recipe a matter of seconds."""


def tiny_gpt(*, extra_tokens: int = 0, embedding_of: Backbone | None = None, **fields: Any) -> Backbone:
    """A two-layer GPT; `fields` are config fields."""
    config = GPTConfig(**{"width": 16, "heads": 2, "layers": 2, **fields})
    return GPT(config, vocabulary=VOCABULARY + extra_tokens, context=CONTEXT, embedding_of=embedding_of)


def tiny_objective(name: str, seed: int = 0, backbone: dict[str, Any] | None = None, **fields: Any) -> Objective:
    """Any objective of the table around a tiny GPT."""
    torch.manual_seed(seed)
    kind = OBJECTIVES[name]
    objective: Objective = kind(kind.Config(**fields), lambda **more: tiny_gpt(**{**(backbone or {}), **more}))
    return objective


def spread_weights(module: torch.nn.Module, seed: int = 1) -> None:
    """Larger weights than a fresh model has, so that nothing that matters is hidden by being nearly zero."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator).to(parameter.dtype)


def random_examples(rng: np.random.Generator, n: int = 4, longest: int = 10, prompts: bool = True) -> Examples:
    """Sequences of different lengths with prompts of different lengths."""
    lengths = rng.integers(4, longest + 1, n)
    lengths[0] = longest
    tokens = rng.integers(0, VOCABULARY, (n, longest))
    prompt_lengths = rng.integers(1, lengths - 1) if prompts else np.zeros(n, np.int64)
    return Examples(np.where(np.arange(longest) < lengths[:, None], tokens, 0), lengths, prompt_lengths)


def small_stories(n: int, seed: int = 0) -> str:
    """A file of n short stories, all different, with names, numbers, quotes and letters of more than one byte."""
    rng = np.random.default_rng(seed)
    names, things = ["Ann", "Böb", "Zoë", "Tim"], ["ball", "kite", "cat", "big red boat", "café"]
    told = []
    for number in range(n):
        one, other = rng.permutation(names)[:2]
        lines = [f"Once {one} had a {rng.choice(things)} and {number} stars."]
        for _ in range(int(rng.integers(1, 3))):
            lines.append(
                f"“Look, {other}’s {rng.choice(things)}!” said {one}.\n" if rng.random() < 0.5 else "They ran."
            )
        told.append("\n".join([*lines, f"{other} was happy."]) + "\n<|endoftext|>\n")
    return "".join(told)


def random_batch(seed: int = 0, **options: Any) -> Batch:
    """A right-padded batch of random sequences."""
    return collate(random_examples(np.random.default_rng(seed), **options))


def pack(batch: Batch) -> Batch:
    """The same sequences, two documents a row, one behind the other."""
    rows = []
    lengths = batch.real.sum(1).tolist()
    for first in range(0, len(lengths), 2):
        parts = [(batch.tokens[row, : lengths[row]], batch.scored[row, : lengths[row]]) for row in (first, first + 1)]
        documents = torch.cat([torch.full((len(part[0]),), number + 1) for number, part in enumerate(parts)])
        rows.append((torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts]), documents))
    width = max(len(row[0]) for row in rows)
    padded = [torch.stack([torch.nn.functional.pad(row[place], (0, width - len(row[0]))) for row in rows])
              for place in range(3)]  # fmt: skip
    columns = padded[1].any(0).nonzero()[:, 0]
    return Batch(padded[0], padded[1], padded[2] > 0, padded[2], (int(columns[0]), int(columns[-1]) + 1))


class MarkovPredictor(Predictor):
    """The next token depends on the last one alone, with known probabilities: decoding can be checked by hand."""

    def __init__(self, transitions: Tensor, context: int = 32) -> None:
        self.table = transitions.log()
        self.vocabulary, self.context = len(transitions), context

    def start(self, prompts: Tensor) -> tuple[list[Tensor], Tensor]:
        cursor = [prompts]
        return cursor, self.table[prompts[:, -1]]

    def extend(self, cursor: list[Tensor], tokens: Tensor) -> Tensor:
        cursor[0] = torch.cat([cursor[0], tokens], 1)
        return self.table[tokens]

    def rewind(self, cursor: list[Tensor], positions: int) -> None:
        cursor[0] = cursor[0][:, : cursor[0].shape[1] - positions]

    def reorder(self, cursor: list[Tensor], rows: Tensor) -> None:
        cursor[0] = cursor[0][rows]

    def states(self, batch: Batch) -> Hidden:
        one_hot = torch.nn.functional.one_hot(batch.tokens, self.vocabulary).float()
        return Hidden(one_hot, one_hot)

    def logits(self, batch: Batch) -> Tensor:
        return self.table[batch.tokens]
