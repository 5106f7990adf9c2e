"""Alternating features by SAT over the seen windows.

A feature is the effect of an atom: the actions that delete it and those that add it. It *alternates* in the valid
traces if between two deletions there is an addition and between two additions a deletion: the test by which SIFT
(Gösgens, Jansen and Geffner, 2024) recognises the atoms of planning domains, whose actions delete what is true and add
what is false. On minimal windows these conditions are clauses over two variables per action, so that a SAT solver lists
all features, where SIFT tries 3^A. An atom need not alternate: negative traces that no alternating feature explains are
explained by relaxed ones (`Pricer`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from statewise.strips.exact.solver import TimeUp, solved, solver, weighted_solver
from statewise.strips.exact.windows import Windows
from statewise.strips.model.heads import ActionSet
from statewise.strips.model.model import bits

Clause = list[int]


class Feature(NamedTuple):
    """The effect of an atom."""

    delete: ActionSet
    add: ActionSet


class Found(NamedTuple):
    """Features, and whether there are no others."""

    features: list[Feature]
    complete: bool


MOST = 3000
"""The largest number of features that are listed: if there are more, most alternate by chance."""


def alternating(
    windows: Windows,
    *,
    known: Sequence[Feature] = (),
    most: int = MOST,
    seconds: float = 20.0,
    stop: Callable[[], bool] = lambda: False,
) -> Found:
    """Alternating features, first the `known` ones. These are all features if there are at most `most`, time suffices
    and `stop()` stays false. Actions without a window have no effect: nothing is known about them."""
    end, found = time.monotonic() + seconds, list(known)
    names = _Names(windows.actions)
    clauses = [
        *_alternation(windows, names),
        *([-names.delete(a)] for a in names.others(windows.seen)),
        *([-names.add(a)] for a in names.others(windows.seen)),
    ]
    clauses += [names.other_than(feature) for feature in known]

    def going_on() -> bool:
        return time.monotonic() < end and not stop()

    with solver(clauses) as sat:
        try:
            while solved(sat, going_on):
                if len(found) >= most or not going_on():
                    return Found(found, False)
                values = sat.get_model()
                found.append(names.feature(values))
                sat.add_clause([-value for value in values[: 2 * windows.actions]])
        except TimeUp:
            return Found(found, False)
    return Found(found, True)


ALTERNATES, DELETES_WHAT_HOLDS, ANY = "alternates", "deletes what holds", "any"
KINDS = (ALTERNATES, DELETES_WHAT_HOLDS, ANY)
"""Kinds of atoms, each wider than the one before: alternating; deleted only while true; any."""


class Pricer:
    """Finds a smallest feature that explains a negative trace, by MaxSAT (pricing, as in column generation)."""

    def __init__(self, windows: Windows, kind: str) -> None:
        self.windows, self.names = windows, _Names(windows.actions)
        self._clauses = {
            ALTERNATES: lambda: _alternation(windows, self.names),
            DELETES_WHAT_HOLDS: lambda: _deletes_what_holds(windows, self.names),
            ANY: lambda: _one_effect(self.names),
        }[kind]()
        self._at_end: dict[int, list[Clause]] = {}

    def smallest(
        self, row: Sequence[int], without: Iterable[Feature] = (), going_on: Callable[[], bool] = lambda: True
    ) -> Feature | None:
        """The feature of this kind with the fewest actions that accepts all valid actions and rejects the last one of
        `row`, and is not in `without`; None if there is none. Raises `TimeUp` soon after `going_on()` is false."""
        names, c = self.names, row[-1]
        options = self.windows.new(row)
        if not options:
            return None
        hard = [*self._clauses, *self._accepts(c)]
        chosen = []
        for number, (x, between) in enumerate(options, 2 * names.actions + 1):
            chosen.append(number)
            hard.append([-number, names.delete(x)])
            for a in bits(between):
                hard += [[-number, -names.add(a)], [-number, -names.delete(a)]]
        hard.append(chosen)
        hard += [names.other_than(each) for each in without]
        soft = [[-variable] for variable in range(1, 2 * names.actions + 1)]
        values = weighted_solver(hard, soft, going_on)
        return None if values is None else names.feature(values)

    def _accepts(self, c: int) -> list[Clause]:
        """The clauses by which no valid c is rejected if c requires the atom."""
        if c not in self._at_end:
            self._at_end[c] = [
                [-self.names.delete(x), *(self.names.add(a) for a in bits(window))]
                for x in range(self.windows.actions)
                for window in self.windows.minimal.get((x, c), ())
            ]
        return self._at_end[c]


class _Names:
    """The variables of the clauses: whether each action deletes the atom, and whether it adds it."""

    def __init__(self, actions: int) -> None:
        self.actions = actions

    def delete(self, action: int) -> int:
        return 1 + action

    def add(self, action: int) -> int:
        return 1 + self.actions + action

    def others(self, actions: ActionSet) -> Iterator[int]:
        return bits(~actions & (1 << self.actions) - 1)

    def other_than(self, feature: Feature) -> Clause:
        """The clause that excludes a feature."""
        return [
            *(-self.delete(a) for a in bits(feature.delete)),
            *(-self.add(a) for a in bits(feature.add)),
            *(self.delete(a) for a in self.others(feature.delete)),
            *(self.add(a) for a in self.others(feature.add)),
        ]

    def feature(self, values: Sequence[int]) -> Feature:
        count = self.actions
        return Feature(
            sum(1 << a for a in range(count) if values[a] > 0),
            sum(1 << a for a in range(count) if values[count + a] > 0),
        )


def _one_effect(names: _Names) -> list[Clause]:
    """No action both adds and deletes, and some action deletes."""
    return [
        *([-names.delete(a), -names.add(a)] for a in range(names.actions)),
        [names.delete(a) for a in range(names.actions)],
    ]


def _deletes_what_holds(windows: Windows, names: _Names) -> list[Clause]:
    return _one_effect(names) + [
        [-names.delete(x), -names.delete(c), *(names.add(a) for a in bits(window))] for x, window, c in windows
    ]


def _alternation(windows: Windows, names: _Names) -> list[Clause]:
    return _deletes_what_holds(windows, names) + [
        [-names.add(x), -names.add(c), *(names.delete(a) for a in bits(window))] for x, window, c in windows
    ]
