"""The sorts of the arguments of a lifted model, and its ground actions over other objects.

The ground actions of training show which arguments can be the same object. Over other objects, actions are left out if
no ground action of training had the same arguments equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from statewise.runtime.messages import counted
from statewise.strips.model.lifted_model import sorts_of
from statewise.strips.model.model import MOST_ACTIONS
from statewise.strips.model.schemas import Schema, arguments


@dataclass(frozen=True)
class ModelSignature:
    """Which objects the arguments of schemas and predicates can be."""

    parameters: Mapping[str, tuple[int, ...]]
    """The sort of each argument of each schema."""
    predicates: Mapping[str, tuple[int, ...]]
    """The sort of each argument of each predicate, in the order of the names of predicates."""
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
        found: dict[str, int] = {}
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
                if found.setdefault(name, sort) != sort:
                    other = next((each for each, of in self.objects.items() if of == found[name]), "others")
                    raise ValueError(
                        f"{action!r}: the object {name!r} is of another sort here than elsewhere, where it has the "
                        f"sort of {other!r} in training"
                    )
        return found

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
    parameters, objects = sorts_of(actions)
    by_schema: dict[str, list[int]] = {}
    kinds = set()
    for action in actions:
        schema, given = arguments(action)
        by_schema.setdefault(schema, [parameters[schema, at] for at in range(len(given))])
        kinds.add((schema, firsts(given)))
    predicates: dict[str, tuple[int, ...]] = {}
    for name, (predicate, places) in sorted(_literals(schemas), key=lambda each: each[1]):
        if name not in by_schema:
            raise ValueError(f"the schema {name!r} has no ground action in model.json: the folder is damaged")
        if max(places, default=-1) >= len(by_schema[name]):
            raise ValueError(f"the schema {name!r} uses argument {max(places) + 1}, but has {len(by_schema[name])}")
        sorts = tuple(by_schema[name][place] for place in places)
        if predicates.setdefault(predicate, sorts) != sorts:
            raise ValueError(f"the predicate {predicate!r} has arguments of different sorts")
    return ModelSignature(
        {name: tuple(each) for name, each in by_schema.items()}, predicates, objects, frozenset(kinds)
    )


def firsts(objects: Sequence[str]) -> tuple[int, ...]:
    """The position of the first argument that is the same object, for each argument."""
    return tuple(objects.index(name) for name in objects)


def _literals(schemas: Mapping[str, Schema]) -> Iterator[tuple[str, tuple[str, tuple[int, ...]]]]:
    for name, schema in schemas.items():
        for literal in schema.pre | schema.add | schema.delete:
            yield name, literal
