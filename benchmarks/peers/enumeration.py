"""A baseline without training: tries every possible atom and keeps those consistent with the positive traces.

This is the idea of SIFT (Gösgens, Jansen and Geffner, 2024) for actions without parameters. An atom is defined by the
actions that add it and those that delete it; n actions give 3^n candidates. Each becomes a precondition of every action
that never occurs while the atom is known to be false: the strictest choice that rejects no positive trace. The model of
all candidates is therefore the strictest of its kind. It never accepts what the domain rejects if the domain's own
atoms are among the candidates. With few traces it rejects too much, and it always rejects what no walk from a real
state contains.

Only positive traces are read, and negative ones without their last action.
"""

from __future__ import annotations

import numpy as np

from statewise.strips.model.model import Action, ActionModel
from statewise.strips.model.traces import Trace, Traces

MOST_ACTIONS = 12
"""3^12 = 531,441 candidates; each further action triples the time."""

NONE, ADDS, DELETES = range(3)
"""An action's effect on a candidate: a base-3 digit of the candidate's number; action 0 is the most significant."""


def enumerate_features(traces: Traces, *, alternating: bool = False) -> ActionModel:
    """The model of all candidate atoms that are consistent with the positive traces and not redundant.

    A candidate is consistent if no action deletes it while it is known to be false, as in a domain whose actions delete
    only their preconditions. With `alternating` no action may add it while it is known to be true either, so that its
    add and delete effects alternate in every trace: the test of SIFT. This leaves far fewer candidates that hold by
    chance, and misses atoms that a domain adds twice, such as r of `simple`. Candidates that another one makes
    redundant are left out. Raises `ValueError` with more than `MOST_ACTIONS` actions.
    """
    count = len(traces.actions)
    if count > MOST_ACTIONS:
        raise ValueError(
            f"{count} actions make 3^{count} = {3**count:,} candidate atoms; "
            f"at most {MOST_ACTIONS} actions can be enumerated"
        )
    required, bad = _tested(_positive(traces), count, alternating)
    good = ~bad & (required != 0)
    shape = (3,) * count
    kept = good & ~_redundant(good.reshape(shape), required.reshape(shape)).ravel()
    chosen = np.flatnonzero(kept)
    actions = []
    for number, name in enumerate(traces.actions):
        digits = _digit(chosen, number, count)
        columns = (required[chosen] >> number & 1 == 1, digits == ADDS, digits == DELETES)
        actions.append(Action(name, *(_as_int(column) for column in columns)))
    return ActionModel(tuple(f"p{place}" for place in range(len(chosen))), tuple(actions))


def _positive(traces: Traces) -> list[Trace]:
    """The positive traces and prefixes, except those that are prefixes of others."""
    rows = sorted({row[: len(row) - label] for row, label in zip(traces.rows, traces.labels)})
    return [row for row, after in zip(rows, [*rows[1:], ()]) if after[: len(row)] != row]


def _tested(rows: list[Trace], count: int, alternating: bool) -> tuple[np.ndarray, np.ndarray]:
    """For each candidate [3^n] the actions that never occur while it is known false, as bits, and whether it is
    inconsistent. Runs all candidates through the traces at once, as bits of long integers."""
    numbers = np.arange(3**count)
    adds = [_as_int(_digit(numbers, action, count) == ADDS) for action in range(count)]
    deletes = [_as_int(_digit(numbers, action, count) == DELETES) for action in range(count)]
    seen_false = [0] * count
    wrong = 0
    for row in rows:
        known_false = known_true = 0
        for action in row:
            seen_false[action] |= known_false
            wrong |= known_false & deletes[action]
            known_false = known_false & ~adds[action] | deletes[action]
            if alternating:
                wrong |= known_true & adds[action]
                known_true = known_true & ~deletes[action] | adds[action]
    required = np.zeros(len(numbers), dtype=np.int64)
    nothing_deleted = np.ones(len(numbers), dtype=bool)
    for action in range(count):
        required |= (~_as_bools(seen_false[action], len(numbers))).astype(np.int64) << action
        nothing_deleted &= _digit(numbers, action, count) != DELETES
    return required, _as_bools(wrong, len(numbers)) | nothing_deleted


def _redundant(good: np.ndarray, required: np.ndarray) -> np.ndarray:
    """Which candidates [3, ..., 3] are redundant: another good one is false more often and required by as many actions.

    An atom that fewer actions add, or more delete, is false whenever this one is, hence required by no more actions.
    Where the same actions require it, they also require every candidate between the two, so checking the candidates
    one step away is enough.
    """
    out = np.zeros_like(good)
    for axis in range(good.ndim):
        at = [np.moveaxis(array, axis, 0) for array in (good, required, out)]
        for weaker, stronger in ((ADDS, NONE), (NONE, DELETES), (ADDS, DELETES)):
            at[2][weaker] |= at[0][stronger] & (at[1][stronger] == at[1][weaker])
    return out


def _digit(numbers: np.ndarray, action: int, count: int) -> np.ndarray:
    return numbers // 3 ** (count - 1 - action) % 3


def _as_int(flags: np.ndarray) -> int:
    return int.from_bytes(np.packbits(flags, bitorder="little").tobytes(), "little")


def _as_bools(number: int, count: int) -> np.ndarray:
    packed = np.frombuffer(number.to_bytes(-(-count // 8), "little"), dtype=np.uint8)
    return np.unpackbits(packed, count=count, bitorder="little").astype(bool)
