"""Lifted action models: schemas whose literals refer to the arguments of the action by position, and their
grounding."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from statewise.reporting.tables import narrowed, widened
from statewise.runtime.messages import counted
from statewise.strips.model.model import ActionModel

PAGE = 100
"""Default width of text in characters."""

Literal = tuple[str, tuple[int, ...]]
"""A predicate, and the action's argument (from 0) at each of its places."""


@dataclass(frozen=True)
class Schema:
    """The preconditions, adds and deletes of an action schema."""

    pre: frozenset[Literal]
    add: frozenset[Literal]
    delete: frozenset[Literal]


def schema_lines(schemas: Mapping[str, Schema], width: int = PAGE) -> list[str]:
    """Schemas as lines of at most `width` characters, where names allow it, with arguments `x1 x2 ...`."""
    lines = []
    for name, schema in schemas.items():
        parts = [
            (title, [" ".join((predicate, *(f"x{at + 1}" for at in places))) for predicate, places in sorted(literals)])
            for title, literals in (("pre", schema.pre), ("add", schema.add), ("del", schema.delete))
        ]
        lines += literal_lines(name, parts, width)
    return lines


def arguments(action: str) -> tuple[str, tuple[str, ...]]:
    """Schema and objects of a ground action written `schema object object`."""
    schema, *objects = action.split()
    return schema, tuple(objects)


def ground(schemas: Mapping[str, Schema], actions: Sequence[str]) -> ActionModel:
    """The action model over the ground `actions`, each named `schema object object`.

    Atoms are in order of first occurrence. An action of an unknown schema requires and changes nothing, so it is never
    rejected: nothing was learned about it. Raises `ValueError` if a schema uses an argument that an
    action does not have.
    """
    nothing = Schema(frozenset(), frozenset(), frozenset())
    atoms: dict[str, None] = {}
    effects = {}
    for action in actions:
        name, objects = arguments(action)
        schema = schemas.get(name, nothing)
        sets = []
        for literals in (schema.pre, schema.add, schema.delete):
            try:
                named = [
                    " ".join((predicate, *(objects[at] for at in places))) for predicate, places in sorted(literals)
                ]
            except IndexError:
                raise ValueError(
                    f"{action!r} has {counted(len(objects), 'argument')}, fewer than its schema uses"
                ) from None
            atoms.update(dict.fromkeys(named))
            sets.append(named)
        effects[action] = (sets[0], sets[1], sets[2])
    return ActionModel.of(list(atoms), effects)


def wrapped(before: str, names: Sequence[str], width: int, indent: int = 0) -> list[str]:
    """`before` and the names, separated by commas, as lines of at most `width` characters if no name is longer. Lines
    break only between names, though names hold spaces; all lines but the first are indented."""
    blank = "\N{NO-BREAK SPACE}"
    text = before.replace(" ", blank) + ", ".join(name.replace(" ", blank) for name in names)
    lines = textwrap.wrap(
        widened(text),
        max(width, indent + 1),
        break_long_words=False,
        break_on_hyphens=False,
        subsequent_indent=" " * indent,
    )
    return [narrowed(line).replace(blank, " ") for line in lines]


def literal_lines(name: str, parts: Sequence[tuple[str, Sequence[str]]], width: int) -> list[str]:
    """The name of an action, and below it a line each for what it requires, adds and deletes."""
    return [
        name,
        *(
            line
            for title, names in parts
            for line in wrapped(f"  {title}  ", list(names) or ["-"], width, len(title) + 4)
        ),
    ]
