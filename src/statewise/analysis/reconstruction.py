"""The map that sequences imply (Vafa et al. 2024): which streets must there be if all of them were rides?

True streets count first as there but unused. A sequence is walked from its origin along streets in use and, where none
has the heading, along unused true ones, which then are in use. Where neither goes on, a new street is added, to the
crossing nearby from where the rest can be followed furthest.
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
    """A street between two crossings, by their numbers."""

    begin: int
    heading: int
    end: int


class Ride(NamedTuple):
    """What a sequence says."""

    origin: int
    destination: int
    turns: Sequence[int]
    """Headings, 0 .. 7."""


@dataclass(frozen=True)
class Reconstruction:
    """The streets of a reconstructed map."""

    true: list[Street]
    """True ones in use."""
    new: list[Street]
    """Such as the true map does not have."""
    unused: list[Street]
    """True ones that no sequence needed."""
    failed: int
    """Sequences that could not be made rides even so; streets that were added for them stay."""
    rides: int
    """All sequences."""


class Streets:
    """The streets in use, and those of the truth. A slot is crossing * 8 + heading."""

    def __init__(self, truth: StreetMap, degree: int) -> None:
        self.true: list[int] = truth.neighbour.ravel().tolist()
        self.used = [-1] * len(self.true)
        self.degree, self.room = degree, [degree] * len(truth)
        self.new: list[int] = []
        """Slots of the streets that are not true."""

    def follow(self, origin: int, turns: Sequence[int], destination: int, reserved: int = -1) -> tuple[list[int], bool]:
        """The slots of the walk along `turns`, and whether it goes through and ends at `destination`.

        If it does not, the walk is cut back to the last crossing behind its first street where a new street could
        begin in its place. `reserved` is a slot that is about to be used.
        """
        slots: list[int] = []
        taken: set[int] = set()  # unused true streets of this walk, which use up room
        less: defaultdict[int, int] = defaultdict(int)
        if reserved >= 0:
            less[reserved // WAYS] += 1
        at, resume = origin, 0
        for place, turn in enumerate(turns):
            slot = at * WAYS + turn
            after = self.used[slot]
            if after < 0:
                if slot in taken:
                    after = self.true[slot]
                elif slot == reserved or self.room[at] <= less[at]:
                    return slots[:resume], False
                else:
                    resume = place
                    after = self.true[slot]
                    if after < 0:
                        return slots[:resume], False
                    taken.add(slot)
                    less[at] += 1
            slots.append(slot)
            at = after
        return (slots, True) if at == destination else (slots[:resume], False)

    def use(self, slots: Iterable[int]) -> int:
        """Takes true streets into use; the crossing behind the last one, -1 if there is none."""
        at = -1
        for slot in slots:
            if self.used[slot] < 0:
                self.used[slot] = self.true[slot]
                self.room[slot // WAYS] -= 1
            at = self.used[slot]
        return at

    def may_add(self, slot: int) -> bool:
        """Whether a new street may begin there."""
        return self.used[slot] < 0 and self.room[slot // WAYS] > 0

    def add(self, slot: int, end: int) -> None:
        """A new street."""
        self.used[slot] = end
        self.room[slot // WAYS] -= 1
        self.new.append(slot)


def reconstruct(
    truth: StreetMap,
    rides: Sequence[Ride],
    *,
    degree: int,
    radius: float,
) -> Reconstruction:
    """The map that `rides` imply. `degree`: the most streets in use that may leave a crossing; `radius`: how far a new
    street may lead, as `StreetMap.near` measures it. Of crossings that do equally well the nearest is taken."""
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

    def street(slot: int, end: int) -> Street:
        return Street(slot // WAYS, slot % WAYS, end)

    return Reconstruction(
        true=[street(slot, end) for slot, end in enumerate(streets.used) if end >= 0 and slot not in added],
        new=[street(slot, streets.used[slot]) for slot in streets.new],
        unused=[
            street(slot, end)
            for slot, end in enumerate(streets.true)
            if end >= 0 and (streets.used[slot] < 0 or slot in added)
        ],
        failed=failed,
        rides=len(rides),
    )


def _make_ridable(streets: Streets, ride: Ride, near: Callable[[int], list[int]]) -> bool:
    """Adds the streets that a sequence needs. False if it cannot be helped."""
    turns, done, at = ride.turns, 0, ride.origin
    slots, whole = streets.follow(at, turns, ride.destination)
    while True:
        if slots:
            done, at = done + len(slots), streets.use(slots)
        if whole:
            return True
        if done == len(turns):  # nothing was asked: origin and destination are not the same
            return False
        slot = at * WAYS + turns[done]
        if not streets.may_add(slot):
            return False
        if done == len(turns) - 1:
            if ride.destination not in near(at):
                return False
            streets.add(slot, ride.destination)
            return True
        best: list[int] = []
        end, whole = -1, False
        for crossing in near(at):
            tried, through = streets.follow(crossing, turns[done + 1 :], ride.destination, reserved=slot)
            if len(tried) > len(best):
                best, end, whole = tried, crossing, through
        if not best:
            return False
        streets.add(slot, end)
        slots, done = best, done + 1


def rides_of(truth: StreetMap, tokens: np.ndarray, lengths: np.ndarray) -> tuple[list[Ride], int]:
    """The rides of sequences (n, T), tokens as in `checking.check`, up to the first `end`; and how many there are that
    name no origin and destination, no turn, or something that is no heading."""
    N, rides, unreadable = len(truth), [], 0
    for row, length in zip(tokens.tolist(), lengths.tolist()):
        ends, turns = row[:2], row[2:length]
        if N + WAYS in turns:
            turns = turns[: turns.index(N + WAYS)]
        if length > 2 and turns and max(ends) < N and min(turns) >= N and max(turns) < N + WAYS:
            rides.append(Ride(ends[0], ends[1], [turn - N for turn in turns]))
        else:
            unreadable += 1
    return rides, unreadable
