"""Is the number of ones even or odd?"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from statewise.data_types import Completion, Examples, Headline
from statewise.tasks.base import Kept, Task, Vocab, World
from statewise.tasks.own_files.lines import Problems, read_lines


@dataclass(frozen=True)
class ParityConfig:
    """Fields of `task: parity`."""

    bits: int = 8
    """Length of the string."""


class Parity(Task, World):
    """Bits, a question mark, and `even` or `odd`. One string in eight is held out."""

    Config = ParityConfig

    def __init__(self, config: ParityConfig, kept: Kept | None = None) -> None:
        self.config = config
        self.vocab = Vocab(["0", "1", "?", "even", "odd"])
        self.context = config.bits + 2
        self.headline = Headline("accuracy", higher_is_better=True, solved_at=0.99)
        self.chance = {"accuracy": 0.5}

    def _columns(self, bits: np.ndarray) -> Examples:
        n = len(bits)
        tokens = np.concatenate([bits, np.full((n, 1), 2), 3 + bits.sum(axis=1, keepdims=True) % 2], axis=1)
        return Examples(tokens, np.full(n, self.context), np.full(n, self.context - 1))

    def _is_held_out(self, bits: np.ndarray) -> np.ndarray:
        number = bits @ (1 << np.arange(self.config.bits))
        return (number * 2654435761 >> 16) % 8 == 5  # spread over all bits, so that no prefix is held out as a whole

    def training(self) -> None:
        """Strings are drawn afresh without end."""

    def sample(self, rng: np.random.Generator, n: int) -> Examples:
        bits = rng.integers(0, 2, (2 * n + 50, self.config.bits))
        return self._columns(bits[~self._is_held_out(bits)][:n])

    def held_out(self, n: int | None = None) -> Examples:
        every = np.arange(2**self.config.bits)[:, None] >> np.arange(self.config.bits) & 1
        return self._columns(every[self._is_held_out(every)][:n])

    def read(self, path: Path) -> Examples:
        problems, rows = Problems(path), []
        for number, line in read_lines(path):
            bits = line.split()
            if len(bits) == self.config.bits and set(bits) <= {"0", "1"}:
                rows.append([int(bit) for bit in bits])
            else:
                problems.add(number, f"not {self.config.bits} bits with spaces between")
        problems.raise_if_any()
        return self._columns(np.array(rows))

    def encode(self, text: str) -> np.ndarray:
        return self.vocab.encode(text.split())

    def decode(self, tokens: Sequence[int] | np.ndarray) -> str:
        return " ".join(self.vocab.decode(tokens))

    def score(self, examples: Examples, completions: Sequence[Completion]) -> dict[str, float]:
        right = [c.tokens.tolist() == examples.answer(row).tolist() for row, c in enumerate(completions)]
        return {"accuracy": float(np.mean(right))}

    def labels(self, examples: Examples) -> np.ndarray:
        """The parity so far, at every bit."""
        labels = np.full_like(examples.tokens, -1)
        labels[:, : self.config.bits] = examples.tokens[:, : self.config.bits].cumsum(axis=1) % 2
        return labels

    def legal(self, prefix: np.ndarray) -> np.ndarray:
        if len(prefix) < self.config.bits:
            return np.array([0, 1])
        return np.array({self.config.bits: [2], self.config.bits + 1: [3, 4]}.get(len(prefix), []), np.int64)
