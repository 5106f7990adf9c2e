"""Lifted action models: schemas, their grounding, and the sorts of their arguments.

The literals of a schema refer to the arguments of the action by position. Objects that occur at the same argument of
the same schema have the same sort. A signature also says which arguments were the same object in training: ground
actions over other objects are left out if they have other arguments equal.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import Any

from statewise.reporting.tables import narrowed, widened
from statewise.runtime.messages import counted
from statewise.strips.model.model import MOST_ACTIONS, ActionModel

PAGE = 100
"""Default width of text in characters."""

ANY_SORT = -1
"""The sort of an argument of a predicate that can be objects of several sorts."""

Literal = tuple[str, tuple[int, ...]]
"""A predicate, and the action's argument (from 0) at each of its places."""


@dataclass(frozen=True)
class Schema:
    """The preconditions, adds and deletes of an action schema."""

    pre: frozenset[Literal] = frozenset()
    add: frozenset[Literal] = frozenset()
    delete: frozenset[Literal] = frozenset()
    constants: tuple[str, ...] = field(default=(), kw_only=True)
    """Objects that literals name though they are no arguments of the action: the places after the arguments."""
    arity: int | None = field(default=None, kw_only=True)
    """The number of arguments; needed only if there are constants."""

    @property
    def parts(self) -> tuple[frozenset[Literal], frozenset[Literal], frozenset[Literal]]:
        """Preconditions, adds and deletes."""
        return self.pre, self.add, self.delete


@dataclass(frozen=True)
class LiftedModel:
    """Learned action schemas, and how they were learned."""

    schemas: dict[str, Schema]
    report: dict[str, Any]

    def ground(self, actions: Sequence[str]) -> ActionModel:
        """The action model over any ground actions of these schemas."""
        return ground(self.schemas, actions)

    def as_lines(self, width: int = PAGE) -> list[str]:
        """The schemas as lines of at most `width` characters, where names allow it."""
        return schema_lines(self.schemas, width)


def arguments(action: str) -> tuple[str, tuple[str, ...]]:
    """Schema and objects of a ground action written `schema object object`."""
    schema, *objects = action.split()
    return schema, tuple(objects)


def applied(literal: Literal, objects: Sequence[str]) -> str:
    """The ground atom of a literal, written `predicate object object`. Raises `IndexError` if there are too few
    objects."""
    predicate, places = literal
    return " ".join((predicate, *(objects[at] for at in places)))


def with_variables(literal: Literal, arity: int | None = None, constants: Sequence[str] = ()) -> str:
    """A literal as text, with arguments `x1 x2 ...`; of a schema of `arity` arguments with its constants by name."""
    predicate, places = literal
    return " ".join(
        (predicate, *(f"x{at + 1}" if arity is None or at < arity else constants[at - arity] for at in places))
    )


def schemas_from_literals(actions: Iterable[str], literals: Iterable[tuple[str, int, Literal]]) -> dict[str, Schema]:
    """The schemas of ground actions, from single literals, each with its schema and its part: 0 for preconditions, 1
    for adds, 2 for deletes."""
    parts: dict[str, tuple[set[Literal], set[Literal], set[Literal]]] = {
        arguments(action)[0]: (set(), set(), set()) for action in actions
    }
    for schema, part, literal in literals:
        parts[schema][part].add(literal)
    return {schema: Schema(*map(frozenset, three)) for schema, three in parts.items()}


def ground(schemas: Mapping[str, Schema], actions: Sequence[str]) -> ActionModel:
    """The action model over the ground `actions`, each named `schema object object`.

    Atoms are in order of first occurrence. An action of an unknown schema requires and changes nothing, so it is never
    rejected: nothing was learned about it. Raises `ValueError` if a schema uses an argument that an action does not
    have.
    """
    split = ((action, *arguments(action)) for action in actions)
    return ground_model((action, schemas.get(name, Schema()), objects) for action, name, objects in split)


