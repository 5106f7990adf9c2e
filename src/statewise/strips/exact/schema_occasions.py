"""Where the literals of a schema are known to be false, over all of its ground actions.

Whether a ground action may happen depends on its literals alone, so those of all ground actions of a schema are
evidence about the same preconditions. The occasions of a schema are the positions of the traces, each once with every
one of its ground actions; equal ones, by the literals known to be false, once with their number."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from statewise.strips.exact.preconditions import Occasions, distinct, known_false, transposed
from statewise.strips.exact.predicates import Predicate, ground_entries, grounded
from statewise.strips.model.schemas import arguments
from statewise.strips.trace_data.random_traces import Traces

BLOCK = 2048
"""The number of states that are unpacked at once."""
NO_PLACES = np.zeros(0, dtype=np.int64)

Literals = list[tuple[int, int]]
"""What a schema may require: the number of a predicate, and one of its slots."""


def schema_occasions(
    predicates: Sequence[Predicate], traces: Traces, going_on: Callable[[], bool] = lambda: True
) -> Iterator[tuple[Literals, Occasions]]:
    """For each schema that some predicate can be required by, its literals and their occasions: action 0 of these is
    any ground action of the schema, action 1 all others. Once `going_on()` says no, the traces' beginnings alone are
    read."""
    actions = traces.actions
    heads, _ = grounded(predicates, actions)
    at_action: dict[int, dict[tuple[int, int], int]] = {}
    for each in ground_entries(predicates, actions):
        if each.role == 0:
            at_action.setdefault(each.action, {})[each.owner, each.slot] = each.head
    act, end, known = known_false(traces, heads.delete.T, heads.add.T, going_on)
    first, place = distinct(known)
    valid = np.bincount(place[~end], minlength=len(first))
    by_schema: dict[str, list[int]] = {}
    for number, action in enumerate(actions):
        if number in at_action:
            by_schema.setdefault(arguments(action)[0], []).append(number)
    for mine in by_schema.values():
        literals = sorted(at_action[mine[0]])
        head = np.array([[at_action[number][literal] for literal in literals] for number in mine])  # [G, L]
        rows, where = distinct_rows(known[first], head)
        numbered = np.full(len(actions), -1)
        numbered[mine] = np.arange(len(mine))
        among = numbered[act]
        happens, fails = ((among >= 0) & which for which in (~end, end))
        occurs = where[place[happens], among[happens]]
        count = len(occurs)
        yield (
            literals,
            Occasions(
                transposed(rows)[: len(literals)],
                np.bincount(where.ravel(), np.repeat(valid, len(mine)), minlength=len(rows)).astype(np.int64),
                np.array([count, int((~end).sum()) - count]),
                [np.unique(where[place[fails], among[fails]]), NO_PLACES],
                [np.unique(occurs, return_counts=True), (NO_PLACES, NO_PLACES)],
            ),
        )


def distinct_rows(known: np.ndarray, head: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which of the heads `head` [G, L] of G actions are known to be false in the states `known` [S, ceil(H / 8)], as
    packed bits: [U, ceil(L / 8)] the distinct rows, and [S, G] the row of each state and action."""
    rows = np.concatenate(
        [
            np.packbits(np.unpackbits(known[begin : begin + BLOCK], axis=1)[:, head], axis=2)
            for begin in range(0, len(known), BLOCK)
        ]
    )
    flat = rows.reshape(-1, rows.shape[2])
    first, where = distinct(flat)
    return flat[first], where.reshape(rows.shape[:2])
