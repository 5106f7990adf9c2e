"""Draws rides in batches, and checks them.

Rides are random traversals, shortest paths, or fastest paths in traffic; a valid ride has only legal turns and ends at
its destination. Pairs of ride prefixes with the same state, or different ones, measure sequence compression and
distinction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from statewise.tasks.manhattan.street_map import HEADINGS, StreetMap

Style = Literal["random", "shortest", "noisy_shortest"]
BLOCK = 4096
"""Rides drawn at a time, which fit the processor's cache."""


def draw_rides(
    streets: StreetMap,
    rng: np.random.Generator,
    pairs: np.ndarray,
    *,
    style: Style,
    most_moves: int,
    noise: float = 0.0,
) -> tuple[np.ndarray, np.ndarray]:
    """A ride for each of `pairs` (n, 2) of origin and destination, at most `most_moves` apart.

    Returns headings (n, most_moves), -1 after the end, and the number of moves of each ride (n,).
    - `random`: each turn is uniform over those from which the ride can still arrive within `most_moves`; at the
      destination, ending is one more choice, so that a ride may pass it.
    - `shortest`: a path with the fewest moves, each turn uniform over those of such paths.
    - `noisy_shortest`: the fastest path if each street takes its length times exp(noise * z), with z standard normal,
      drawn once per call. Paths of more than `most_moves` are replaced by `shortest` ones.
    """
    if style == "noisy_shortest":
        return _in_traffic(streets, rng, pairs, most_moves, noise)
    parts = [
        _walk(streets, rng, pairs[start : start + BLOCK], most_moves, style == "random")
        for start in range(0, len(pairs), BLOCK)
    ]
    turns, moves = zip(*parts)
    return np.concatenate(turns), np.concatenate(moves)


