"""Pairs of ride prefixes with the same state or different ones, for sequence compression and distinction."""

from __future__ import annotations

import numpy as np

from statewise.tasks.manhattan.street_map import StreetMap

TRIES = 20
"""How often pairs that failed are drawn again."""


def draw_prefixes(
    streets: StreetMap, rng: np.random.Generator, n: int, same_state: bool, most_apart: int, most_moves: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """At most n pairs of different prefixes with equally many moves: origin, destination, and headings (0 .. 7).

    `same_state`: both lead to the same crossing and have the same destination; else they differ in either. Crossing and
    destination are drawn uniformly from pairs 1 to `most_apart` moves apart, the number of moves uniformly from those
    that leave enough of `most_moves` to arrive, and the prefix is a random walk backwards from the crossing. A pair is
    drawn again, at most `TRIES` times, if a walk reaches a crossing without incoming streets or would begin at its
    destination, or if both prefixes are equal. Raises `ValueError` if no pair could be drawn.
    """
    found: list[tuple[np.ndarray, np.ndarray]] = []
    for _ in range(TRIES):
        missing = n - len(found)
        if not missing:
            break
        states = [_states(streets, rng, missing, most_apart) for _ in range(1 if same_state else 2)]
        apart = [streets.moves[goal, at].astype(np.int64) for at, goal in (pair.T for pair in states)]
        most = most_moves - np.max(apart, axis=0)
        moves = 1 + (rng.random(missing) * most).astype(np.int64)
        first, second = (_backwards(streets, rng, pair, moves) for pair in (states[0], states[-1]))
        differ = (first != second if same_state else states[0] != states[1]).any(axis=1)
        whole = (most >= 1) & (first[:, 0] >= 0) & (second[:, 0] >= 0) & differ
        found += [(first[row, : moves[row] + 2], second[row, : moves[row] + 2]) for row in np.flatnonzero(whole)]
    if not found:
        raise ValueError("no pair of prefixes could be drawn: the map, or task.max_moves, is too small")
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
    """(n, 2 + most moves): origin, destination and headings of walks to `states[:, 0]`; -1 in the first column of
    walks that failed or began at their destination."""
    into, heading, count = streets.streets_into
    at, goal = states.T
    rows = np.zeros((len(states), 2 + int(moves.max())), np.int64)
    for step in range(int(moves.max()), 0, -1):
        walking = (step <= moves) & (at >= 0)
        ways = np.where(walking, count[at], 0)
        choice = (rng.random(len(at)) * ways).astype(np.int64)
        rows[:, 1 + step] = np.where(walking, heading[at, choice], 0)
        at = np.where(walking, np.where(ways > 0, into[at, choice], -1), at)
    rows[:, 0], rows[:, 1] = np.where(at == goal, -1, at), goal
    return rows
