"""Predicates that say that nothing is there: `no-at x` is true if no atom `at _ x` is.

A log of the sliding tile that shows where the tiles are says so which cell is empty, but STRIPS needs a predicate for
it. Where at most one atom at a time has an object at its place, such a predicate is a STRIPS predicate as well: what
adds the atom deletes it, and the other way round.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from itertools import pairwise
from typing import NamedTuple

from statewise.strips.model.schemas import arguments
from statewise.strips.model.states import Observed, State
from statewise.strips.observed.learning import bounds_of


class Absence(NamedTuple):
    """A predicate of one argument, true of an object if no atom of another predicate has it at one of its places."""

    name: str
    predicate: str
    place: int


def absences(observed: Observed) -> list[Absence]:
    """The absences that the states explain as STRIPS predicates: of predicates that are complete, change, and have at
    most one atom at a time with an object at the place."""
    found = []
    changing = _changing(observed)
    taken = set(observed.predicates)
    for predicate, arity in observed.predicates.items():
        for place in range(arity) if arity > 1 and predicate in changing & observed.complete else ():
            counts = [
                Counter(atom[place] for atom in _atoms(state, predicate))
                for states in observed.states
                for state in states
                if state
            ]
            if any(most > 1 for each in counts for most in each.values()):
                continue
            name = f"no-{predicate}" if arity == 2 and place == 1 else f"no-{predicate}-{place + 1}"
            while name in taken:
                name = f"not-{name}"
            taken.add(name)
            one = Absence(name, predicate, place)
            try:
                bounds_of(_only(with_absences(observed, [one]), name))
            except ValueError:
                continue
            found.append(one)
    return found


def with_absences(observed: Observed, some: Collection[Absence]) -> Observed:
    """The same traces, with atoms of absences in their states."""
    if not some:
        return observed
    states = []
    for place, row in enumerate(observed.traces.rows):
        named = {one for at in row for one in arguments(observed.traces.actions[at])[1]}
        there: dict[Absence, set[str]] = {each: set() for each in some}
        for each, objects in there.items():
            for state in observed.states[place]:
                objects.update(atom[each.place] for atom in _atoms(state, each.predicate))
        objects_of = {each: _of_sort(observed, each) & (named | there[each]) for each in some}
        states.append(tuple(state and _extended(state, objects_of) for state in observed.states[place]))
    return Observed(observed.traces, tuple(states), observed.complete | {each.name for each in some})


def _extended(state: State, objects_of: dict[Absence, set[str]]) -> State:
    more = {
        f"{each.name} {one}"
        for each, objects in objects_of.items()
        for one in objects - {atom[each.place] for atom in _atoms(state, each.predicate)}
    }
    return State(state.true | more, state.false)


def _of_sort(observed: Observed, one: Absence) -> set[str]:
    """The objects that occur at the place of an absence in any state."""
    return {atom[one.place] for states in observed.states for state in states for atom in _atoms(state, one.predicate)}


def _only(observed: Observed, predicate: str) -> Observed:
    """The same traces, whose states show only one predicate."""

    def kept(part: frozenset[str]) -> frozenset[str]:
        return frozenset(atom for atom in part if atom.split()[0] == predicate)

    states = tuple(tuple(each and State(kept(each.true), kept(each.false)) for each in of) for of in observed.states)
    return Observed(observed.traces, states, observed.complete & {predicate})


def _atoms(state: State | None, predicate: str) -> list[tuple[str, ...]]:
    """The objects of the true atoms of a predicate."""
    if state is None:
        return []
    split = (name.split() for name in state.true if name.startswith(predicate))
    return [tuple(words[1:]) for words in split if words[0] == predicate]


def _changing(observed: Observed) -> frozenset[str]:
    """The predicates of which an atom changes."""
    return frozenset(
        name.split()[0]
        for states in observed.states
        for one, other in pairwise(states)
        if one is not None and other is not None
        for name in one.true ^ other.true
    )
