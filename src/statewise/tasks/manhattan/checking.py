"""Checks rides: a valid one has only legal turns and ends at its destination."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from statewise.tasks.manhattan.street_map import HEADINGS, StreetMap

VERDICTS = ("valid", "illegal_turn", "wrong_destination", "no_end")
VALID, ILLEGAL_TURN, WRONG_DESTINATION, NO_END = range(len(VERDICTS))


class Checked(NamedTuple):
    """Results for n rides."""

    verdicts: np.ndarray
    """(n,) indices of `VERDICTS`."""
    moves: np.ndarray
    """(n,) number of tokens between the destination and the first `end`, or after the destination without one."""
    illegal: np.ndarray
    """(n,) column of the first illegal token, -1 without one. Illegal are a first or second token that is no crossing,
    and, before the first `end`, a token that is no street from the current crossing."""


def check(streets: StreetMap, tokens: np.ndarray, lengths: np.ndarray) -> Checked:
    """Checks rides (n, T) of the given lengths (n,). Crossings are the tokens 0 .. N-1, headings N .. N+7, and `end` is
    N+8. Tokens after the first `end` are ignored."""
    n, N = len(tokens), len(streets)
    end = N + len(HEADINGS)
    column = np.arange(tokens.shape[1])
    ends = (tokens == end) & (column < lengths[:, None]) & (column >= 2)
    has_end = ends.any(axis=1)
    stop = np.where(has_end, ends.argmax(axis=1), lengths)  # column of the first `end`, or after the last token

    # State N is invalid: illegal headings and tokens that are no headings lead to it, and none out of it.
    table = np.full((N + 1, len(HEADINGS) + 1), N, np.int64)
    table[:N, :-1] = np.where(streets.neighbour >= 0, streets.neighbour, N)
    named = (tokens[:, :2] >= 0) & (tokens[:, :2] < N) & (column[:2] < lengths[:, None])
    at = np.where(named.all(axis=1), tokens[:, 0], N) if tokens.shape[1] > 1 else np.full(n, N)
    illegal = np.where(at == N, np.minimum(named.argmin(axis=1), 1), -1) if tokens.shape[1] > 1 else np.zeros(n, int)
    heading = tokens - N
    heading = np.where((heading >= 0) & (heading < len(HEADINGS)), heading, len(HEADINGS)).T
    for position in range(2, tokens.shape[1]):
        moving = position < stop
        if not moving.any():
            break
        at = np.where(moving, table[at, heading[position]], at)
        illegal = np.where(moving & (at == N) & (illegal < 0), position, illegal)
    arrived = at == tokens[:, 1] if tokens.shape[1] > 1 else np.zeros(n, bool)
    verdicts = np.select([illegal >= 0, ~has_end, ~arrived], [ILLEGAL_TURN, NO_END, WRONG_DESTINATION], default=VALID)
    return Checked(verdicts, np.maximum(stop - 2, 0), illegal)
