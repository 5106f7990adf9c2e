"""What a PDDL domain declares, without what its actions require and change; and a domain with other schemas for them.

A learner that is given a domain for its names reads only this: types, constants, predicates, and the parameters of
actions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from statewise.strips.model.schemas import Literal, Schema
from statewise.strips.pddl.parsing import ROOT, Group, _spelled, _Text, _Types
from statewise.strips.trace_data.trace_files import text_of


@dataclass(frozen=True)
class Declared:
    """The declarations of a domain."""

    name: str
    header: tuple[str, ...]
    """Requirements, types, constants and predicates, as text."""
    constants: tuple[str, ...]
    predicates: Mapping[str, int]
    """The number of arguments of each predicate."""
    actions: Mapping[str, tuple[tuple[str, str], ...]]
    """The parameters of each action: name and type (`either` types as text)."""
    argument_types: Mapping[str, tuple[frozenset[str], ...]]
    """The types of the arguments of each predicate, with all types below them."""
    parameter_types: Mapping[str, tuple[frozenset[str], ...]]
    """The types of the parameters of each action, with all types below them."""

    def fits(self, schema: str, literal: Literal) -> bool:
        """Whether the parameters of an action can be the arguments of a predicate; unknown names fit."""
        wanted, given = self.argument_types.get(literal[0]), self.parameter_types.get(schema)
        if wanted is None or given is None:
            return True
        return len(wanted) == len(literal[1]) and all(
            at >= len(given) or bool(given[at] & types) for at, types in zip(literal[1], wanted)
        )


def read_declared(path: str | Path) -> Declared:
    """Reads the declarations of a PDDL domain. Raises `ValueError` with file and line."""
    path = Path(path)
    try:
        text = _Text(path, text_of(path))
        return _declared(text)
    except RecursionError:
        raise ValueError(f"{path}: nested too deeply to be read") from None


def _declared(text: _Text) -> Declared:
    if not text.holds("domain"):
        text.fail(text.whole, "this is not a domain, whose names are needed")
    types = _Types(text)
    for section in text.sections(":types"):
        types.declare(section)
    below = {
        name: frozenset(each for each in types.parents if name in types.above(frozenset({each})))
        for name in types.parents
    }

    def under(of: frozenset[str]) -> frozenset[str]:
        return frozenset().union(*(below[each] for each in of))

    constants = tuple(
        str(word) for section in text.sections(":constants") for word, _ in types.typed(text, section[1:])
    )
    argument_types = {}
    for section in text.sections(":predicates"):
        for each in section[1:]:
            group = text.group(each, "a predicate with its arguments")
            typed = types.typed(text, group[1:])
            argument_types[str(group[0])] = tuple(under(of) for _, of in typed)
    actions: dict[str, tuple[tuple[str, str], ...]] = {}
    parameter_types = {}
    for section in text.sections(":action"):
        if len(section) < 2:
            text.fail(section, "an action without a name")
        name = str(text.word(section[1], "an action's name"))
        parameters = next((value for key, value in zip(section[2::2], section[3::2]) if key == ":parameters"), Group())
        if not isinstance(parameters, Group):
            text.fail(section, "cannot be read as PDDL: parameters are a list in parentheses")
        typed = types.typed(text, parameters)
        actions[name] = tuple((str(word), _type_text(of)) for word, of in typed)
        parameter_types[name] = tuple(under(of) for _, of in typed)
    header = [
        _spelled(section)
        for section in text.whole[1:]
        if isinstance(section, Group) and section[0] in (":requirements", ":types", ":constants", ":predicates")
    ]
    name = str(text.whole[1][1]) if len(text.whole[1]) > 1 else "domain"
    return Declared(
        name,
        tuple(header),
        constants,
        {each: len(of) for each, of in argument_types.items()},
        actions,
        argument_types,
        parameter_types,
    )


def _type_text(types: frozenset[str]) -> str:
    return min(types) if len(types) == 1 else f"(either {' '.join(sorted(types))})"


def domain_text(declared: Declared, schemas: Mapping[str, Schema]) -> str:
    """The text of the declared domain with these schemas; an action without a schema is left out, since nothing is
    known about it. Literals name predicates of the domain."""
    return "\n".join([f"(define (domain {declared.name})", *declared.header, *_actions(declared, schemas), ")", ""])


def _actions(declared: Declared, schemas: Mapping[str, Schema]) -> Iterator[str]:
    for name, parameters in declared.actions.items():
        schema = schemas.get(name)
        if schema is None:
            continue
        terms = [*(each for each, _ in parameters), *schema.constants]
        typed = " ".join(each if of == ROOT else f"{each} - {of}" for each, of in parameters)
        pre, add, delete = (
            [f"({' '.join((predicate, *(terms[at] for at in places)))})" for predicate, places in sorted(part)]
            for part in schema.parts
        )
        yield (
            f"(:action {name}\n :parameters ({typed})\n :precondition (and {' '.join(pre)})\n"
            f" :effect (and {' '.join([*add, *(f'(not {each})' for each in delete)])}))"
        )