def ground_model(actions: Iterable[tuple[str, Schema, Sequence[str]]]) -> ActionModel:
    """The action model over ground actions, each given by its name, its schema and its objects. Atoms are in order of
    first occurrence. Raises `ValueError` if a schema uses an argument that an action does not have."""
    atoms: dict[str, None] = {}
    effects = {}
    for name, schema, objects in actions:
        try:
            pre, add, delete = (
                [applied(literal, (*objects, *schema.constants)) for literal in sorted(part)] for part in schema.parts
            )
        except IndexError:
            raise ValueError(f"{name!r} has {counted(len(objects), 'argument')}, fewer than its schema uses") from None
        atoms.update(dict.fromkeys((*pre, *add, *delete)))
        effects[name] = pre, add, delete
    return ActionModel.of(list(atoms), effects)


def sorts_of(actions: Iterable[str]) -> tuple[dict[tuple[str, int], int], dict[str, int]]:
    """The sort of each argument of each schema, and of each object. Raises `ValueError` if a schema occurs with
    different numbers of arguments."""
    parent: dict[Any, Any] = {}

    def root(of: Any) -> Any:
        while parent.setdefault(of, of) != of:
            of = parent[of]
        return of

    arity: dict[str, int] = {}
    for action in actions:
        schema, objects = arguments(action)
        if arity.setdefault(schema, len(objects)) != len(objects):
            raise ValueError(
                f"the schema {schema!r} occurs with {arity[schema]} and with {len(objects)} arguments, "
                f"as in {action!r}: rename one of them, or omit `lifted`"
            )
        for position, name in enumerate(objects):
            parent[root((schema, position))] = root(("object", name))
    numbers: dict[Any, int] = {}
    sort = {of: numbers.setdefault(root(of), len(numbers)) for of in sorted(parent, key=str)}
    parameters = {(schema, at): sort[schema, at] for schema, count in arity.items() for at in range(count)}
    return parameters, {of[1]: number for of, number in sort.items() if of[0] == "object" and isinstance(of[1], str)}


def objects_by_sort(actions: Iterable[str]) -> list[list[str]]:
    """The objects of each sort, in the order of their names. Raises what `sorts_of` raises."""
    by_sort: dict[int, list[str]] = {}
    for name, sort in sorted(sorts_of(actions)[1].items()):
        by_sort.setdefault(sort, []).append(name)
    return list(by_sort.values())


