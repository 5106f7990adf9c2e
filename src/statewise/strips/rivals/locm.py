"""LOCM (Cresswell, McCluskey and West, 2009), for comparison: state machines of objects, from valid traces only.

All objects of a sort follow one machine. Its *transitions* are the places of actions: what `board` does to its first
argument is one. If an object goes through one transition and then through another, the first one ends in the state in
which the second one starts; states are the classes of these equations. The actions themselves, without arguments, have
such a machine, too, which is left out if it has one state. A state has a *parameter*, such as the port of a waiting
car, if the transition into it and the next one out of it always name the same object in the same two places.

Corrections, where the original leaves a case open or implementations are wrong (macq 0.3.11):

- A parameter is kept if every transition into the state sets it, each at one place, every transition out of it reads it
  at one place, and set and read objects are equal at all occasions, not only where two hypotheses were joined.
- Literals keep the places of their arguments, so that two arguments of an action can be in the same state, and an
  action that changes only a parameter has an effect.
- An object is in one state at a time. Schemas express this by a predicate *not in this state* for each state, which
  transitions from all other states require. Under Definition 1 an atom that was never affected may be true, so without
  this predicate an object could be in several states.

LOCM cannot find conditions that never change, such as which place is next to which; an aspect of an object that
changes independently of another one, since both are in one machine (LOCM2 splits it); and what actions without
arguments do, apart from their order."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar, Unpack

from statewise.strips.exact.frame import Options, Work
from statewise.strips.model.schemas import LiftedModel, Schema, arguments, schemas_from_literals, sorts_of
from statewise.strips.model.traces import Traces

T = TypeVar("T", bound=Hashable)
Transition = tuple[str, int]
"""A schema, and the place of the object in its arguments; -1 for the action itself."""
Event = tuple[Transition, tuple[str, ...]]
"""A transition, and all objects of the action."""
Places = frozenset[tuple[int, int]]
"""Pairs of argument places, of one transition and of the next one, that hold the same object."""


@dataclass(frozen=True)
class Parameter:
    """A parameter of a state."""

    state: int
    sets: dict[Transition, int]
    """The place of its value in each transition into the state."""
    reads: dict[Transition, int]
    """The place of its value in each transition out of the state."""


@dataclass(frozen=True)
class Machine:
    """The machine of a sort."""

    ends: dict[Transition, tuple[int, int]]
    """The states in which each transition starts and ends, numbered from 0."""
    parameters: tuple[Parameter, ...]
    flawed: int
    """The number of supposed parameters that were dropped."""

    @property
    def states(self) -> int:
        """The number of states."""
        return 1 + max(max(pair) for pair in self.ends.values())


def learn_locm(traces: Traces, **options: Unpack[Options]) -> LiftedModel:
    """Learns action schemas from the valid actions of `traces`, written `schema object object`. It takes milliseconds,
    so the time limit is ignored. Raises `ValueError` if a schema occurs with different numbers of arguments, or if an
    action names an object twice."""
    work = Work("locm", traces, **options)
    learned = machines(traces)
    schemas = as_schemas(learned, traces.actions)
    return work.lifted(
        schemas,
        {
            "machines": [
                {"states": each.states, "parameters": len(each.parameters), "flawed": each.flawed} for each in learned
            ],
            "predicates": len({predicate for schema in schemas.values() for predicate, _ in schema.pre}),
        },
    )


def machines(traces: Traces) -> list[Machine]:
    """The machine of the actions themselves, if it has several states, then the machine of each sort, in the order of
    their numbers."""
    parameters, _ = sorts_of(traces.actions)
    sort_of: dict[Transition, int] = {(schema, -1): -1 for schema in {arguments(name)[0] for name in traces.actions}}
    sort_of.update(parameters)
    first: dict[int, dict[Transition, None]] = {}
    agreed: dict[int, dict[tuple[Transition, Transition], Places]] = {}
    for history in histories(traces):
        sort = sort_of[history[0][0]]
        first.setdefault(sort, {}).update((transition, None) for transition, _ in history)
        of_sort = agreed.setdefault(sort, {})
        for (before, objects), (after, other) in pairwise(history):
            same = frozenset(
                (i, j)
                for i, name in enumerate(objects)
                for j, again in enumerate(other)
                if name == again and i != before[1] and j != after[1]
            )
            of_sort[before, after] = of_sort.get((before, after), same) & same
    of_sorts = [(sort, _machine(sorted(first[sort]), agreed[sort])) for sort in sorted(first)]
    return [machine for sort, machine in of_sorts if sort >= 0 or machine.states > 1]


def histories(traces: Traces) -> Iterator[list[Event]]:
    """For each trace the events of each object, and of the actions themselves. Raises `ValueError` if an action names
    an object twice."""
    for place in range(len(traces)):
        mine: dict[str, list[Event]] = {}
        for action in traces.valid(place):
            schema, objects = arguments(traces.actions[action])
            if len(set(objects)) < len(objects):
                raise ValueError(
                    f"{traces.where(place)}: {traces.actions[action]!r} names an object twice: LOCM does not define "
                    "the order of its transitions. Learn with `method` exact"
                )
            for at, name in enumerate(("", *objects)):
                mine.setdefault(name, []).append(((schema, at - 1), objects))
        yield from mine.values()


def _machine(transitions: list[Transition], agreed: dict[tuple[Transition, Transition], Places]) -> Machine:
    joined = _classes(
        [(each, end) for each in transitions for end in (0, 1)], (((before, 1), (after, 0)) for before, after in agreed)
    )
    ends = {each: (joined[each, 0], joined[each, 1]) for each in transitions}
    places = [
        (each, end, at)
        for pair, same in agreed.items()
        for pair_of in same
        for each, end, at in zip(pair, (1, 0), pair_of)
    ]
    supposed = _classes(
        sorted(set(places)),
        (((before, 1, i), (after, 0, j)) for (before, after), same in agreed.items() for i, j in same),
    )
    kept: list[Parameter] = []
    number = len(set(supposed.values()))
    for one in range(number):
        mine = [(each, end, at) for (each, end, at), of in supposed.items() if of == one]
        state = ends[mine[0][0]][mine[0][1]]
        sets, reads = ({each: at for each, which, at in mine if which == end} for end in (1, 0))
        if (
            len(sets) + len(reads) == len(mine)
            and sets.keys() == {each for each in transitions if ends[each][1] == state}
            and reads.keys() == {each for each in transitions if ends[each][0] == state}
            and all(
                (sets[before], reads[after]) in same
                for (before, after), same in agreed.items()
                if before in sets and after in reads
            )
        ):
            kept.append(Parameter(state, sets, reads))
    return Machine(ends, tuple(kept), number - len(kept))


def _classes(of: Iterable[T], equal: Iterable[tuple[T, T]]) -> dict[T, int]:
    """The number of the class of each element, from 0, where `equal` lists pairs of equal elements."""
    members = {each: [each] for each in of}
    for one, other in equal:
        if members[one] is not members[other]:
            members[one].extend(members[other])
            for each in members[other]:
                members[each] = members[one]
    number: dict[int, int] = {}
    return {each: number.setdefault(id(together), len(number)) for each, together in members.items()}


def as_schemas(machines: Iterable[Machine], actions: Iterable[str]) -> dict[str, Schema]:
    """The action schemas, with the predicates named p0, p1, ...: for each machine its states, with more than two states
    also that an object is not in a state, and the parameters. Predicates that cannot reject an action are left out."""
    able = [parts for machine in machines for parts in predicates(machine) if parts[0] and parts[2]]
    literals = (
        (schema, part, (f"p{number}", places))
        for number, parts in enumerate(able)
        for part, slots in enumerate(parts)
        for schema, places in slots
    )
    return schemas_from_literals(actions, literals)


Slots = set[tuple[str, tuple[int, ...]]]
"""Schemas, each with the argument at each place of a predicate."""


def predicates(machine: Machine) -> Iterator[tuple[Slots, Slots, Slots]]:
    """The predicates of a machine, each as the slots that require, add and delete it."""

    def own(each: Transition, *more: int) -> tuple[str, tuple[int, ...]]:
        return each[0], (*((each[1],) if each[1] >= 0 else ()), *more)

    for state in range(machine.states):
        inside = {own(each) for each, (start, _) in machine.ends.items() if start == state}
        enters = {own(each) for each, (start, end) in machine.ends.items() if end == state != start}
        leaves = {own(each) for each, (start, end) in machine.ends.items() if start == state != end}
        yield inside, enters, leaves
        if machine.states > 2:
            yield {own(each) for each in machine.ends} - inside, leaves, enters
    for each in machine.parameters:
        reads = {own(transition, place) for transition, place in each.reads.items()}
        setting = {own(transition, place) for transition, place in each.sets.items()}
        yield reads, setting - reads, reads - setting