def _walk(
    streets: StreetMap, rng: np.random.Generator, pairs: np.ndarray, most_moves: int, random: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Random traversals, or shortest paths, of at most `BLOCK` pairs."""
    turns = np.full((len(pairs), most_moves), -1, np.int8)
    moves = np.empty(len(pairs), np.int64)
    rides, (at, goal) = np.arange(len(pairs)), pairs.T
    for step in range(most_moves + 1):
        ahead = streets.neighbour[at]
        left = streets.moves[goal[:, None], ahead]  # meaningless where there is no street (-1): masked below
        arrived = at == goal
        if random:
            viable = (ahead >= 0) & (left < most_moves - step)
            options = viable.sum(axis=1) + arrived
        else:
            viable = (ahead >= 0) & (left + 1 == streets.moves[goal, at][:, None]) & ~arrived[:, None]
            options = viable.sum(axis=1)
        pick = (rng.random(len(rides)) * options).astype(np.int64)
        heading = (viable.cumsum(axis=1) <= pick[:, None]).sum(axis=1)
        ending = heading == len(HEADINGS)
        moves[rides[ending]] = step
        going = ~ending
        rides, heading = rides[going], heading[going]
        if not len(rides):
            break
        turns[rides, step] = heading
        at, goal = ahead[going, heading], goal[going]
    return turns, moves


def _in_traffic(
    streets: StreetMap, rng: np.random.Generator, pairs: np.ndarray, most_moves: int, noise: float
) -> tuple[np.ndarray, np.ndarray]:
    """Fastest paths where streets take random times."""
    begin, number, end = streets.streets
    lengths = np.ones(len(begin))
    if streets.coordinates is not None:
        shortest = 0.01 * streets.street_length  # a loop takes time too
        lengths = np.maximum(np.hypot(*(streets.coordinates[end] - streets.coordinates[begin]).T), shortest)
    times = lengths * np.exp(noise * rng.standard_normal(len(begin)))
    minutes = np.full(streets.neighbour.shape, np.inf)
    minutes[begin, number] = times
    goals, which = np.unique(pairs[:, 1], return_inverse=True)
    left = streets.travel_times(times, goals)

    turns = np.full((len(pairs), most_moves), -1, np.int8)
    moves = np.full(len(pairs), most_moves + 1)
    rides, at = np.arange(len(pairs)), pairs[:, 0]
    for step in range(most_moves + 1):
        arrived = at == pairs[rides, 1]
        moves[rides[arrived]] = step
        rides, at = rides[~arrived], at[~arrived]
        if not len(rides) or step == most_moves:
            break
        ahead = streets.neighbour[at]
        heading = (minutes[at] + left[which[rides][:, None], ahead]).argmin(axis=1)
        turns[rides, step] = heading
        at = ahead[np.arange(len(at)), heading]
    long = np.flatnonzero(moves > most_moves)
    if len(long):
        turns[long], moves[long] = draw_rides(streets, rng, pairs[long], style="shortest", most_moves=most_moves)
    return turns, moves


TRIES = 20
"""Most draws of a pair."""


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
    prefixes: list[tuple[np.ndarray, np.ndarray]] = []
    for _ in range(TRIES):
        missing = n - len(prefixes)
        if not missing:
            break
        states = [_states(streets, rng, missing, most_apart) for _ in range(1 if same_state else 2)]
        apart = [streets.moves[goal, at].astype(np.int64) for at, goal in (pair.T for pair in states)]
        most = most_moves - np.max(apart, axis=0)
        moves = 1 + (rng.random(missing) * most).astype(np.int64)
        first, second = (_backwards(streets, rng, pair, moves) for pair in (states[0], states[-1]))
        differ = (first != second if same_state else states[0] != states[1]).any(axis=1)
        whole = (most >= 1) & (first[:, 0] >= 0) & (second[:, 0] >= 0) & differ
        prefixes += [(first[row, : moves[row] + 2], second[row, : moves[row] + 2]) for row in np.flatnonzero(whole)]
    if not prefixes:
        raise ValueError("no pair of prefixes could be drawn: the map, or task.max_moves, is too small")
    return prefixes


def _states(streets: StreetMap, rng: np.random.Generator, n: int, most_apart: int) -> np.ndarray:
    """(n, 2): crossings and destinations, 1 to `most_apart` moves apart."""
    states = np.empty((0, 2), np.int64)
    while len(states) < n:
        drawn = rng.integers(len(streets), size=(2 * n + 64, 2))
        moves = streets.moves[drawn[:, 1], drawn[:, 0]]
        states = np.concatenate([states, drawn[(moves >= 1) & (moves <= most_apart)]])
    return states[:n]


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


VERDICTS = ("valid", "illegal_turn", "wrong_destination", "no_end")
VALID, ILLEGAL_TURN, WRONG_DESTINATION, NO_END = range(len(VERDICTS))


class Checked(NamedTuple):
    """Results for n rides."""

    verdicts: np.ndarray
    """(n,) indices of `VERDICTS`."""
    moves: np.ndarray
    """(n,) number of tokens between the destination and the first `end`, or after the destination without one."""
    illegal: np.ndarray
    """(n,) column of the first illegal token, -1 without one. Illegal tokens are a first or second token that is not a
    crossing, and, before the first `end`, a token that is not a street from the current crossing."""

    def metrics(self) -> dict[str, float]:
        """The number of `rides`, the number of rides with each verdict, and the `valid_share`."""
        counts = np.bincount(self.verdicts, minlength=len(VERDICTS)).tolist()
        return {"rides": len(self.verdicts), **dict(zip(VERDICTS, counts)), "valid_share": counts[VALID] / sum(counts)}

    def labels(self, lines: Sequence[int]) -> str:
        """CSV with a row `line,label,moves` for each ride. `lines` counts from 1, the CSV from 0."""
        rows = [
            f"{line - 1},{VERDICTS[verdict]},{moves}"
            for line, verdict, moves in zip(lines, self.verdicts.tolist(), self.moves.tolist())
        ]
        return "\n".join(["line,label,moves", *rows]) + "\n"


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
