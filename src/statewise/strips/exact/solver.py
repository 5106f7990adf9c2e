"""SAT and MaxSAT by python-sat, which is part of the extra `planning`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

MISSING = "exact learning needs python-sat: pip install 'statewise[planning]'; or learn with --method neural"


def solver(clauses: Iterable[list[int]]) -> Any:
    """A SAT solver with these clauses, as a context. Raises `ValueError` without the extra."""
    try:
        from pysat.solvers import Glucose4
    except ModuleNotFoundError:
        raise ValueError(MISSING) from None
    return Glucose4(bootstrap_with=clauses)


def weighted_solver(hard: Iterable[list[int]], soft: Iterable[list[int]]) -> list[int] | None:
    """Values of the variables that satisfy all `hard` clauses and as many `soft` ones as possible; None if the hard
    ones cannot be satisfied. Raises `ValueError` without the extra."""
    try:
        from pysat.examples.rc2 import RC2
        from pysat.formula import WCNF
    except ModuleNotFoundError:
        raise ValueError(MISSING) from None
    formula = WCNF()
    for clause in hard:
        formula.append(clause)
    for clause in soft:
        formula.append(clause, weight=1)
    with RC2(formula) as found:
        values: list[int] | None = found.compute()
    return values
