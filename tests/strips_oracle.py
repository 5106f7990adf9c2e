"""Brute force over all atoms of a few actions, straight from the definitions."""

from itertools import product

from hypothesis import strategies as st

from statewise.strips.model.traces import Traces

ACTIONS = ("a", "b", "c")
NONE, ADDS, DELETES = range(3)


@st.composite
def some_traces(draw, actions=3, labels=True):
    numbers = st.integers(0, actions - 1)
    rows = draw(st.lists(st.lists(numbers, min_size=1, max_size=7).map(tuple), min_size=1, max_size=8))
    named = tuple("abcdefgh"[:actions])
    return Traces(named, tuple(rows), tuple(draw(st.integers(0, 1)) if labels else 0 for _ in rows))


def effects(actions):
    """All effects (D, H) of an atom, as bits."""
    for each in product((NONE, ADDS, DELETES), repeat=actions):
        yield (
            sum(1 << a for a in range(actions) if each[a] == DELETES),
            sum(1 << a for a in range(actions) if each[a] == ADDS),
        )


def false_before(row, delete, add):
    """Whether the atom is known to be false before each action, and after the last."""
    false, found = False, []
    for action in row:
        found.append(false)
        false = bool(delete >> action & 1) or (false and not add >> action & 1)
    return [*found, false]


def valid(traces):
    return [row[: len(row) - label] for row, label in zip(traces.rows, traces.labels)]


def can_require(traces, delete, add):
    """The actions that never occur in the valid traces while the atom is known to be false."""
    wrong = 0
    for row in valid(traces):
        for action, false in zip(row, false_before(row, delete, add)):
            wrong |= false << action
    return ~wrong & (1 << len(traces.actions)) - 1


def alternates(traces, delete, add):
    """Whether no valid action deletes what is known false or adds what is known true."""
    return not delete & ~can_require(traces, delete, add) and not add & ~can_require(traces, add, delete)
