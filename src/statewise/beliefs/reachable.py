"""All beliefs that a process can reach: level by level with equal ones merged, or as a finite set."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from statewise.beliefs.process import Process

GRID, SHIFT = 1e-9 * 2**0.5, 0.382
"""Beliefs in the same cell of a grid of this size and shift are equal. No boundary of a cell is 0 or another simple
fraction, which beliefs often are."""
LARGEST = 2**26
"""Most numbers of one level of beliefs, before equal ones are merged: 512 MB."""
MOST_PAIRS = 2**22
"""Numbers of beliefs computed at a time."""


class TooMany(ValueError):
    """Raised if there are more beliefs than can be listed."""


class Level(NamedTuple):
    """The distinct beliefs after t tokens."""

    beliefs: np.ndarray
    """(n, S): the beliefs."""
    weights: np.ndarray
    """(n,): the probability that a sequence has each belief after t tokens."""
    next_tokens: np.ndarray
    """(n, V): probabilities of the next token."""

    @property
    def entropy(self) -> float:
        """The mean entropy of the next token, in nats."""
        return float(self.weights @ entropies(self.next_tokens))


class Finite(NamedTuple):
    """A finite set of beliefs with its transitions; the first is the start."""

    beliefs: np.ndarray
    """(m, S): the beliefs."""
    after: np.ndarray
    """(m, V) int64: the belief after each token, -1 after impossible ones."""
    next_tokens: np.ndarray
    """(m, V): probabilities of the next token."""


def entropies(shares: np.ndarray) -> np.ndarray:
    """(n,): entropy in nats of each distribution (n, V)."""
    nats: np.ndarray = -(shares * np.log(np.where(shares > 0, shares, 1))).sum(1)
    return nats


def levels(
    process: Process, depth: int, most: int, begin: tuple[np.ndarray, np.ndarray] | None = None
) -> Iterator[Level]:
    """The distinct beliefs after 0, 1, ..., `depth` tokens. Raises `TooMany` before a level that has more than
    `most`, or that could only be listed with too much memory. `begin`: distinct beliefs (n, S) before the first token
    and their probabilities (n,), in place of the start."""
    beliefs, weights = (process.start[None], np.ones(1)) if begin is None else begin
    for place in range(depth + 1):
        probabilities = process.probabilities(beliefs)
        yield Level(beliefs, weights, probabilities)
        if place == depth:
            return
        rows, tokens = np.nonzero(probabilities)
        if len(rows) * process.states > LARGEST or _many(process, beliefs, rows, tokens, most):
            raise TooMany(f"there are more than {most:,} different beliefs after {place + 1} tokens, or may be")
        steps = _steps(process, beliefs, rows, tokens)
        first, which = distinct(steps)
        if len(first) > most:
            raise TooMany(f"there are more than {most:,} different beliefs after {place + 1} tokens")
        weights = np.bincount(which, weights=weights[rows] * probabilities[rows, tokens], minlength=len(first))
        beliefs = steps[first]


def finite(process: Process, most: int) -> Finite | None:
    """All beliefs that the process reaches with their transitions, if there are at most `most`; else None."""
    beliefs, fresh = process.start[None], process.start[None]
    after: list[np.ndarray] = []
    while len(fresh):
        probabilities = process.probabilities(fresh)
        rows, tokens = np.nonzero(probabilities)
        if _many(process, fresh, rows, tokens, most):
            return None
        every = np.concatenate([beliefs, _steps(process, fresh, rows, tokens)])
        first, which = distinct(every)
        known = len(beliefs)  # they are distinct and come first, so they keep their numbers
        targets = np.full(probabilities.shape, -1)
        targets[rows, tokens] = which[known:]
        after.append(targets)
        fresh = every[first[known:]]
        beliefs = np.concatenate([beliefs, fresh])
        if len(beliefs) > most:
            return None
    return Finite(beliefs, np.concatenate(after), process.probabilities(beliefs))


def distinct(beliefs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the first of equal rows (n, S), in order, and for each row its place among these."""
    cells = np.floor(beliefs / GRID + SHIFT).astype(np.int64)
    keys = np.ascontiguousarray(cells).view(np.dtype((np.void, cells.itemsize * cells.shape[1])))[:, 0]
    _, first, which = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(first)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return first[order], place[which]


def _many(process: Process, beliefs: np.ndarray, rows: np.ndarray, tokens: np.ndarray, most: int) -> bool:
    """Whether a part of the steps leads to more than `most` beliefs, which is found sooner than by taking all."""
    few = slice(None, None, max(1, len(rows) // (2 * most)))
    return len(rows) > 4 * most and len(distinct(_steps(process, beliefs, rows[few], tokens[few]))[0]) > most


def _steps(process: Process, beliefs: np.ndarray, rows: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """(m, S): the beliefs of the given rows after the given tokens."""
    size = max(1, MOST_PAIRS // process.states)
    parts = [
        process.update(beliefs[rows[at : at + size]], tokens[at : at + size])[0] for at in range(0, len(rows), size)
    ]
    return np.concatenate(parts) if parts else np.empty((0, process.states))
