"""Two rides so far that come to the same, or that do not: what sequence compression and distinction compare."""

from __future__ import annotations

import numpy as np

from statewise.tasks.manhattan.street_map import StreetMap

TRIES = 20
"""How often pairs that came to nothing are drawn again."""


def draw_prefixes(
    streets: StreetMap, rng: np.random.Generator, n: int, alike: bool, most_apart: int, most_moves: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """At most n pairs of different prefixes with as many moves each: origin, destination, and headings (0 .. 7).

    `alike`: both lead to one crossing and have one destination; else they differ in one of these. A crossing and its
    destination are drawn evenly from those 1 to `most_apart` moves apart, the number of moves evenly from those that
    leave enough of `most_moves` to arrive, and the prefix is a random walk backwards from the crossing. Drawn again, so
    many times, is what gets stuck in a crossing that no street leads to, what would begin at its destination, and where
    both are the same. Raises `ValueError` if nothing could be drawn at all.
    """
    found: list[tuple[np.ndarray, np.ndarray]] = []
    for _ in range(TRIES):
        missing = n - len(found)
        if not missing:
            break
        states = [_states(streets, rng, missing, most_apart) for _ in range(1 if alike else 2)]
        apart = [streets.moves[goal, at].astype(np.int64) for at, goal in (pair.T for pair in states)]
        most = most_moves - np.max(apart, axis=0)
        moves = 1 + (rng.random(missing) * most).astype(np.int64)
        first, second = (_backwards(streets, rng, pair, moves) for pair in (states[0], states[-1]))
        differ = (first != second if alike else states[0] != states[1]).any(axis=1)
        whole = (most >= 1) & (first[:, 0] >= 0) & (second[:, 0] >= 0) & differ
        found += [(first[row, : moves[row] + 2], second[row, : moves[row] + 2]) for row in np.flatnonzero(whole)]
    if not found:
        raise ValueError("no two prefixes could be drawn to compare: the map, or task.max_moves, is too small")
    return found


def _states(streets: StreetMap, rng: np.random.Generator, n: int, most_apart: int) -> np.ndarray:
    """(n, 2): crossings and destinations, 1 to `most_apart` moves apart."""
    found = np.empty((0, 2), np.int64)
    while len(found) < n:
        drawn = rng.integers(len(streets), size=(2 * n + 64, 2))
        moves = streets.moves[drawn[:, 1], drawn[:, 0]]
        found = np.concatenate([found, drawn[(moves >= 1) & (moves <= most_apart)]])
    return found[:n]


def _backwards(streets: StreetMap, rng: np.random.Generator, states: np.ndarray, moves: np.ndarray) -> np.ndarray:
    """(n, 2 + most moves): origin, destination and headings of walks to `states[:, 0]`; -1 in the first column where
    one got stuck, or began at its destination."""
    into, heading, count = streets.streets_into
    at, goal = states.T
    rows = np.zeros((len(states), 2 + int(moves.max())), np.int64)
    for place in range(int(moves.max()), 0, -1):
        walking = (place <= moves) & (at >= 0)
        ways = np.where(walking, count[at], 0)
        choice = (rng.random(len(at)) * ways).astype(np.int64)
        rows[:, 1 + place] = np.where(walking, heading[at, choice], 0)
        at = np.where(walking, np.where(ways > 0, into[at, choice], -1), at)
    rows[:, 0], rows[:, 1] = np.where(at == goal, -1, at), goal
    return rows
