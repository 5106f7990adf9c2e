"""Learned action schemas, and the sorts of objects that ground actions imply."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from statewise.strips.model.model import ActionModel
from statewise.strips.model.schemas import PAGE, Schema, arguments, ground, schema_lines


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


def sorts_of(actions: Sequence[str]) -> tuple[dict[tuple[str, int], int], dict[str, int]]:
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
                f"as in {action!r}: rename one of them, or omit --lifted"
            )
        for position, name in enumerate(objects):
            parent[root((schema, position))] = root(("object", name))
    numbers: dict[Any, int] = {}
    found = {of: numbers.setdefault(root(of), len(numbers)) for of in sorted(parent, key=str)}
    parameters = {(schema, at): found[schema, at] for schema, count in arity.items() for at in range(count)}
    return parameters, {
        name: sort for (kind, name), sort in found.items() if kind == "object" and isinstance(name, str)
    }