@dataclass(frozen=True)
class ModelSignature:
    """Which objects the arguments of schemas and predicates can be."""

    parameters: Mapping[str, tuple[int, ...]]
    """The sort of each argument of each schema."""
    predicates: Mapping[str, tuple[int, ...]]
    """The sort of each argument of each predicate, in the order of the names of predicates; `ANY_SORT` if objects of
    several sorts can be the argument."""
    objects: Mapping[str, int]
    """The sort of each object of training."""
    kinds: frozenset[tuple[str, tuple[int, ...]]]
    """The ways in which arguments of a schema were equal in training: the schema, and for each argument the position of
    the first one that is the same object."""

    def may_be_equal(self, schema: str, one: int, other: int) -> bool:
        """Whether two arguments of a schema were the same object in training."""
        return any(name == schema and first[one] == first[other] for name, first in self.kinds)

    def objects_of(self, actions: Iterable[str]) -> dict[str, int]:
        """The sort of each object of ground actions, in order of occurrence. Raises `ValueError` for an unknown schema,
        for a wrong number of arguments, and for an object in places of two sorts."""
        sort_of: dict[str, int] = {}
        for action in actions:
            if not action.split():
                raise ValueError(f"{action!r} is not an action: it has no schema")
            schema, objects = arguments(action)
            sorts = self.parameters.get(schema)
            if sorts is None:
                some = ", ".join(list(self.parameters)[:8])
                raise ValueError(f"{action!r}: the model has no schema {schema!r}; it has {some}")
            if len(sorts) != len(objects):
                raise ValueError(
                    f"{action!r} has {counted(len(objects), 'argument')}, but {schema!r} was learned with {len(sorts)}"
                )
            for name, sort in zip(objects, sorts):
                if sort_of.setdefault(name, sort) != sort:
                    other = next((each for each, of in self.objects.items() if of == sort_of[name]), "others")
                    raise ValueError(
                        f"{action!r}: the object {name!r} is of another sort here than elsewhere, where it has the "
                        f"sort of {other!r} in training"
                    )
        return sort_of

    def covers(self, actions: Iterable[str]) -> bool:
        """Whether ground actions differ from those of training only in the names of objects: they have known schemas
        and sorts, and arguments are equal only where they were equal in training."""
        named = list(actions)
        try:
            self.objects_of(named)
        except ValueError:
            return False
        return all((schema, firsts(objects)) in self.kinds for schema, objects in map(arguments, named))

    def actions_over(self, objects: Mapping[str, int]) -> list[str]:
        """All ground actions over `objects`, which maps each object to its sort. Raises `ValueError` if there are too
        many."""
        by_sort: dict[int, list[str]] = {}
        for name, sort in objects.items():
            by_sort.setdefault(sort, []).append(name)
        choices = {schema: [by_sort.get(sort, []) for sort in sorts] for schema, sorts in self.parameters.items()}
        total = sum(prod(map(len, each)) for each in choices.values())
        if total > MOST_ACTIONS:
            raise ValueError(f"{len(objects)} objects make {total:,} ground actions; the most are {MOST_ACTIONS:,}")
        return [
            " ".join((schema, *chosen))
            for schema, each in choices.items()
            for chosen in product(*each)
            if (schema, firsts(chosen)) in self.kinds
        ]


def signature(schemas: Mapping[str, Schema], actions: Sequence[str]) -> ModelSignature:
    """The signature of schemas and of the ground actions of training. Raises `ValueError` if they do not fit each
    other."""
    split = [arguments(action) for action in actions]
    parameters, objects = sorts_of(actions)
    by_schema = {schema: tuple(parameters[schema, at] for at in range(len(names))) for schema, names in split}
    predicates: dict[str, tuple[int, ...]] = {}
    literals = ((name, literal) for name, schema in schemas.items() for part in schema.parts for literal in part)
    for name, (predicate, places) in sorted(literals, key=lambda each: each[1]):
        if name not in by_schema:
            raise ValueError(f"the schema {name!r} has no ground action in model.json: the folder is damaged")
        of = (*by_schema[name], *(objects.get(each, ANY_SORT) for each in schemas[name].constants))
        if max(places, default=-1) >= len(of):
            raise ValueError(f"the schema {name!r} uses argument {max(places) + 1}, but has {len(of)}")
        sorts = tuple(of[place] for place in places)
        before = predicates.setdefault(predicate, sorts)
        if len(before) != len(sorts):
            raise ValueError(f"the predicate {predicate!r} has {len(before)} and {len(sorts)} arguments")
        predicates[predicate] = tuple(one if one == other else ANY_SORT for one, other in zip(before, sorts))
    return ModelSignature(by_schema, predicates, objects, frozenset((schema, firsts(names)) for schema, names in split))


def firsts(objects: Sequence[str]) -> tuple[int, ...]:
    """The position of the first argument that is the same object, for each argument."""
    return tuple(objects.index(name) for name in objects)


def schema_lines(schemas: Mapping[str, Schema], width: int = PAGE) -> list[str]:
    """Schemas as lines of at most `width` characters, where names allow it, with arguments `x1 x2 ...`."""
    lines = []
    for name, schema in schemas.items():
        named = zip(("pre", "add", "del"), schema.parts)
        parts = [
            (title, [with_variables(literal, schema.arity, schema.constants) for literal in sorted(part)])
            for title, part in named
        ]
        lines += literal_lines(name, parts, width)
    return lines


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
