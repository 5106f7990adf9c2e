"""Logs of known domains with observed states, and without the arguments that the states determine."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from statewise.runtime.durable import write_atomically
from statewise.strips.model.model import Atoms
from statewise.strips.model.schemas import arguments
from statewise.strips.model.states import Observed, State
from statewise.strips.model.traces import Traces
from statewise.strips.trace_data.domains import FAMILIES, Domain
from statewise.strips.trace_data.random_traces import begin_states


def named_arguments(domain: Domain) -> Mapping[str, tuple[int, ...]]:
    """The arguments, from 0, that a log of the domain names if it leaves out those that the state determines, of each
    schema that has such. Raises `ValueError` if this is not known of the domain."""
    family = FAMILIES.get(domain.name.partition(":")[0])
    if family is None or not family.named:
        known = ", ".join(name for name, each in FAMILIES.items() if each.named)
        raise ValueError(f"which arguments are implicit is not known of {domain.name}, only of {known}")
    return family.named


def without_implicit(action: str, named: Mapping[str, Sequence[int]]) -> str:
    """The name of a ground action in a log that names only some of its arguments."""
    schema, objects = arguments(action)
    return " ".join((schema, *(objects[at] for at in named.get(schema, range(len(objects))))))


def implicit_log(observed: Observed, named: Mapping[str, Sequence[int]]) -> Observed:
    """A log of valid actions without the arguments that are not `named`, with the same states."""
    labels = [without_implicit(action, named) for action in observed.traces.actions]
    names = sorted(set(labels))
    number = {name: at for at, name in enumerate(names)}
    rows = tuple(tuple(number[labels[at]] for at in row) for row in observed.traces.rows)
    return Observed(Traces(tuple(names), rows, observed.traces.labels), observed.states, observed.complete)


def with_states(domain: Domain, traces: Traces, predicates: Collection[str] | None = None) -> Observed:
    """Traces that `traces` drew from the domain, with their full states, of these predicates (default: all).

    A trace begins in the first state in which `traces` lets walks begin that allows its valid actions. Raises
    `ValueError` for a predicate that the domain lacks, and for a trace that begins in none of these states."""
    model = domain.model
    known = {arguments(atom)[0] for atom in model.atoms}
    for name in predicates or ():
        if name not in known:
            raise ValueError(f"{domain.name} has no predicate {name!r}; it has {', '.join(sorted(known))}")
    kept = known if predicates is None else {*predicates}
    atoms = [(1 << at, atom) for at, atom in enumerate(model.atoms) if arguments(atom)[0] in kept]
    states: dict[Atoms, State] = {}

    def state_of(true: Atoms) -> State:
        if true not in states:
            states[true] = State(frozenset(atom for bit, atom in atoms if true & bit))
        return states[true]

    traces = traces.with_actions(model.names)
    begins = [*domain.start, *begin_states(domain, "all")]
    found = []
    for place in range(len(traces)):
        walk = next((walk for begin in begins if (walk := _walk(domain, begin, traces.valid(place)))), None)
        if walk is None:
            raise ValueError(f"{traces.where(place)} is not valid in any state where walks of {domain.name} begin")
        found.append((*map(state_of, walk), *[None] * traces.labels[place]))
    return Observed(traces, tuple(found), frozenset(kept))


def _walk(domain: Domain, state: Atoms, row: Sequence[int]) -> list[Atoms] | None:
    """The states of a walk, or None if one of its actions is not applicable."""
    walk = [state]
    for number in row:
        action = domain.model.actions[number]
        if action.pre & ~state:
            return None
        state = (state | action.add) & ~action.delete
        walk.append(state)
    return walk


def write_observed(observed: Observed, path: str | Path) -> None:
    """Writes traces with their states as JSON lines, which `read_observed` reads."""
    path = Path(path)
    lines = [
        json.dumps(
            {
                "actions": [observed.traces.actions[at] for at in row],
                "states": [None if state is None else sorted(state.true) for state in states],
                "label": label,
            }
        )
        for row, label, states in zip(observed.traces.rows, observed.traces.labels, observed.states)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, "".join(line + "\n" for line in lines).encode())
