"""A model learned from a log that leaves arguments out, as a model of the actions of a known domain.

The domain's actions have their own arguments in their own order. Which of them a learned argument is follows from
states of the domain: the object that its definition determines is always the same argument of the action.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

from statewise.runtime.json_files import ANYTHING, COUNT, TEXT, Leaf, Shape, check, read_json
from statewise.strips.implicit.arguments import Argument, resolved
from statewise.strips.implicit.registers import Memory, Registers
from statewise.strips.implicit.terms import ANY, ASKED, Facts, Query
from statewise.strips.model.learned import read_schemas
from statewise.strips.model.model import ActionModel
from statewise.strips.model.schemas import LiftedModel, Schema, arguments, ground_model
from statewise.strips.model.states import State
from statewise.strips.trace_data.domains import Domain
from statewise.strips.trace_data.implicit_logs import named_arguments
from statewise.strips.trace_data.random_traces import traces

__all__ = ["compared_with"]

STATES = 300
"""The number of states of the domain in which arguments are compared."""
WALKS, LENGTH = 50, 30
"""The walks in which they are compared where they come from actions alone, and their most actions."""

_QUERY = Leaf(
    "a predicate, its places, and whether it is negated",
    lambda value: (
        isinstance(value, list)
        and len(value) == 3
        and isinstance(value[0], str)
        and isinstance(value[1], list)
        and value[1].count(ASKED) == 1
        and all(isinstance(at, int) and not isinstance(at, bool) and at >= ANY for at in value[1])
        and isinstance(value[2], bool)
    ),
)
IMPLICIT: Shape = {"shown": {...: COUNT}, "arguments": {...: [{"queries": [_QUERY], "needed_by": TEXT}]}}
"""What is read of `report["implicit"]`."""


def left_out(implicit: Mapping[str, Any], source: str = "report") -> tuple[dict[str, int], dict[str, list[Argument]]]:
    """The number of arguments that the log named, and those that it left out, of each schema, from
    `report["implicit"]`. Raises `ValueError` if it is damaged."""
    content = check(dict(implicit), IMPLICIT, f"{source}: its implicit arguments")
    found = {}
    for schema, some in content["arguments"].items():
        count = content["shown"].get(schema)
        if count is None:
            raise ValueError(f"{source}: damaged: the schema {schema!r} has no number of arguments")
        found[schema] = [
            Argument(tuple(Query(name, tuple(places), negated) for name, places, negated in each["queries"]), "")
            for each in some
        ]
        for at, each in enumerate(found[schema]):
            if not each.definition or max(place for query in each.definition for place in query.places) >= count + at:
                raise ValueError(f"{source}: damaged: argument {count + at + 1} of {schema!r} is not defined")
    return content["shown"], found


def compared_with(learned: str | Path | LiftedModel, domain: Domain | None) -> ActionModel | None:
    """Learned schemas, or those of a folder, as a model of the domain's ground actions, if the log left arguments out;
    None otherwise. `domain`: None if the model that they are compared with has no states of its own.

    Raises what `compared` raises, and `ValueError` without a domain if the log left arguments out: their order is that
    in which they were found, so only states show which arguments of the other model they are."""
    if isinstance(learned, LiftedModel):
        schemas, report, source = learned.schemas, learned.report, "report"
    else:
        path = Path(learned) / "report.json"
        read = read_schemas(learned)
        schemas, report, source = read or {}, read_json(path, {}) if read and path.is_file() else {}, str(path)
    if "implicit" not in report:
        return None
    implicit = check(report["implicit"], {}, f"{source}: its implicit arguments")
    if domain is not None:
        return compared(schemas, implicit, domain, source)
    some = check(implicit, {"arguments": {...: [ANYTHING]}}, f"{source}: its implicit arguments")["arguments"]
    if any(some.values()):
        raise ValueError(
            f"{source}: the log left arguments out, and only states show which arguments of other actions they are: "
            "compare by `strips verify` or `strips evaluate` --against a domain such as npuzzle:3x3, or "
            "DOMAIN.pddl,PROBLEM.pddl"
        )
    return None


def compared(
    schemas: Mapping[str, Schema], implicit: Mapping[str, Any], domain: Domain, source: str = "report"
) -> ActionModel:
    """The learned schemas as a model of the domain's ground actions; `implicit` is `report["implicit"]`.

    Raises `ValueError` if a schema is missing, if the states of the domain do not determine an argument, or if one is
    no argument of the domain's action."""
    model = domain.model
    if "registers" in implicit:
        places = _places_of_registers(implicit, domain, source)
    else:
        shown, some = left_out(implicit, source)
        places = {schema: _places(schema, each, shown, some) for schema, each in _occurrences(domain).items()}
    ground = []
    for name in model.names:
        schema, named = arguments(name)
        if schema not in schemas:
            raise ValueError(f"the log had no action {schema!r}, which {domain.name} has")
        if schema not in places:
            raise ValueError(f"no action {schema!r} is possible in {STATES} states of {domain.name}")
        ground.append((name, schemas[schema], tuple(named[at] for at in places[schema])))
    return ground_model(ground)


