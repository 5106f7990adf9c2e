"""Breadth-first search for a shortest trace that one action model accepts and a head of another rejects.

Such a trace is `a w c`, where the action `a` deletes the head's atom, `c` requires it and no action of the word `w`
adds or deletes it: actions before the last delete can be dropped, since any substring of an accepted trace is accepted.

Nodes are pairs (place, known false). Of two nodes at the same place, the one with fewer atoms known to be false accepts
more, now and after any further actions; so a node is dropped if one with a subset was reached before it.
"""

from __future__ import annotations

import heapq
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass
from itertools import count
from typing import Generic, TypeVar

from statewise.strips.model.heads import Head
from statewise.strips.model.model import ActionModel, Atoms, bits

SECONDS, MAX_STATES = 60.0, 1_000_000
"""Default limits. A million states take up to half a gigabyte."""

Node = tuple[int, Atoms]
"""The place, for searches that use it, and the relevant atoms that are known to be false."""

Reached = dict[Node, tuple[Node | None, int]]
"""Nodes, each with its predecessor and the action between them."""


class LimitReached(Exception):
    """A search reached its limit of time or states; the message says which."""


class Limits:
    """Limits on time and states, shared by all searches of a query; counts the states."""

    def __init__(
        self,
        seconds: float = SECONDS,
        max_states: int = MAX_STATES,
        within: Limits | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """`within` are the limits of the whole query, which count the same states. Once `stop()` is true, the time is
        up."""
        self.seconds, self.max_states, self.states = seconds, max_states, 0
        self.within, self.stop = within, stop
        self.started = time.perf_counter()

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self.started

    def count(self) -> None:
        """Counts one more state. Raises `LimitReached`; checks the time every 64 states."""
        if self.within is not None:
            self.within.count()
        self.states += 1
        if self.states > self.max_states:
            raise LimitReached(f"undecided within {self.max_states:,} states")
        if not self.states & 63:
            self.look_at_the_clock()

    def look_at_the_clock(self) -> None:
        """Raises `LimitReached` if the time is up."""
        if self.within is not None:
            self.within.look_at_the_clock()
        if self.stop():
            raise LimitReached("undecided when the search was stopped")
        if self.elapsed > self.seconds:
            raise LimitReached(f"undecided within {self.seconds:g} s")


class Antichain:
    """Sets of atoms, indexed by their lowest atom, so that a set is only compared with possible subsets."""

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
        """Adds a set."""
        if atoms:
            self.filed.setdefault((atoms & -atoms).bit_length() - 1, []).append(atoms)
        else:
            self.has_empty = True


class Search(ABC):
    """Searches for a trace that an action model accepts and a head of another one rejects, one length at a time."""

    def __init__(self, accepting: ActionModel, head: Head) -> None:
        self.accepting, self.head = accepting, head
        self.length = 2
        """The length of the traces that the next call of `advance` searches."""
        self.searched = 0
        """The number of states searched so far."""
        self.over = False
        """Whether the search is exhausted."""
        self.goals = least((accepting.actions[number].pre, number) for number in bits(head.pre))
        """For each action `c` the atoms that must not be known to be false if it is to be accepted, and its number."""
        self._least: dict[int, Antichain] = {}
        self._parents: Reached = {}
        self._frontier: list[Node] = []

    @abstractmethod
    def begin(self) -> Iterator[tuple[Node, int]]:
        """The nodes after each action `a`, with the action."""

    @abstractmethod
    def excluded(self, limits: Limits) -> bool:
        """Whether a cheap test proves that there is no such trace. Called once, after length 2."""

    @abstractmethod
    def steps(self, node: Node) -> Iterator[tuple[Node, int]]:
        """The nodes that an action of the word `w` leads to, with the action."""

    def rejected_next(self, node: Node) -> int | None:
        """An action `c` that the head rejects and the model accepts at the node reached by `a w`, or None."""
        false = node[1]
        return next((number for goal, number in self.goals if not goal & false), None)

    def advance(self, limits: Limits) -> list[int] | None:
        """Searches the traces of the next length, and returns one or None. Raises `LimitReached`."""
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
        """The nodes to keep: those for which no subset was reached at the same place before."""
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
        """The actions that lead to a node."""
        trail = []
        before: Node | None = node
        while before is not None:
            before, number = self._parents[before]
            trail.append(number)
        return trail[::-1]


def least(sets: Iterable[tuple[Atoms, int]]) -> list[tuple[Atoms, int]]:
    """The sets without a subset among the others, each with its number."""
    kept: list[tuple[Atoms, int]] = []
    for one, number in sorted(sets, key=lambda pair: pair[0].bit_count()):
        if all(other & ~one for other, _ in kept):
            kept.append((one, number))
    return kept


Found = TypeVar("Found", bound=Sized)


@dataclass(frozen=True)
class Result(Generic[Found]):
    """The common result of several searches."""

    found: Found | None
    """The result for the shortest trace found."""
    limit: str | None
    """The limit that was reached; None if all searches ended, so that no shorter trace exists."""
    depth: int | None
    """If a limit was reached: all traces of at most this many actions were searched."""


def shortest(
    searches: Iterable[Search], limits: Limits, seen: Callable[[list[int]], Found], below: int | None = None
) -> Result[Found]:
    """The shortest trace that one of the searches finds; with `below`, of fewer actions than that.

    `seen` maps each trace found to the result to keep, which may be shorter. The search with the fewest states so far
    advances next, so that a hard search does not delay the easy ones. No search continues to traces that are as long as
    the best one.
    """
    order = count()
    waiting = [(0, next(order), search) for search in searches]
    best: Found | None = None
    while waiting:
        _, _, search = heapq.heappop(waiting)
        if below is not None and search.length >= below:
            continue
        try:
            trace = search.advance(limits)
        except LimitReached as limit:
            return Result(best, str(limit), min(each.length for each in (search, *(one for _, _, one in waiting))) - 1)
        if trace is not None:
            kept = seen(trace)
            if best is None or len(kept) < len(best):
                best, below = kept, len(kept)
        elif not search.over:
            heapq.heappush(waiting, (search.searched, next(order), search))
    return Result(best, None, None)
