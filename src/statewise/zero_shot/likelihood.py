"""How likely a model finds the later part of token sequences, given the earlier one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from statewise.data import collate, rows_at_once
from statewise.decoding.base import Predictor
from statewise.tasks.base import RunningText
from statewise.types import Examples

Progress = Callable[[int, int], None]
"""Told how many sequences of how many are done."""


class Asked(NamedTuple):
    """A sequence of token ids."""

    tokens: Sequence[int]
    given: int
    """How many of them, 1 or more, are given; all others are asked for."""


@dataclass(frozen=True)
class Likelihood:
    """What a model says of the tokens asked for."""

    nats: np.ndarray
    """(m,) float64: minus the natural log of each token's probability."""
    first_choice: np.ndarray
    """(m,) bool: the token was the most likely one."""
    cut: bool
    """Whether tokens that were given had to be left out, so that the rest fits the context."""
    pieces: int
    """Passes of the model that it took: more than one if what is asked for does not fit the context."""

    @property
    def log_probability(self) -> float:
        """Of all tokens together."""
        return -float(self.nats.sum())

    @property
    def greedy(self) -> bool:
        """Whether greedy decoding would give these tokens."""
        return bool(self.first_choice.all())


class Window(NamedTuple):
    """A pass of the model over the tokens [start, stop) of a sequence, of which those from `scored` on count."""

    start: int
    scored: int
    stop: int


def windows(length: int, given: int, context: int) -> Iterator[Window]:
    """Passes in which each token from `given` on counts once. Never longer than `context`, as rows of training are.

    What fits is one pass; if the tokens given are too many, the first of them are left out. Where even those asked for
    are too many, each pass but the last begins with one token of the pass before, and the last is as long as can be.
    """
    scored = given
    while scored < length:
        if length - scored < context:
            start = max(0, length - context)
        elif scored < context:
            start = 0
        else:
            start = scored - 1
        stop = min(length, start + context)
        yield Window(start, scored, stop)
        scored = stop


def likelihoods(
    predictor: Predictor, sequences: Sequence[Asked], batch: int, progress: Progress | None = None
) -> list[Likelihood]:
    """Of each sequence, in order. `batch` passes are made at a time, fewer where their logits would be too many."""
    passes = [(place, window) for place, asked in enumerate(sequences)
              for window in windows(len(asked.tokens), asked.given, predictor.context)]  # fmt: skip
    pieces = np.bincount([place for place, _ in passes], minlength=len(sequences))
    sizes = [len(asked.tokens) - asked.given for asked in sequences]
    nats = [np.zeros(size) for size in sizes]
    firsts = [np.ones(size, bool) for size in sizes]
    cut = np.zeros(len(sequences), bool)
    waiting = pieces.copy()
    # The longest come first: if memory does not suffice, that shows at once.
    passes.sort(key=lambda one: one[1].start - one[1].stop)
    done = 0
    while done < len(passes):
        longest = passes[done][1].stop - passes[done][1].start
        few = rows_at_once(longest, predictor.vocabulary, batch)
        chosen = passes[done : done + few]
        done += len(chosen)
        for (place, window), scores in zip(chosen, _one_batch(predictor, sequences, chosen)):
            given = sequences[place].given
            here = slice(window.scored - given, window.stop - given)
            nats[place][here], firsts[place][here] = scores
            cut[place] |= window.scored == given and window.start > 0
            waiting[place] -= 1
        if progress is not None:
            progress(int((waiting == 0).sum()), len(sequences))
    return [Likelihood(*parts) for parts in zip(nats, firsts, cut.tolist(), pieces.tolist())]


def _one_batch(
    predictor: Predictor, sequences: Sequence[Asked], passes: Sequence[tuple[int, Window]]
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(nats, first choices), both (m,), of what counts in each pass."""
    rows = [np.array(sequences[place].tokens[window.start : window.stop], np.int64) for place, window in passes]
    # What is given is the prompt: models whose answers are not read, such as teacherless ones, ask where it ends.
    batch = collate(Examples.of(rows, [window.scored - window.start for _, window in passes]))
    first, end = batch.span
    targets, _ = batch.targets
    logits = predictor.logits(batch)[:, first - 1 : end - 1]
    targets = targets.to(logits.device)
    nats = (logits.logsumexp(-1) - logits.gather(-1, targets[:, :, None])[:, :, 0]).double().cpu().numpy()
    right = (logits.argmax(-1) == targets).cpu().numpy()
    for row, (_, window) in enumerate(passes):
        here = slice(window.scored - window.start - first, window.stop - window.start - first)
        yield nats[row, here], right[row, here]


def encoded(task: RunningText, texts: Sequence[str]) -> list[list[int]]:
    """Token ids of each text, in which nothing is a mark. Raises `ValueError` if the tokenizer changes one."""
    rows = task.bpe.encode_documents(texts)
    for text, row in zip(texts, rows):
        if task.bpe.decode(row) != text:
            raise ValueError(f"the tokenizer of this run does not give {text[:60]!r} back as it was")
    return rows
