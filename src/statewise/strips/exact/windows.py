"""Seen windows: everything that valid traces say about a hidden STRIPS model.

In a valid trace take an action c and an earlier action x, and let W be the set of actions strictly between the *last* x
and c: the pair (x, c) was seen with window W. An atom that x deletes and c requires accepts this occurrence of c iff an
action in W adds the atom. So an atom accepts all valid traces iff each seen window (x, W, c), with x among the actions
that delete the atom and c among those that require it, has an action that adds it. Only windows that are minimal by
inclusion matter, so the traces can be read once and forgotten."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from statewise.strips.model.heads import ActionSet
from statewise.strips.model.model import bits
from statewise.strips.model.traces import Trace, Traces

Row = TypeVar("Row", bound=tuple[Any, ...])
Window = tuple[int, ActionSet, int]
"""(x, W, c)."""
Holders = dict[tuple[int, int], list[tuple[ActionSet, int]]]
"""The windows of each pair (x, c), the smallest first, each with the traces that have it, as bits."""


class Windows:
    """The minimal seen windows of each pair of actions."""

    def __init__(self, actions: int) -> None:
        self.actions = actions
        """The number of actions, A."""
        self.minimal: dict[tuple[int, int], list[ActionSet]] = {}
        """The minimal windows of each pair (x, c) that was seen."""

    @classmethod
    def of(cls, traces: Traces) -> Windows:
        """The windows of the valid actions of `traces`: all but the last action of a negative trace."""
        return cls.of_rows(len(traces.actions), valid_rows(traces))

    @classmethod
    def of_rows(cls, actions: int, rows: Iterable[Trace]) -> Windows:
        """The windows of valid traces."""
        windows = cls(actions)
        for row in rows:
            windows.add(row)
        return windows

    def __len__(self) -> int:
        return sum(map(len, self.minimal.values()))

    def __iter__(self) -> Iterator[Window]:
        for (x, c), windows in self.minimal.items():
            for window in windows:
                yield x, window, c

    def add(self, row: Sequence[int]) -> None:
        """Reads a valid trace."""
        for windows in windows_of(row):
            for x, between, c in windows:
                self.insert(x, between, c)

    @classmethod
    def supported(cls, actions: int, holders: Holders, support: int) -> Windows:
        """The windows that at least `support` traces imply: each of them has the window, or one inside it."""
        supported = cls(actions)
        for (x, c), of_pair in holders.items():
            smaller: list[tuple[ActionSet, int]] = []
            for between, own in of_pair:
                if supported.contains_seen(x, between, c):
                    continue
                implied = own
                for window, others in smaller:
                    if window & between == window:
                        implied |= others
                if implied.bit_count() >= support:
                    supported.insert(x, between, c)
                else:
                    smaller.append((between, own))
        return supported

    def insert(self, x: int, between: ActionSet, c: int) -> None:
        """Adds one seen window, unless it contains a known one."""
        known = self.minimal.get((x, c), ())
        if not any_inside(between, known):
            self.minimal[x, c] = [*(window for window in known if between & window != between), between]

    def contains_seen(self, x: int, between: ActionSet, c: int) -> bool:
        """Whether a seen window of (x, c) is a subset of `between`: then every atom that x deletes and that accepts all
        valid traces accepts c here."""
        return any_inside(between, self.minimal.get((x, c), ()))

    def new(self, row: Sequence[int]) -> list[tuple[int, ActionSet]]:
        """The pairs (x, W) of the last action of `row` that contain no seen window: how an atom that accepts all valid
        traces can reject it. If there are none, no such atom does."""
        last = (each for windows in windows_of(row, start=len(row) - 1) for each in windows)
        return [(x, between) for x, between, c in last if not self.contains_seen(x, between, c)]

    def required(self, delete: ActionSet, add: ActionSet) -> ActionSet:
        """The actions that can require an atom with these effects without rejecting a valid action."""
        out = (1 << self.actions) - 1
        for x in bits(delete):
            for c in bits(out):
                if any(not window & add for window in self.minimal.get((x, c), ())):
                    out &= ~(1 << c)
        return out

    @property
    def seen(self) -> ActionSet:
        """The actions that occur in a pair."""
        seen = 0
        for x, c in self.minimal:
            seen |= 1 << x | 1 << c
        return seen


def any_inside(between: ActionSet, windows: Iterable[ActionSet]) -> bool:
    """Whether one of `windows` is a subset of `between`."""
    for window in windows:  # noqa: SIM110 - reading traces is mostly this, and a generator would double its time
        if window & between == window:
            return True
    return False


def windows_of(row: Sequence[int], start: int = 0) -> Iterator[list[Window]]:
    """For each position of a trace, from `start` on, the windows of its action."""
    recent: list[int] = []  # distinct actions, the latest first
    for place, c in enumerate(row):
        if place >= start:
            between, windows = 0, []
            for x in recent:
                windows.append((x, between, c))
                between |= 1 << x
            yield windows
        if c in recent:
            recent.remove(c)
        recent.insert(0, c)


def holders_of(traces: Traces, reading: Callable[[Sequence[int]], Iterable[int]] = iter) -> Holders:
    """The windows of the valid actions of `traces`, with the traces that have them. Only traces whose numbers `reading`
    passes on are read."""
    return holders_from(
        (window, 1 << number)
        for number in reading(range(len(traces)))
        for window in {each for windows in windows_of(traces.valid(number)) for each in windows}
    )


def holders_from(windows: Iterable[tuple[Window, int]]) -> Holders:
    """Joins windows, each with traces that have it, as bits."""
    by_pair: dict[tuple[int, int], dict[ActionSet, int]] = {}
    for (x, between, c), traces in windows:
        traces_with = by_pair.setdefault((x, c), {})
        traces_with[between] = traces_with.get(between, 0) | traces
    return {pair: sorted(each.items(), key=lambda window: window[0].bit_count()) for pair, each in by_pair.items()}


def valid_rows(traces: Traces) -> list[Trace]:
    """The valid part of each trace, without prefixes of others."""
    return longest(map(traces.valid, range(len(traces))))


def longest(rows: Iterable[Row]) -> list[Row]:
    """The distinct rows, sorted, without prefixes of others."""
    ordered = sorted(set(rows))
    following: list[tuple[Any, ...]] = [*ordered[1:], ()]
    return [row for row, after in zip(ordered, following) if row and after[: len(row)] != row]
