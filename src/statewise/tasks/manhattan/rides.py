"""Drawing rides in batches: random traversals, shortest paths, and fastest paths in traffic."""

from __future__ import annotations

from typing import Literal

import numpy as np

from statewise.tasks.manhattan.street_map import HEADINGS, StreetMap

Style = Literal["random", "shortest", "noisy_shortest"]
BLOCK = 4096
"""Rides drawn at a time; so many fit the processor's cache."""


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
    taken = np.full(streets.neighbour.shape, np.inf)
    taken[begin, number] = times
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
        heading = (taken[at] + left[which[rides][:, None], ahead]).argmin(axis=1)
        turns[rides, step] = heading
        at = ahead[np.arange(len(at)), heading]
    long = np.flatnonzero(moves > most_moves)
    if len(long):
        turns[long], moves[long] = draw_rides(streets, rng, pairs[long], style="shortest", most_moves=most_moves)
    return turns, moves
