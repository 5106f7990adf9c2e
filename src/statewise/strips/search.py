"""Breadth-first search for a shortest trace that one action model accepts and a head of another rejects.

Such a trace is `a w c`, where the action `a` deletes the head's atom, `c` requires it and nothing in the word `w` adds
or deletes it: what comes before the last delete can be cut off, since a window of an accepted trace is accepted.

A search goes over nodes (place, known false). Of two nodes at the same place the one with fewer atoms known to be false
accepts more, now and after any further actions; so a node is dropped if one with a subset was reached before it.
"""

from __future__ import annotations

import heapq
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sized
from itertools import count
from typing import TypeVar

from statewise.strips.heads import Head
from statewise.strips.model import ActionModel, Atoms, bits

SECONDS, MAX_STATES = 60.0, 1_000_000
"""Limits unless told otherwise. A million states take up to half a gigabyte."""

Node = tuple[int, Atoms]
"""Where one is, for searches to which that matters, and the atoms known to be false that are of interest."""

Reached = dict[Node, tuple[Node | None, int]]
"""Nodes, each with the node before it and the action between the two."""


class LimitReached(Exception):
    """The search was not finished in time or in space. Says which."""


class Limits:
    """How long a question may be searched for, all its searches together; counts the states that they search."""

    def __init__(self, seconds: float = SECONDS, max_states: int = MAX_STATES) -> None:
        self.seconds, self.max_states, self.states = seconds, max_states, 0
        self.started = time.perf_counter()

    @property
    def elapsed(self) -> float:
        """Seconds so far."""
        return time.perf_counter() - self.started

    def count(self) -> None:
        """One more state is searched. Raises `LimitReached`; looks at the clock once in 64 states."""
        self.states += 1
        if self.states > self.max_states:
            raise LimitReached(f"not decided within {self.max_states:,} states")
        if not self.states & 63:
            self.look_at_the_clock()

    def look_at_the_clock(self) -> None:
        """Raises `LimitReached` if the time is over."""
        if self.elapsed > self.seconds:
            raise LimitReached(f"not decided within {self.seconds:g} s")


class Antichain:
    """Sets of atoms, filed by their lowest atom, so that a set is only compared with those that may be its subsets."""

    def __init__(self) -> None:
        self.filed: dict[int, list[Atoms]] = {}
        self.has_empty = False

    def has_subset_of(self, atoms: Atoms) -> bool:
        """Whether one of the sets is a subset of `atoms`, or equal."""
        if self.has_empty:
            return True
        for lowest in bits(atoms):
            for one in self.filed.get(lowest, ()):
                if not one & ~atoms:
                    return True
        return False

    def add(self, atoms: Atoms) -> None:
        """One more set."""
        if atoms:
            self.filed.setdefault((atoms & -atoms).bit_length() - 1, []).append(atoms)
        else:
            self.has_empty = True


class Search(ABC):
    """Looks for a trace that an action model accepts and a head of another one rejects, one length at a time."""

    def __init__(self, accepting: ActionModel, head: Head) -> None:
        self.accepting, self.head = accepting, head
        self.length = 2
        """Of the traces that the next call of `advance` looks at."""
        self.searched = 0
        """States so far: what the search has cost."""
        self.over = False
        """Whether there is nothing left to look at."""
        self.goals = least((accepting.actions[number].pre, number) for number in bits(head.pre))
        """What must not be known to be false for an action `c` to be accepted, and the action."""
        self._least: dict[int, Antichain] = {}
        self._parents: Reached = {}
        self._frontier: list[Node] = []

    @abstractmethod
    def begin(self) -> Iterator[tuple[Node, int]]:
        """The nodes after each action `a`, and the action."""

    @abstractmethod
    def excluded(self, limits: Limits) -> bool:
        """Whether it can be seen without search that there is no such trace. Asked once, after length 2."""

    @abstractmethod
    def steps(self, node: Node) -> Iterator[tuple[Node, int]]:
        """The nodes that an action of the word `w` leads to, and the action."""

    def rejected_next(self, node: Node) -> int | None:
        """An action `c` that the head rejects and the model accepts at a node that follows on `a w`."""
        false = node[1]
        return next((number for goal, number in self.goals if not goal & false), None)

    def advance(self, limits: Limits) -> list[int] | None:
        """Looks at the traces of the next length. A trace, or None. Raises `LimitReached`."""
        limits.look_at_the_clock()
        reached: Reached = {}
        if self.length == 2:
            reached = {node: (None, number) for node, number in self.begin()}
        elif self.length > 3 or not self.excluded(limits):
            for place, node in enumerate(self._frontier):
                if not place & 63:
                    limits.look_at_the_clock()
                for after, number in self.steps(node):
                    if after not in self._parents and after not in reached:
                        reached[after] = (node, number)
        self._frontier = list(self._new(reached, limits))
        self.over = not self._frontier
        self.length += 1
        for node in self._frontier:
            last = self.rejected_next(node)
            if last is not None:
                return [*self._trail(node), last]
        return None

    def _new(self, reached: Reached, limits: Limits) -> Iterator[Node]:
        """The nodes that are kept: no node at the same place with a subset was reached so far."""
        for node in sorted(reached, key=lambda node: node[1].bit_count()):  # subsets come first
            place, false = node
            smallest = self._least.setdefault(place, Antichain())
            if not smallest.has_subset_of(false):
                limits.count()
                self.searched += 1
                smallest.add(false)
                self._parents[node] = reached[node]
                yield node

    def _trail(self, node: Node) -> list[int]:
        """The actions that led to a node."""
        trail = []
        before: Node | None = node
        while before is not None:
            before, number = self._parents[before]
            trail.append(number)
        return trail[::-1]


def least(sets: Iterable[tuple[Atoms, int]]) -> list[tuple[Atoms, int]]:
    """Sets, each with a number, without those of which a subset is among them."""
    kept: list[tuple[Atoms, int]] = []
    for one, number in sorted(sets, key=lambda pair: pair[0].bit_count()):
        if all(other & ~one for other, _ in kept):
            kept.append((one, number))
    return kept


Found = TypeVar("Found", bound=Sized)


def shortest(
    searches: Iterable[Search], limits: Limits, seen: Callable[[list[int]], Found]
) -> tuple[Found | None, str | None]:
    """The shortest trace that one of the searches finds, and why it may not be: the limit that was reached, or None.

    `seen` is handed every trace that is found and gives what is kept of it, which may be shorter. Always the search
    goes on that has cost least so far, so that a hard one does not keep the easy ones waiting; none looks at traces
    that are as long as the best one or longer.
    """
    order = count()
    waiting = [(0, next(order), search) for search in searches]
    best: Found | None = None
    try:
        while waiting:
            _, _, search = heapq.heappop(waiting)
            if best is not None and search.length >= len(best):
                continue
            trace = search.advance(limits)
            if trace is not None:
                kept = seen(trace)
                if best is None or len(kept) < len(best):
                    best = kept
            elif not search.over:
                heapq.heappush(waiting, (search.searched, next(order), search))
    except LimitReached as limit:
        return best, str(limit)
    return best, None
