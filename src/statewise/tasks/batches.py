"""Batches of examples. The batch of a step is a pure function of (seed, step, rank, world)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np
import torch

from statewise.batch import Batch, Continuation
from statewise.data_types import Examples
from statewise.runtime.bounds import check_tokens
from statewise.runtime.progress import announced
from statewise.tasks.base import ConsecutiveRows, Task, consecutive_rows
from statewise.tasks.permutation import Permutation, shuffled

LOGITS = 2**26
"""Most logits of one block of sequences: 256 MB in float32."""


def collate(examples: Examples) -> Batch:
    """Right-padded batch. Every answer token is scored, except those that `examples.scored` excludes and the first
    token of a document."""
    column = np.arange(examples.tokens.shape[1])
    real = column < examples.lengths[:, None]
    position, documents = column, None
    if examples.documents is not None:
        opens = np.diff(examples.documents, axis=1, prepend=0) != 0
        position = column - np.maximum.accumulate(np.where(opens, column, 0), axis=1)
        documents = torch.from_numpy(np.where(real, examples.documents, 0))
    scored = real & (position >= np.maximum(examples.prompt_lengths, 1)[:, None])
    if examples.scored is not None:
        scored &= examples.scored
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
    """Training batches by number. A fixed training set is read in epochs, each in its own random order. With `rows`
    consecutive, each batch position (lane) reads the set row by row instead: lane b of B reads row
    (first + b N // B + step) mod N, where `first` depends on the seed. Counts of how often rows were read differ by at
    most one."""

    def __init__(
        self,
        task: Task,
        *,
        seed: int,
        batch_size: int,
        rank: int = 0,
        world: int = 1,
        rows: Literal["shuffled", "consecutive"] = "shuffled",
    ) -> None:
        """Raises `LacksCapability` if `rows` is consecutive and the task's rows are not, and `ValueError` if a batch
        has more tokens than can be drawn at once."""
        if batch_size % world:
            raise ValueError(f"a batch of {batch_size} cannot be divided among {world} processes: choose a multiple")
        check_tokens("trainer.batch_size", batch_size // world, task.longest_row)
        self.task, self.seed, self.batch_size = task, seed, batch_size
        self.share = slice(rank * batch_size // world, (rank + 1) * batch_size // world)
        self.examples = task.training()
        self._epoch = -1
        self._order: np.ndarray | Permutation = np.empty(0, np.int64)
        self._lanes: ConsecutiveRows | None = None
        if rows == "consecutive":
            self._lanes = consecutive_rows(task)
            assert self.examples is not None
            self._first = int(np.random.default_rng(seed).integers(len(self.examples)))

    def batch(self, number: int) -> Batch:
        """This process's share of global batch `number`, counted from 0."""
        return self.batches(number, 1)[0]

    def batches(self, number: int, parts: int) -> list[Batch]:
        """This process's share of global batch `number`, divided into `parts` of equal size."""
        share = self._draw(number)
        size = len(share) // parts
        cuts = [slice(part * size, (part + 1) * size) for part in range(parts)]
        batches = [collate(share[cut]) for cut in cuts]
        if self._lanes is None:
            return batches
        follows = self._lanes.continues(self._lane_rows(number)) & (number > 0)
        lane, follow = torch.arange(len(share)), torch.from_numpy(follows)
        return [batch._replace(continuation=Continuation(lane[cut], follow[cut])) for batch, cut in zip(batches, cuts)]

    def _lane_rows(self, number: int) -> np.ndarray:
        """(n,) int64: the rows of this process's lanes in batch `number`."""
        assert self.examples is not None
        rows, lanes = len(self.examples), np.arange(self.batch_size)[self.share]
        return (self._first + lanes * rows // self.batch_size + number) % rows

    def _draw(self, number: int) -> Examples:
        if self.examples is None:
            return self._sample(number)
        if self._lanes is not None:
            return self.examples[self._lane_rows(number)]
        epochs, offsets = np.divmod(number * self.batch_size + np.arange(self.batch_size), len(self.examples))
        rows = np.empty(self.batch_size, np.int64)
        for epoch in np.unique(epochs):
            if epoch != self._epoch:
                self._epoch, self._order = int(epoch), shuffled(len(self.examples), [self.seed, int(epoch)])
            rows[epochs == epoch] = self._order[offsets[epochs == epoch]]
        return self.examples[rows[self.share]]

    def _sample(self, number: int) -> Examples:
        """Each block of rows has its own generator: the rows do not depend on the number of processes, and each
        process draws only the blocks that its share overlaps."""
        size = self.task.drawn_at_once
        first, end = self.share.start // size, -(-self.share.stop // size)
        parts = []
        for block in range(first, end):
            wanted = min(size, self.batch_size - block * size)
            part = self.task.sample(np.random.default_rng([self.seed, number, block]), wanted)
            if len(part) != wanted:
                raise ValueError(
                    f"{type(self.task).__name__}.sample drew {len(part):,} sequences instead of {wanted:,}"
                )
            parts.append(part)
        return Examples.joined(parts)[self.share.start - first * size : self.share.stop - first * size]

    def epoch(self, number: int) -> float:
        """Passes over the training set before batch `number`; 0 for tasks without a fixed one."""
        return number * self.batch_size / len(self.examples) if self.examples is not None else 0.0


def rows_at_once(length: int, vocabulary: int, most: int) -> int:
    """How many sequences of a length fit one forward pass: `most`, or fewer if they have more than `LOGITS` logits."""
    return max(1, min(most, LOGITS // (length * vocabulary)))


def blocks(examples: Examples, size: int) -> Iterator[tuple[np.ndarray, Examples]]:
    """(row numbers, examples) in blocks of similar length, which need little padding."""
    order = np.argsort(examples.lengths, kind="stable")
    every = (order[start : start + size] for start in range(0, len(order), size))
    for rows in announced(every, "sequences", len(order), len):
        yield rows, examples[rows]


def similar_prompt_length(examples: Examples, size: int) -> Iterator[np.ndarray]:
    """Row numbers in blocks of prompts of which none is longer than twice the shortest: decoding pads them, and few
    blocks of several lengths take far fewer passes than a block of each length."""

    def every() -> Iterator[np.ndarray]:
        rest = np.argsort(examples.prompt_lengths, kind="stable")
        while len(rest):
            lengths = examples.prompt_lengths[rest[:size]]
            count = int(np.searchsorted(lengths, 2 * lengths[0], side="right"))
            yield rest[:count]
            rest = rest[count:]

    yield from announced(every(), "prompts", len(examples), len)


def same_prompt_length(examples: Examples, size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(row numbers, prompts (B, T)) in blocks of equally long prompts, which need no padding."""

    def every() -> Iterator[np.ndarray]:
        for length in np.unique(examples.prompt_lengths):
            members = np.flatnonzero(examples.prompt_lengths == length)
            for start in range(0, len(members), size):
                yield members[start : start + size]

    for rows in announced(every(), "prompts", len(examples), len):
        yield rows, examples.tokens[rows, : examples.prompt_lengths[rows[0]]]
