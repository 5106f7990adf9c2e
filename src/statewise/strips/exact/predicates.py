"""Predicates as sets of slots, and their schemas."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import NamedTuple

import numpy as np

from statewise.strips.exact.features import Feature
from statewise.strips.exact.slots import Signature
from statewise.strips.exact.windows import Windows
from statewise.strips.model.heads import ActionSet, Heads
from statewise.strips.model.model import bits
from statewise.strips.model.schemas import Literal, Schema, arguments


@dataclass(frozen=True)
class Predicate:
    """A predicate: the slots that require, add and delete it, as bits."""

    signature: Signature
    pre: ActionSet
    add: ActionSet
    delete: ActionSet

    def size(self) -> int:
        """The number of slots that require, add or delete it, counted once for each of these."""
        return self.pre.bit_count() + self.add.bit_count() + self.delete.bit_count()

    def covers(self, other: Predicate) -> bool:
        """Whether the slots alone imply that it rejects everything that `other` rejects."""
        return self.signature == other.signature and not (
            other.pre & ~self.pre or other.delete & ~self.delete or self.add & ~other.add
        )

    def mirrored(self) -> set[tuple[ActionSet, ActionSet, ActionSet]]:
        """The same predicate with its arguments of one sort in each possible order."""
        number = {slot: place for place, slot in enumerate(self.signature.slots)}
        sorts = self.signature.sorts
        found = set()
        for order in permutations(range(len(sorts))):
            if tuple(sorts[at] for at in order) == sorts:
                moved = [number[schema, tuple(places[at] for at in order)] for schema, places in self.signature.slots]
                found.add(
                    tuple(sum(1 << moved[slot] for slot in bits(part)) for part in (self.pre, self.add, self.delete))
                )
        return found  # type: ignore[return-value]


def distinct_predicates(
    signature: Signature, windows: Windows, features: Iterable[Feature], going_on: Callable[[], bool] = lambda: True
) -> list[Predicate]:
    """Alternating features of the slots of a signature as predicates that can reject something, without mirror images,
    each with all slots that can require it. Stops once `going_on()` is false."""
    found: list[Predicate] = []
    seen: set[tuple[ActionSet, ActionSet, ActionSet]] = set()
    for delete, add in features:
        if not going_on():
            break
        each = Predicate(signature, windows.required(delete, add), add, delete)
        if each.pre and (each.pre, each.add, each.delete) not in seen:
            seen |= each.mirrored()
            found.append(each)
    return found


def as_schemas(chosen: Sequence[Predicate], actions: Sequence[str]) -> dict[str, Schema]:
    """The action schemas, with the predicates named p0, p1, ..."""
    sets: dict[str, tuple[set[Literal], set[Literal], set[Literal]]] = {
        arguments(action)[0]: (set(), set(), set()) for action in actions
    }
    for number, each in enumerate(chosen):
        for which, part in enumerate((each.pre, each.add, each.delete)):
            for slot in bits(part):
                schema, places = each.signature.slots[slot]
                sets[schema][which].add((f"p{number}", places))
    return {schema: Schema(*(frozenset(part) for part in parts)) for schema, parts in sets.items()}


def grounded(predicates: Sequence[Predicate], actions: Sequence[str]) -> tuple[Heads, np.ndarray]:
    """The heads of the predicates over ground actions, one for each tuple of objects, and the number of the predicate
    of each head [H], ascending."""
    entries = ground_entries(predicates, actions)
    owners = {each.head: each.owner for each in entries}
    parts = np.zeros((3, len(owners), len(actions)), dtype=bool)
    for each in entries:
        parts[each.role, each.head, each.action] = True
    pre, add, delete = parts
    return Heads(pre, add, delete & ~add), np.array(list(owners.values()), dtype=np.int64)


class Entry(NamedTuple):
    """What a ground action does to a ground atom."""

    role: int
    """0: it requires the atom; 1: it adds it; 2: it deletes it."""
    owner: int
    """The number of the predicate."""
    slot: int
    head: int
    """The number of the atom: it ascends with the predicate, without gaps."""
    action: int


def ground_entries(predicates: Sequence[Predicate], actions: Sequence[str]) -> list[Entry]:
    """The entries of the predicates over ground actions."""
    numbers: dict[tuple[int, tuple[str, ...]], int] = {}
    by_schema: dict[str, list[tuple[int, tuple[str, ...]]]] = {}
    for number, name in enumerate(actions):
        schema, objects = arguments(name)
        by_schema.setdefault(schema, []).append((number, objects))
    found = []
    for owner, each in enumerate(predicates):
        for role, part in enumerate((each.pre, each.add, each.delete)):
            for slot in bits(part):
                schema, places = each.signature.slots[slot]
                for number, objects in by_schema[schema]:
                    head = numbers.setdefault((owner, tuple(objects[at] for at in places)), len(numbers))
                    found.append(Entry(role, owner, slot, head, number))
    return found
