"""SAT and MaxSAT by python-sat, which is part of the extra `planning`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from statewise.runtime.messages import to_install

CONFLICTS = 500
"""A solver checks the time after this many conflicts."""


def _missing() -> ValueError:
    return ValueError(f"exact learning needs python-sat: {to_install('planning')}; or learn with --method neural")


class TimeUp(Exception):
    """The time for a solver is up."""


def solver(clauses: Iterable[list[int]]) -> Any:
    """A SAT solver with these clauses, as a context. Raises `ValueError` without the extra."""
    try:
        from pysat.solvers import Glucose4
    except ModuleNotFoundError:
        raise _missing() from None
    return Glucose4(bootstrap_with=clauses)


def solved(sat: Any, going_on: Callable[[], bool], assumptions: Sequence[int] = ()) -> bool:
    """Whether the clauses of a solver can be satisfied. Raises `TimeUp` soon after `going_on()` is false."""
    while True:
        sat.conf_budget(CONFLICTS)
        found = sat.solve_limited(assumptions=list(assumptions))
        if found is not None:
            return bool(found)
        if not going_on():
            raise TimeUp


def weighted_solver(
    hard: Iterable[list[int]], soft: Iterable[list[int]], going_on: Callable[[], bool] = lambda: True
) -> list[int] | None:
    """Values of the variables that satisfy all `hard` clauses and as many `soft` ones as possible; None if the hard
    ones cannot be satisfied. Raises `TimeUp` soon after `going_on()` is false, and `ValueError` without the extra."""
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
    with RC2(formula) as found:
        found.oracle = _Timed(found.oracle, going_on)
        values: list[int] | None = found.compute()
    return values


class _Timed:
    """Wraps a SAT solver so that it checks the time."""

    def __init__(self, sat: Any, going_on: Callable[[], bool]) -> None:
        self._sat, self._going_on = sat, going_on

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sat, name)

    def solve(self, assumptions: Sequence[int] = ()) -> bool:
        return solved(self._sat, self._going_on, assumptions)

    def solve_limited(self, assumptions: Sequence[int] = (), expect_interrupt: bool = False) -> bool:
        return self.solve(assumptions)
