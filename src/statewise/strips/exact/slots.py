"""Windows of lifted predicates.

A ground atom p(o1 .. ok) is affected by the actions that mention all of its objects. What the action `schema x1 .. xn`
does to it depends only on the *slot*: the schema, and which argument is at each place of the atom. So for each tuple of
objects a trace is a sequence of slots, the sequences of all tuples are evidence about the same predicate, and windows
of slots say about lifted predicates what windows of actions say about ground atoms. This needs no negative traces: a
small instance has many tuples.

Objects have sorts, inferred from the traces (`lifted_model.sorts_of`); the slots of a predicate have its sorts. An
action that mentions an object twice may have several slots of one tuple; then additions take precedence over deletions,
as in PDDL."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import permutations, product
from typing import NamedTuple

from statewise.strips.exact.windows import Holders, Windows, smallest_first
from statewise.strips.model.heads import ActionSet
from statewise.strips.model.lifted_model import sorts_of
from statewise.strips.model.schemas import arguments
from statewise.strips.model.traces import Trace, Traces

Slot = tuple[str, tuple[int, ...]]
"""A schema, and the position of each argument of the predicate in its own arguments."""
Event = tuple[int, ...]
"""The slots, by number, that one action has of one tuple."""


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
    found = []
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
            found.append(Signature(sorts, slots))
    return found


def events(signature: Signature, actions: Sequence[str]) -> list[dict[tuple[str, ...], Event]]:
    """For each action the tuples of objects that it mentions, and its slots for each tuple."""
    of_schema: dict[str, list[tuple[int, tuple[int, ...]]]] = {}
    for number, (schema, places) in enumerate(signature.slots):
        of_schema.setdefault(schema, []).append((number, places))
    found = []
    for action in actions:
        schema, objects = arguments(action)
        mine: dict[tuple[str, ...], Event] = {}
        for number, places in of_schema.get(schema, ()):
            tuple_of = tuple(objects[at] for at in places)
            mine[tuple_of] = (*mine.get(tuple_of, ()), number)
        found.append(mine)
    return found


def sequences(rows: Iterable[Trace], of_action: Sequence[dict[tuple[str, ...], Event]]) -> list[tuple[Event, ...]]:
    """The distinct sequences of events of all tuples of objects in the valid traces `rows`, without prefixes of
    others."""
    ordered = sorted({each for row in rows for each in _by_tuple(row, of_action)})
    return [each for each, after in zip(ordered, [*ordered[1:], ()]) if after[: len(each)] != each]


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
        row, label = traces.rows[number], traces.labels[number]
        for sequence in _by_tuple(row[: len(row) - label], of_action):
            having[sequence] = having.get(sequence, 0) | 1 << number
    found: dict[tuple[int, int], dict[ActionSet, int]] = {}
    for sequence, mine in having.items():
        for x, between, c in set(_windows_of(sequence)):
            of_pair = found.setdefault((x, c), {})
            of_pair[between] = of_pair.get(between, 0) | mine
    return smallest_first(found)


def _windows_of(sequence: Sequence[Event]) -> Iterator[tuple[int, int, int]]:
    """Like `windows.windows_of`, for events of several slots: what one of them deletes, another may add at once."""
    recent: list[tuple[int, ActionSet]] = []
    for event in sequence:
        for c in event:
            between = 0
            for x, together in recent:
                yield x, between | together, c
                between |= 1 << x
        recent = latest_first(event, recent)


def latest_first(event: Event, recent: Sequence[tuple[int, ActionSet]]) -> list[tuple[int, ActionSet]]:
    """The distinct slots of `recent` and then `event`, the latest first, each with the other slots of its event."""
    slots = sum(1 << slot for slot in event)
    return [(slot, slots ^ 1 << slot) for slot in event] + [each for each in recent if not slots >> each[0] & 1]
