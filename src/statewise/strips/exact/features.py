"""Alternating features by SAT over the seen windows; python-sat, the solver, is part of the extra `planning`.

A feature is the effect of an atom: the actions that delete it and those that add it. It *alternates* in the valid
traces if between two deletions there is an addition and between two additions a deletion: the test by which SIFT
(Gösgens, Jansen and Geffner, 2024) recognises the atoms of planning domains, whose actions delete what is true and add
what is false. On minimal windows these conditions are clauses over two variables per action, so that a SAT solver lists
all features, where SIFT tries 3^A. An atom need not alternate: negative traces that no alternating feature explains are
explained by relaxed ones (`Pricer`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from statewise.runtime.messages import to_install
from statewise.strips.exact.windows import Windows
from statewise.strips.model.heads import ActionSet
from statewise.strips.model.model import bits

CONFLICTS = 500
"""A solver checks the time after this many conflicts."""


def _missing() -> ValueError:
    return ValueError(f"exact learning needs python-sat: {to_install('planning')}; or learn with `method` neural")


class TimeUp(Exception):
    """The time for a solver is up."""


def solver(clauses: Iterable[list[int]]) -> Any:
    """A SAT solver with these clauses, as a context. Raises `ValueError` without the extra."""
    try:
        from pysat.solvers import Glucose4
    except ModuleNotFoundError:
        raise _missing() from None
    return Glucose4(bootstrap_with=clauses)


def solved(sat: Any, has_time: Callable[[], bool], assumptions: Sequence[int] = ()) -> bool:
    """Whether the clauses of a solver can be satisfied. Raises `TimeUp` soon after `has_time()` is false."""
    while True:
        sat.conf_budget(CONFLICTS)
        satisfied = sat.solve_limited(assumptions=list(assumptions))
        if satisfied is not None:
            return bool(satisfied)
        if not has_time():
            raise TimeUp


def weighted_solver(
    hard: Iterable[list[int]], soft: Iterable[list[int]], has_time: Callable[[], bool] = lambda: True
) -> list[int] | None:
    """Values of the variables that satisfy all `hard` clauses and as many `soft` ones as possible; None if the hard
    ones cannot be satisfied. Raises `TimeUp` soon after `has_time()` is false, and `ValueError` without the extra."""
    try:
        from pysat.examples.rc2 import RC2
        from pysat.formula import WCNF
    except ModuleNotFoundError:
        raise _missing() from None
    formula = WCNF()
    for clause in hard:
        formula.append(clause)
    for clause in soft:
        formula.append(clause, weight=1)
    with RC2(formula) as optimiser:
        optimiser.oracle = _Timed(optimiser.oracle, has_time)
        values: list[int] | None = optimiser.compute()
    return values


class _Timed:
    """Wraps a SAT solver so that it checks the time."""

    def __init__(self, sat: Any, has_time: Callable[[], bool]) -> None:
        self._sat, self._has_time = sat, has_time

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sat, name)

    def solve(self, assumptions: Sequence[int] = ()) -> bool:
        return solved(self._sat, self._has_time, assumptions)

    def solve_limited(self, assumptions: Sequence[int] = (), expect_interrupt: bool = False) -> bool:
        return self.solve(assumptions)


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
    end, features = time.monotonic() + seconds, list(known)
    names = _Names(windows.actions)
    clauses = [
        *_alternation(windows, names),
        *([-names.delete(a)] for a in names.others(windows.seen)),
        *([-names.add(a)] for a in names.others(windows.seen)),
    ]
    clauses += [names.other_than(feature) for feature in known]

    def has_time() -> bool:
        return time.monotonic() < end and not stop()

    with solver(clauses) as sat:
        try:
            while solved(sat, has_time):
                if len(features) >= most or not has_time():
                    return Found(features, False)
                values = sat.get_model()
                features.append(names.feature(values))
                sat.add_clause([-value for value in values[: 2 * windows.actions]])
        except TimeUp:
            return Found(features, False)
    return Found(features, True)


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
        self, row: Sequence[int], without: Iterable[Feature] = (), has_time: Callable[[], bool] = lambda: True
    ) -> Feature | None:
        """The feature of this kind with the fewest actions that accepts all valid actions and rejects the last one of
        `row`, and is not in `without`; None if there is none. Raises `TimeUp` soon after `has_time()` is false."""
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
        values = weighted_solver(hard, soft, has_time)
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
