"""Separates the documents of packed rows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from statewise.data_types import Examples


def documents(examples: Examples) -> Iterator[np.ndarray]:
    """(t,) tokens of each document; of a part of one where a row begins or ends inside it."""
    for row in range(len(examples)):
        tokens = examples.tokens[row, : examples.lengths[row]]
        if examples.documents is None:
            yield tokens
            continue
        ends = np.flatnonzero(np.diff(examples.documents[row, : len(tokens)])) + 1
        yield from np.split(tokens, ends)


def positions(examples: Examples) -> np.ndarray:
    """(n, T): distance of each position from the start of its document."""
    column = np.broadcast_to(np.arange(examples.tokens.shape[1]), examples.tokens.shape)
    if examples.documents is None:
        return column
    starts = np.zeros_like(examples.documents, dtype=bool)
    starts[:, 1:] = examples.documents[:, 1:] != examples.documents[:, :-1]
    return column - np.maximum.accumulate(np.where(starts, column, 0), axis=1)
