"""Examples to batches. What a step is trained on is a pure function of (seed, step, rank, world)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from statewise.tasks.base import Task
from statewise.types import Batch, Examples

LOGITS = 2**26
"""Numbers that the logits of one block of sequences may be: a quarter of a gigabyte."""


def collate(examples: Examples) -> Batch:
    """Right-padded batch; every answer token that is asked for is scored, except a document's very first token."""
    column = np.arange(examples.tokens.shape[1])
    real = column < examples.lengths[:, None]
    place, documents = column, None
    if examples.documents is not None:
        opens = np.diff(examples.documents, axis=1, prepend=0) != 0
        place = column - np.maximum.accumulate(np.where(opens, column, 0), axis=1)
        documents = torch.from_numpy(np.where(real, examples.documents, 0))
    scored = real & (place >= np.maximum(examples.prompt_lengths, 1)[:, None])
    if examples.asked is not None:
        scored &= examples.asked
    columns = np.flatnonzero(scored.any(axis=0))
    span = (int(columns[0]), int(columns[-1]) + 1) if len(columns) else (1, 1)
    return Batch(
        tokens=torch.from_numpy(np.where(real, examples.tokens, 0)),
        scored=torch.from_numpy(scored),
        real=torch.from_numpy(real),
        documents=documents,
        span=span,
    )


class Stream:
    """Training batches by number. A fixed set is walked epoch by epoch, each in its own random order."""

    def __init__(self, task: Task, *, seed: int, batch_size: int, rank: int = 0, world: int = 1) -> None:
        if batch_size % world:
            raise ValueError(f"a batch of {batch_size} cannot be shared by {world} processes: choose a multiple")
        self.task, self.seed, self.batch_size = task, seed, batch_size
        self.share = slice(rank * batch_size // world, (rank + 1) * batch_size // world)
        self.examples = task.training()
        self._epoch, self._order = -1, np.empty(0, np.int64)

    def batch(self, number: int) -> Batch:
        """This process's share of global batch `number`, counted from 0."""
        return self.batches(number, 1)[0]

    def batches(self, number: int, parts: int) -> list[Batch]:
        """The same, cut into `parts` of equal size."""
        share = self._draw(number)
        size = len(share) // parts
        return [collate(share[part * size : (part + 1) * size]) for part in range(parts)]

    def _draw(self, number: int) -> Examples:
        if self.examples is None:
            # Every process draws the whole batch: the same examples then come whatever the number of processes.
            return self.task.sample(np.random.default_rng([self.seed, number]), self.batch_size)[self.share]
        places = number * self.batch_size + np.arange(self.batch_size)
        epochs, offsets = np.divmod(places, len(self.examples))
        rows = np.empty(self.batch_size, np.int64)
        for epoch in np.unique(epochs):
            if epoch != self._epoch:
                order = np.random.default_rng([self.seed, int(epoch)]).permutation(len(self.examples))
                self._epoch, self._order = int(epoch), order
            rows[epochs == epoch] = self._order[offsets[epochs == epoch]]
        return self.examples[rows[self.share]]

    def epoch(self, number: int) -> float:
        """Passes over the training set before batch `number`; 0 for endless tasks."""
        return number * self.batch_size / len(self.examples) if self.examples is not None else 0.0


def rows_at_once(length: int, vocabulary: int, most: int) -> int:
    """How many sequences of a length a model should be asked for at a time: `most`, or fewer where their logits would
    be too many."""
    return max(1, min(most, LOGITS // (length * vocabulary)))


def blocks(examples: Examples, size: int) -> Iterator[tuple[np.ndarray, Examples]]:
    """(row numbers, examples) in blocks of similar length, so that little is padded."""
    order = np.argsort(examples.lengths, kind="stable")
    for start in range(0, len(order), size):
        rows = order[start : start + size]
        yield rows, examples[rows]


def same_prompt_length(examples: Examples, size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(row numbers, prompts (B, T)) in blocks whose prompts are equally long: decoding needs no padding then."""
    for length in np.unique(examples.prompt_lengths):
        members = np.flatnonzero(examples.prompt_lengths == length)
        for start in range(0, len(members), size):
            rows = members[start : start + size]
            yield rows, examples.tokens[rows, :length]
