"""Positions in packed documents, and smoothed curves over them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from statewise.data_types import Examples
from statewise.reporting.figures import Curve

FEWEST = 20
"""Curves with fewer points are not smoothed."""


def documents(examples: Examples) -> Iterator[np.ndarray]:
    """The tokens (t,) of each document, or of a part where a row begins or ends inside a document."""
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


def smoothed(label: str, x: np.ndarray, y: np.ndarray) -> list[Curve]:
    """The smoothed curve of evenly spaced points, followed by the raw one."""
    if len(x) < FEWEST:
        return [Curve(label, x.tolist(), y.tolist())]
    from scipy.signal import savgol_filter

    window = max(5, len(x) // 8) | 1
    trend = savgol_filter(y, window, 2)
    return [Curve(label, x.tolist(), trend.tolist()), Curve(label, x.tolist(), y.tolist(), "raw")]
