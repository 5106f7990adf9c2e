"""Counting on: `17 18 19 20`, from a number that is given."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from statewise.data_types import Completion, Examples, Headline
from statewise.tasks.base import Task, Vocab
from statewise.tasks.own_files.lines import read_lines


@dataclass(frozen=True)
class CountingConfig:
    """Fields of `task: counting`."""

    numbers: int = 64
    """How many there are; the last is followed by the first."""
    length: int = 4
    """Numbers of a sequence."""


class Counting(Task):
    """One first number in eight is held out."""

    Config = CountingConfig
    other_held_out: Mapping[str, Sequence[str]] = {"beginning-with": ("even",)}

    def __init__(self, config: CountingConfig, kept: Mapping[str, bytes] | None = None) -> None:
        super().__init__(config, kept)
        self.vocab = Vocab(str(number) for number in range(config.numbers))
        self.context = config.length
        self.headline = Headline("accuracy", higher_is_better=True, solved_at=1.0)

    def _from(self, first: np.ndarray) -> Examples:
        n, length = len(first), self.config.length
        tokens = (first[:, None] + np.arange(length)) % self.config.numbers
        return Examples(tokens, np.full(n, length), np.ones(n, np.int64))

    def training(self) -> Examples:
        first = np.arange(self.config.numbers)
        return self._from(first[first % 8 != 5])

    def held_out(self, n: int | None = None) -> Examples:
        return self._from(np.arange(5, self.config.numbers, 8)[:n])

    def held_out_by(self, option: str, value: str, n: int | None = None) -> Examples:
        if (option, value) != ("beginning-with", "even"):
            return super().held_out_by(option, value, n)
        return self._from(np.arange(0, self.config.numbers, 2)[:n])

    def read(self, path: Path) -> Examples:
        rows = [self.encode(line) for _, line in read_lines(path)]
        return Examples.of(rows, [1] * len(rows))

    def encode(self, text: str) -> np.ndarray:
        return self.vocab.encode(text.split())

    def decode(self, tokens: Sequence[int] | np.ndarray) -> str:
        return " ".join(self.vocab.decode(tokens))

    def score(self, examples: Examples, completions: Sequence[Completion]) -> dict[str, float]:
        right = [c.tokens.tolist() == examples.answer(row).tolist() for row, c in enumerate(completions)]
        return {"accuracy": float(np.mean(right))}
