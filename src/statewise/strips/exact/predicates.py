"""Predicates as sets of slots, their windows, and their schemas.

A ground atom p(o1 .. ok) is affected by the actions that mention all of its objects. What the action `schema x1 .. xn`
does to it depends only on the *slot*: the schema, and which argument is at each place of the atom. So for each tuple of
objects a trace is a sequence of slots, the sequences of all tuples are evidence about the same predicate, and windows
of slots say about lifted predicates what windows of actions say about ground atoms. This needs no negative traces: a
small instance has many tuples.

Objects have sorts, inferred from the traces (`schemas.sorts_of`); the slots of a predicate have its sorts. An action
that mentions an object twice may have several slots of one tuple; then additions take precedence over deletions, as in
PDDL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations, product
from typing import NamedTuple

import numpy as np

from statewise.strips.exact.features import Feature
from statewise.strips.exact.windows import Holders, Window, Windows, holders_from, longest
from statewise.strips.model.heads import ActionSet, Heads
from statewise.strips.model.model import bits
from statewise.strips.model.schemas import Schema, arguments, schemas_from_literals, sorts_of
from statewise.strips.model.traces import Trace, Traces

Slot = tuple[str, tuple[int, ...]]
"""A schema, and the position of each argument of the predicate in its own arguments."""
Event = tuple[int, ...]
"""The slots, by number, that one action has of one tuple."""
Recent = list[tuple[int, ActionSet]]
"""The distinct slots so far, the latest first, each with the other slots of its event."""


class Signature(NamedTuple):
    """The sorts of the arguments of a predicate, and the slots that can affect it."""

    sorts: tuple[int, ...]
    slots: tuple[Slot, ...]


def signatures(actions: Sequence[str], arity: int) -> list[Signature]:
    """The signatures of `arity` arguments. Raises `ValueError` if a schema occurs with different numbers of
    arguments."""
    parameters, objects = sorts_of(actions)
    schemas: dict[str, int] = {arguments(action)[0]: 0 for action in sorted(actions)}
    for schema, at in parameters:
        schemas[schema] = max(schemas[schema], at + 1)
    made = []
    for sorts in product(sorted(set(objects.values())), repeat=arity):
        if list(sorts) != sorted(sorts):
            continue  # the same predicates with their arguments in another order
        slots = tuple(
            (schema, places)
            for schema, count in schemas.items()
            for places in permutations(range(count), arity)
            if tuple(parameters[schema, at] for at in places) == sorts
        )
        if slots:
            made.append(Signature(sorts, slots))
    return made


def events(signature: Signature, actions: Sequence[str]) -> list[dict[tuple[str, ...], Event]]:
    """For each action the tuples of objects that it mentions, and its slots for each tuple."""
    of_schema: dict[str, list[tuple[int, tuple[int, ...]]]] = {}
    for number, (schema, places) in enumerate(signature.slots):
        of_schema.setdefault(schema, []).append((number, places))
    of_actions = []
    for action in actions:
        schema, objects = arguments(action)
        mine: dict[tuple[str, ...], Event] = {}
        for number, places in of_schema.get(schema, ()):
            tuple_of = tuple(objects[at] for at in places)
            mine[tuple_of] = (*mine.get(tuple_of, ()), number)
        of_actions.append(mine)
    return of_actions


def sequences(rows: Iterable[Trace], of_action: Sequence[dict[tuple[str, ...], Event]]) -> list[tuple[Event, ...]]:
    """The distinct sequences of events of all tuples of objects in the valid traces `rows`, without prefixes of
    others."""
    return longest(sequence for row in rows for sequence in _by_tuple(row, of_action))


def _by_tuple(row: Trace, of_action: Sequence[dict[tuple[str, ...], Event]]) -> Iterator[tuple[Event, ...]]:
    """The sequence of events of each tuple of objects that a trace mentions."""
    mine: dict[tuple[str, ...], list[Event]] = {}
    for action in row:
        for tuple_of, event in of_action[action].items():
            mine.setdefault(tuple_of, []).append(event)
    return map(tuple, mine.values())


def slot_windows(signature: Signature, actions: Sequence[str], rows: Iterable[Trace]) -> Windows:
    """The windows of the slots of the signature, numbered as in `signature.slots`, in the valid traces `rows`."""
    windows = Windows(len(signature.slots))
    for sequence in sequences(rows, events(signature, actions)):
        if all(len(event) == 1 for event in sequence):
            windows.add([event[0] for event in sequence])
        else:
            for x, between, c in _windows_of(sequence):
                windows.insert(x, between, c)
    return windows


def slot_holders(
    signature: Signature,
    actions: Sequence[str],
    traces: Traces,
    reading: Callable[[Sequence[int]], Iterable[int]] = iter,
) -> Holders:
    """The windows of the slots of the signature in the valid actions of `traces`, with the traces that have them. Only
    traces whose numbers `reading` passes on are read."""
    of_action = events(signature, actions)
    having: dict[tuple[Event, ...], int] = {}
    for number in reading(range(len(traces))):
        for sequence in _by_tuple(traces.valid(number), of_action):
            having[sequence] = having.get(sequence, 0) | 1 << number
    return holders_from((window, held) for sequence, held in having.items() for window in set(_windows_of(sequence)))


def _windows_of(sequence: Sequence[Event]) -> Iterator[Window]:
    """The windows of a sequence of events."""
    recent: Recent = []
    for event in sequence:
        yield from windows_of_event(event, recent)
        recent = latest_first(event, recent)


def windows_of_event(event: Event, recent: Recent) -> Iterator[Window]:
    """The windows of the slots of an event after those of `recent`: what one slot of an event deletes, another may add
    at once."""
    for c in event:
        between = 0
        for x, together in recent:
            yield x, between | together, c
            between |= 1 << x


def latest_first(event: Event, recent: Recent) -> Recent:
    """The distinct slots up to and including the event."""
    slots = sum(1 << slot for slot in event)
    return [(slot, slots ^ 1 << slot) for slot in event] + [each for each in recent if not slots >> each[0] & 1]


@dataclass(frozen=True)
class Predicate:
    """A predicate: the slots that require, add and delete it, as bits."""

    signature: Signature
    pre: ActionSet
    add: ActionSet
    delete: ActionSet

    @property
    def parts(self) -> tuple[ActionSet, ActionSet, ActionSet]:
        """The slots that require, add and delete it."""
        return self.pre, self.add, self.delete

    def size(self) -> int:
        """The number of slots that require, add or delete it, counted once for each of these."""
        return sum(map(int.bit_count, self.parts))

    def covers(self, other: Predicate) -> bool:
        """Whether the slots alone imply that it rejects everything that `other` rejects."""
        return self.signature == other.signature and not (
            other.pre & ~self.pre or other.delete & ~self.delete or self.add & ~other.add
        )

    def mirrored(self) -> set[tuple[ActionSet, ActionSet, ActionSet]]:
        """The slots of the predicate with its arguments of one sort in each possible order."""
        number = {slot: place for place, slot in enumerate(self.signature.slots)}
        sorts = self.signature.sorts
        mirrored = set()
        for order in permutations(range(len(sorts))):
            if tuple(sorts[at] for at in order) == sorts:
                moved = [number[schema, tuple(places[at] for at in order)] for schema, places in self.signature.slots]
                mirrored.add(tuple(sum(1 << moved[slot] for slot in bits(part)) for part in self.parts))
        return mirrored  # type: ignore[return-value]


def distinct_predicates(
    signature: Signature, windows: Windows, features: Iterable[Feature], has_time: Callable[[], bool] = lambda: True
) -> list[Predicate]:
    """Alternating features of the slots of a signature as predicates that can reject something, without mirror images,
    each with all slots that can require it. Stops once `has_time()` is false."""
    predicates: list[Predicate] = []
    seen: set[tuple[ActionSet, ActionSet, ActionSet]] = set()
    for delete, add in features:
        if not has_time():
            break
        each = Predicate(signature, windows.required(delete, add), add, delete)
        if each.pre and each.parts not in seen:
            seen |= each.mirrored()
            predicates.append(each)
    return predicates


def without_covered(predicates: Sequence[Predicate]) -> list[Predicate]:
    """The predicates that no other one covers; of those that cover each other, the first."""
    of_signature: dict[Signature, list[tuple[int, Predicate]]] = {}  # only these can cover each other
    for at, each in enumerate(predicates):
        of_signature.setdefault(each.signature, []).append((at, each))
    return [
        each
        for place, each in enumerate(predicates)
        if not any(
            not (each.pre & ~other.pre or each.delete & ~other.delete or other.add & ~each.add)
            and (at < place or not each.covers(other))
            for at, other in of_signature[each.signature]
            if at != place
        )
    ]


def as_schemas(predicates: Sequence[Predicate], actions: Sequence[str]) -> dict[str, Schema]:
    """The action schemas, with the predicates named p0, p1, ..."""
    literals = (
        (schema, part, (f"p{number}", places))
        for number, predicate in enumerate(predicates)
        for part, slots in enumerate(predicate.parts)
        for schema, places in (predicate.signature.slots[slot] for slot in bits(slots))
    )
    return schemas_from_literals(actions, literals)


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
    entries = []
    for owner, each in enumerate(predicates):
        for role, part in enumerate(each.parts):
            for slot in bits(part):
                schema, places = each.signature.slots[slot]
                for number, objects in by_schema[schema]:
                    head = numbers.setdefault((owner, tuple(objects[at] for at in places)), len(numbers))
                    entries.append(Entry(role, owner, slot, head, number))
    return entries
