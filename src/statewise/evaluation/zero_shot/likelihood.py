"""Log-likelihoods of continuations given their contexts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from statewise.data_types import Examples
from statewise.decoding.predictor import Predictor
from statewise.evaluation.scoring import score_batch
from statewise.runtime.progress import announced
from statewise.tasks.base import RunningText
from statewise.tasks.batches import collate, rows_at_once


class Continuation(NamedTuple):
    """A sequence of token ids whose last ones are to be scored."""

    tokens: Sequence[int]
    given: int
    """Length of the context, at least 1; the tokens after it are scored."""


@dataclass(frozen=True)
class Likelihood:
    """Scores of a continuation of m tokens."""

    nats: np.ndarray
    """(m,) float64: negative log-likelihood of each token."""
    first_choice: np.ndarray
    """(m,) bool: the token was the most likely one."""
    cut: bool
    """Whether the context was truncated from the left."""
    pieces: int
    """Number of windows: more than one if the continuation exceeds the model's context."""

    @property
    def log_probability(self) -> float:
        """Log-probability of the whole continuation."""
        return -float(self.nats.sum())

    @property
    def greedy(self) -> bool:
        """Whether greedy decoding would yield it."""
        return bool(self.first_choice.all())


class Window(NamedTuple):
    """A forward pass over tokens [start, stop) of a sequence; those from `scored` on count."""

    start: int
    scored: int
    stop: int


def windows(length: int, given: int, context: int) -> Iterator[Window]:
    """Windows of at most `context` tokens in which each token from `given` on counts once.

    One window if the continuation fits; the context is truncated from the left if need be. Otherwise each window but
    the last begins with the last token of the one before, and the last is as long as possible.
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


def likelihoods(predictor: Predictor, sequences: Sequence[Continuation], batch: int) -> list[Likelihood]:
    """Scores each sequence, in order, `batch` windows at a time (fewer if their logits would be too large)."""
    passes = [
        (place, window)
        for place, one in enumerate(sequences)
        for window in windows(len(one.tokens), one.given, predictor.context)
    ]
    pieces = np.bincount([place for place, _ in passes], minlength=len(sequences))
    sizes = [len(one.tokens) - one.given for one in sequences]
    nats = [np.zeros(size) for size in sizes]
    firsts = [np.ones(size, bool) for size in sizes]
    cut = np.zeros(len(sequences), bool)
    # Longest first, so that running out of memory shows at once.
    passes.sort(key=lambda one: one[1].start - one[1].stop)
    batches = _batches(passes, predictor.vocabulary, batch)
    for chosen in announced(batches, "windows of text", len(passes), len):
        for (place, window), scores in zip(chosen, _one_batch(predictor, sequences, chosen)):
            given = sequences[place].given
            here = slice(window.scored - given, window.stop - given)
            nats[place][here], firsts[place][here] = scores
            cut[place] |= window.scored == given and window.start > 0
    return [Likelihood(*parts) for parts in zip(nats, firsts, cut.tolist(), pieces.tolist())]


def _batches(
    passes: Sequence[tuple[int, Window]], vocabulary: int, most: int
) -> Iterator[Sequence[tuple[int, Window]]]:
    """The windows, longest first, in batches of at most `most`."""
    done = 0
    while done < len(passes):
        longest = passes[done][1].stop - passes[done][1].start
        few = rows_at_once(longest, vocabulary, most)
        yield passes[done : done + few]
        done += few


def _one_batch(
    predictor: Predictor, sequences: Sequence[Continuation], passes: Sequence[tuple[int, Window]]
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(nats, first choices), both (m,), of the scored tokens of each window."""
    rows = [np.array(sequences[place].tokens[window.start : window.stop], np.int64) for place, window in passes]
    # The context is the prompt: teacherless models need to know where it ends.
    batch = collate(Examples.of(rows, [window.scored - window.start for _, window in passes]))
    first, end = batch.span
    nats, choices = score_batch(predictor, batch, first, end)
    right = choices == batch.targets[0].numpy()
    for row, (_, window) in enumerate(passes):
        here = slice(window.scored - window.start - first, window.stop - window.start - first)
        yield nats[row, here], right[row, here]


def encoded(task: RunningText, texts: Sequence[str]) -> list[list[int]]:
    """Token ids of each text, without special tokens. Raises `ValueError` if decoding does not restore a text."""
    rows = task.bpe.encode_documents(texts)
    for text, row in zip(texts, rows):
        task.check_reproduced(text, row)
    return rows
