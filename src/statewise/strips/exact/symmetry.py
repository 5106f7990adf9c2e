"""Traces renamed by symmetries of the instance: what is true of one object is true of another of its sort.

A symmetry permutes objects of one sort (`schemas.sorts_of`) and maps the ground actions onto themselves. If the
instance is symmetric, a renamed trace is also a trace, so that few traces show much more. Names of actions alone do not
show whether it is: a symmetry is refused if the renamed traces contradict the given ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, permutations, product
from math import factorial, prod

import numpy as np

from statewise.strips.exact.windows import Windows
from statewise.strips.model.schemas import arguments, objects_by_sort
from statewise.strips.model.traces import Trace, Traces

MOST = 60
"""The largest number of symmetries that are used; if there are more, swaps of two objects and a random choice."""

Renaming = tuple[int, ...]
"""The number that each action is renamed to."""


@dataclass(frozen=True)
class Symmetric:
    """Traces with their renamed copies."""

    traces: Traces
    used: int
    """The number of symmetries used, without the identity."""
    refused: int
    """The number of symmetries that the traces contradict."""


def symmetries(actions: Sequence[str], most: int = MOST) -> list[Renaming]:
    """Renamings of the actions by permutations of objects of one sort, at most `most`, without the identity. Raises
    `ValueError` if a schema occurs with different numbers of arguments."""
    groups = objects_by_sort(actions)
    swaps = [dict(zip(pair, pair[::-1])) for group in groups for pair in combinations(group, 2)]
    if prod(factorial(len(group)) for group in groups) <= most:
        orders = product(*(list(permutations(group)) for group in groups))
        maps = [{old: new for group, order in zip(groups, each) for old, new in zip(group, order)} for each in orders]
    else:
        rng = np.random.default_rng(0)
        maps = swaps + [
            {old: new for group in groups for old, new in zip(group, rng.permutation(group).tolist())}
            for _ in range(most - len(swaps))
        ]
    number = {name: place for place, name in enumerate(actions)}
    renamings: dict[Renaming, None] = {}
    for each in maps:
        renamed = []
        for action in actions:
            schema, objects = arguments(action)
            renamed.append(number.get(" ".join((schema, *(each.get(name, name) for name in objects))), -1))
        if -1 not in renamed:
            renamings[tuple(renamed)] = None
    renamings.pop(tuple(range(len(actions))), None)
    return list(renamings)[:most]


def symmetric(traces: Traces) -> Symmetric:
    """The traces and their copies under each symmetry that they do not contradict: together with the renamed valid
    traces no negative ends in an action that is certainly valid. Raises `ValueError` without objects to permute."""
    able = symmetries(traces.actions)
    if not able:
        raise ValueError("--symmetry: no renaming of objects maps the actions onto themselves")
    rows: dict[Trace, int] = dict(zip(traces.rows, traces.labels))
    used = 0
    for renaming in able:
        renamed = {tuple(renaming[at] for at in row): label for row, label in zip(traces.rows, traces.labels)}
        more = {**rows, **renamed}
        windows = Windows.of(Traces(traces.actions, tuple(more), tuple(more.values())))
        if all(rows.get(row, label) == label for row, label in renamed.items()) and all(
            windows.new(row) for row, label in more.items() if label
        ):
            rows, used = more, used + 1
    return Symmetric(Traces(traces.actions, tuple(rows), tuple(rows.values())), used, len(able) - used)
