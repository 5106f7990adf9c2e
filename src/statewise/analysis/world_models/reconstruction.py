"""The street map implied by sequences (Vafa et al. 2024): the streets that must exist if all sequences were rides.

At first all true streets are unused. Each sequence is followed from its origin along streets in use, or else along
unused true streets, which are then in use. Where there is neither, a new street is added, to the nearby crossing from
which the rest can be followed furthest.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from statewise.tasks.manhattan.street_map import HEADINGS, StreetMap

WAYS = len(HEADINGS)


class Street(NamedTuple):
    """A directed street between two crossings, given by number."""

    begin: int
    heading: int
    end: int


class Ride(NamedTuple):
    """A ride read from a sequence."""

    origin: int
    destination: int
    turns: Sequence[int]
    """Headings of the ride, 0 to 7."""


@dataclass(frozen=True)
class Reconstruction:
    """The streets of a reconstructed map."""

    true: list[Street]
    """True streets in use."""
    new: list[Street]
    """Streets that the true map lacks."""
    unused: list[Street]
    """True streets that no ride needed."""
    failed: int
    """Number of rides that cannot be followed even with new streets; streets added for them remain."""
    rides: int
    """Number of all rides."""


class Streets:
    """The streets in use, and the true ones. A street is identified by its edge, crossing * 8 + heading."""

    def __init__(self, truth: StreetMap, degree: int) -> None:
        self.true: list[int] = truth.neighbour.ravel().tolist()
        self.used = [-1] * len(self.true)
        self.degree, self.room = degree, [degree] * len(truth)
        self.new: list[int] = []
        """Edges of the streets that are not true."""

    def follow(self, origin: int, turns: Sequence[int], destination: int, reserved: int = -1) -> tuple[list[int], bool]:
        """The edges along `turns`, and whether all can be followed and end at `destination`.

        If not, the path is cut back to the last crossing after its first street where a new street could replace the
        next one. `reserved` is an edge that is about to be used.
        """
        edges: list[int] = []
        newly_used: set[int] = set()  # unused true streets of this path, which use up room
        less: defaultdict[int, int] = defaultdict(int)
        if reserved >= 0:
            less[reserved // WAYS] += 1
        at, resume = origin, 0
        for number, turn in enumerate(turns):
            edge = at * WAYS + turn
            after = self.used[edge]
            if after < 0:
                if edge in newly_used:
                    after = self.true[edge]
                elif edge == reserved or self.room[at] <= less[at]:
                    return edges[:resume], False
                else:
                    resume = number
                    after = self.true[edge]
                    if after < 0:
                        return edges[:resume], False
                    newly_used.add(edge)
                    less[at] += 1
            edges.append(edge)
            at = after
        return (edges, True) if at == destination else (edges[:resume], False)

    def use(self, edges: Iterable[int]) -> int:
        """Marks true streets as used; returns the crossing at the end of the last one, -1 if there is none."""
        at = -1
        for edge in edges:
            if self.used[edge] < 0:
                self.used[edge] = self.true[edge]
                self.room[edge // WAYS] -= 1
            at = self.used[edge]
        return at

    def may_add(self, edge: int) -> bool:
        """Whether a new street may use this edge."""
        return self.used[edge] < 0 and self.room[edge // WAYS] > 0

    def add(self, edge: int, end: int) -> None:
        """Adds a new street to the crossing `end`."""
        self.used[edge] = end
        self.room[edge // WAYS] -= 1
        self.new.append(edge)


def reconstruct(truth: StreetMap, rides: Sequence[Ride], *, degree: int, radius: float) -> Reconstruction:
    """The map implied by `rides`. `degree`: maximum number of streets in use that leave a crossing; `radius`: maximum
    length of a new street, as measured by `StreetMap.near`. Ties go to the nearest crossing."""
    streets = Streets(truth, degree)
    nearby: dict[int, list[int]] = {}

    def near(crossing: int) -> list[int]:
        if crossing not in nearby:
            nearby[crossing] = truth.near(crossing, radius).tolist()
        return nearby[crossing]

    failed = 0
    for ride in rides:
        failed += not _make_ridable(streets, ride, near)
    added = set(streets.new)

    def street(edge: int, end: int) -> Street:
        return Street(edge // WAYS, edge % WAYS, end)

    return Reconstruction(
        true=[street(edge, end) for edge, end in enumerate(streets.used) if end >= 0 and edge not in added],
        new=[street(edge, streets.used[edge]) for edge in streets.new],
        unused=[
            street(edge, end)
            for edge, end in enumerate(streets.true)
            if end >= 0 and (streets.used[edge] < 0 or edge in added)
        ],
        failed=failed,
        rides=len(rides),
    )


def _make_ridable(streets: Streets, ride: Ride, near: Callable[[int], list[int]]) -> bool:
    """Adds the streets that a ride needs. False if that is impossible."""
    turns, done, at = ride.turns, 0, ride.origin
    edges, whole = streets.follow(at, turns, ride.destination)
    while True:
        if edges:
            done, at = done + len(edges), streets.use(edges)
        if whole:
            return True
        if done == len(turns):  # no turn is left, and this is not the destination
            return False
        edge = at * WAYS + turns[done]
        if not streets.may_add(edge):
            return False
        if done == len(turns) - 1:
            if ride.destination not in near(at):
                return False
            streets.add(edge, ride.destination)
            return True
        best: list[int] = []
        end, whole = -1, False
        for crossing in near(at):
            tried, through = streets.follow(crossing, turns[done + 1 :], ride.destination, reserved=edge)
            if len(tried) > len(best):
                best, end, whole = tried, crossing, through
        if not best:
            return False
        streets.add(edge, end)
        edges, done = best, done + 1


class Rides(NamedTuple):
    """The rides read from sequences."""

    ended: list[Ride]
    """Rides up to their first `end`."""
    endless: int
    """Number of sequences without an `end`; left out, as by Vafa et al."""
    unreadable: int
    """Number of sequences without origin, destination or, unless these are one crossing, turns, or with other tokens
    than headings."""


def rides_of(truth: StreetMap, tokens: np.ndarray, lengths: np.ndarray) -> Rides:
    """The rides of sequences (n, T), tokens as in `checking.check`."""
    N, rides, endless, unreadable = len(truth), [], 0, 0
    for row, length in zip(tokens.tolist(), lengths.tolist()):
        ends, turns = row[:2], row[2:length]
        if N + WAYS not in turns:
            endless += 1
            continue
        turns = turns[: turns.index(N + WAYS)]
        there = len(ends) == 2 and max(ends) < N
        if there and (turns or ends[0] == ends[1]) and all(N <= turn < N + WAYS for turn in turns):
            rides.append(Ride(ends[0], ends[1], [turn - N for turn in turns]))
        else:
            unreadable += 1
    return Rides(rides, endless, unreadable)