def _occurrences(domain: Domain) -> dict[str, list[tuple[tuple[str, ...], Facts]]]:
    """The objects of the actions of each schema that are applicable in some states, with these."""
    model = domain.model
    split: dict[str, tuple[str, ...]] = {}
    objects = _objects([*model.atoms, *domain.always])
    found: dict[str, list[tuple[tuple[str, ...], Facts]]] = {}
    for true in domain.some_states(STATES):
        facts = Facts(State(frozenset([*model.spelled(true), *domain.always])), objects, split)
        for name, action in zip(model.names, model.actions):
            if not action.pre & ~true:
                schema, named = arguments(name)
                found.setdefault(schema, []).append((named, facts))
    return found


def _places_of_registers(implicit: Mapping[str, Any], domain: Domain, source: str) -> dict[str, tuple[int, ...]]:
    """Which argument of the domain's action each learned argument is, where registers hold those that are left out."""
    shown = check(dict(implicit), {"shown": {...: COUNT}}, f"{source}: its implicit arguments")["shown"]
    registers = Registers.of_plain(shown, implicit["registers"], source)
    named = named_arguments(domain)
    found: dict[str, list[set[int]]] = {}
    walks = traces(domain, WALKS, LENGTH, 0, negatives=0.0, start="both")
    for row in walks.rows:
        memory = Memory(registers)
        for at in row:
            schema, objects = arguments(walks.actions[at])
            places = tuple(named.get(schema, range(len(objects))))
            if shown.get(schema) != len(places):
                raise ValueError(f"a log of {domain.name} names other arguments of {schema!r} than those learned")
            label = [objects[place] for place in places]
            every = memory.resolved(schema, label)
            memory.after(schema, label, every)
            if every is not None:
                equal = [{place for place, one in enumerate(objects) if one == value} for value in every]
                equal[: len(places)] = [{place} for place in places]
                before = found.get(schema, equal)
                found[schema] = [one & other for one, other in zip(before, equal)]
    chosen = {}
    for schema, each in found.items():
        distinct = _distinct(each)
        if distinct is None:
            raise _others(schema)
        chosen[schema] = distinct
    return chosen


def _others(schema: str, lacking: str = "") -> ValueError:
    """`lacking`: a predicate that determines an argument, and of which the domain's states have no atom."""
    why = "the domain does not determine them, or determines other objects"
    if lacking:
        why = f"its states have no atoms of {lacking!r}"
    return ValueError(
        f"the arguments that the log leaves out of {schema!r} are not those of the domain's {schema!r}: {why}"
    )


def _objects(atoms: Sequence[str]) -> dict[tuple[str, int], frozenset[str]]:
    """The objects that each place of a predicate can have."""
    found: dict[tuple[str, int], set[str]] = {}
    for name in atoms:
        predicate, named = arguments(name)
        for at, one in enumerate(named):
            found.setdefault((predicate, at), set()).add(one)
    return {key: frozenset(each) for key, each in found.items()}


def _places(
    schema: str,
    occurrences: Sequence[tuple[tuple[str, ...], Facts]],
    shown: Mapping[str, int],
    some: Mapping[str, Sequence[Argument]],
) -> tuple[int, ...]:
    """Which argument of the domain's action each learned argument is."""
    if schema not in shown:
        return ()
    arity, count = len(occurrences[0][0]), shown[schema]
    known = {
        (name, len(objects)) for _, facts in occurrences for name, atoms in facts.atoms.items() for objects in atoms
    }
    for query in (query for each in some.get(schema, ()) for query in each.definition):
        if (query.predicate, len(query.places)) not in known:
            raise _others(schema, query.predicate)
    for named in permutations(range(arity), count):
        found: list[set[int]] | None = None
        for objects, facts in occurrences:
            values = resolved(facts, [objects[at] for at in named], some.get(schema, ()))
            if values is None:
                found = None
                break
            equal = [{at for at, one in enumerate(objects) if one == value} for value in values]
            found = equal if found is None else [one & other for one, other in zip(found, equal)]
            if not all(found):
                break
        if found and (chosen := _distinct([{at} for at in named] + found[count:])) is not None:
            return chosen
        if found == []:
            return ()
    raise _others(schema)


def _distinct(choices: Sequence[set[int]]) -> tuple[int, ...] | None:
    """One of each set, all different; None if there is no such choice."""
    if not choices:
        return ()
    for one in sorted(choices[0]):
        rest = _distinct([each - {one} for each in choices[1:]])
        if rest is not None:
            return (one, *rest)
    return None
