"""Three-valued verdicts: what every action model that explains the training traces says about a new trace.

A trace is *certainly valid* if every such model accepts it. That is so iff each of its windows (x, W, c) contains a
seen window: otherwise the atom that x deletes, c requires and all actions outside W add explains the valid traces and
rejects c, and may be part of any model.

It is *certainly invalid* if no such model accepts it. Suppose that it were valid, and count its own windows as seen:
that contradicts the training traces iff some negative trace then ends in an action that is certainly valid.

Everything else is not decided by what was seen. No decided verdict is wrong if the training traces are those of some
action model and free of errors. Lifted, the windows are those of slots (`slots`), and the models considered are
schemas of one kind (`Seen.assumed`), so that far more is decided: a literal is a predicate of at most `arity` different
arguments of the action, and preconditions are positive. Nothing is known about an action of an unknown schema or with
an object of another sort, nor after it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from statewise.json_files import ANYTHING, COUNT, FLAG, TEXT, Leaf, Shape, check, one_of, read_json
from statewise.messages import counted
from statewise.strips.exact.slots import Event, Signature, events, latest_first, signatures, slot_windows
from statewise.strips.exact.windows import Windows, any_inside, valid_rows, windows_of
from statewise.strips.heads import ActionSet, Head
from statewise.strips.lifted import sorts_of
from statewise.strips.random_traces import Trace, Traces
from statewise.strips.schemas import arguments

NAME = "seen.json"
"""The file of a learned folder."""
FORMAT = "statewise seen windows 1"
SHAPE: Shape = {"format": one_of(FORMAT), "actions": [TEXT], "arity": COUNT, "lifted": FLAG,
                "signatures": [[ANYTHING]], "windows": [[ANYTHING]], "negatives": [[[ANYTHING]]]}  # fmt: skip
_SET = Leaf("a hexadecimal number", lambda value: isinstance(value, str) and bool(re.fullmatch("0x[0-9a-f]+", value)))

Pair = tuple[int, int, int]
"""(signature, x, c): the signature's number, 0 of a ground model, and two slots, or two actions of a ground model."""
Option = tuple[Pair, ActionSet]
"""A pair and a window."""
UNKNOWN: Option = ((-1, 0, 0), 0)
"""That of an action of which nothing is known: neither it nor anything after it is certain, as it may do anything."""
Outcome = Literal["valid", "invalid", "undecided"]


@dataclass(frozen=True)
class Verdict:
    """What is certain about a trace."""

    outcome: Outcome
    step: int | None
    """Position of the first action after which no model accepts the trace, or of the first action that is not certainly
    valid; None if all are."""
    why: str | None = None
    """Why nothing is known about the action at `step`, if it does not fit what was learned."""


def kind_of_schemas(arity: int) -> str:
    """What schemas have of which something is certain, if predicates have at most `arity` arguments."""
    return (f"predicates of at most {counted(arity, 'argument')}, different ones of the action, no constants, and no "
            "negative or equality preconditions")  # fmt: skip


@dataclass
class Seen:
    """What the training traces show."""

    actions: tuple[str, ...]
    lifted: tuple[Signature, ...] | None = None
    """The signatures of the predicates considered; None for ground models."""
    arity: int = 0
    """Most arguments of those predicates."""
    minimal: dict[Pair, list[ActionSet]] = field(default_factory=dict)
    negatives: list[tuple[Option, ...]] = field(default_factory=list)
    """For each negative trace how its last action can be rejected: by the windows of it that contain no seen one."""

    @classmethod
    def of(
        cls,
        traces: Traces,
        *,
        arity: int | None = None,
        reading: Callable[[Sequence[Trace]], Iterable[Trace]] = iter,
    ) -> Seen:
        """Reads the traces; lifted with `arity`, the most arguments of a predicate. Those that `reading` does not pass
        on decide nothing."""
        lifted = None
        if arity is not None:
            lifted = tuple(each for count in range(arity + 1) for each in signatures(traces.actions, count))
        found = cls(traces.actions, lifted, arity or 0)
        rows = valid_rows(traces)
        parts = (
            [Windows.of_rows(len(traces.actions), reading(rows))]
            if lifted is None
            else [slot_windows(each, traces.actions, reading(rows)) for each in lifted]
        )
        found.minimal = {(number, *pair): some for number, part in enumerate(parts)
                         for pair, some in part.minimal.items()}  # fmt: skip
        ends = set()
        for row in reading(sorted({row for row, label in zip(traces.rows, traces.labels) if label})):
            last = next(found.options([traces.actions[at] for at in row], start=len(row) - 1), [])
            ends.add(tuple(sorted(option for option in last if not found._contains_seen(*option))))
        found.negatives = sorted(ends)
        return found

    def verdict(self, names: Sequence[str]) -> Verdict:
        """What is certain about a trace of actions by name. Lifted, nothing is from an action on that does not fit the
        schemas and sorts of training; an action of a ground model that was not seen is certain before all others, where
        no atom can be false."""
        first: int | None = None
        end, why = self._unfitting(names)
        supposed: dict[Pair, list[ActionSet]] = {}
        for step, options in enumerate(self.options(names[:end])):
            new = [option for option in options if not self._contains_seen(*option)]
            if not new:
                continue
            first = step if first is None else first
            for pair, between in new:
                supposed.setdefault(pair, []).append(between)
            touched = {number for pair, _ in new for number in self._ending.get(pair, ())}
            if any(self._explained(self.negatives[number], supposed) for number in touched):
                return Verdict("invalid", step)
        if first is None and end < len(names):
            return Verdict("undecided", end, why)
        return Verdict("valid" if first is None else "undecided", first)

    @property
    def assumed(self) -> str:
        """What the schemas of all models considered have."""
        return kind_of_schemas(self.arity)

    @cached_property
    def _sorts(self) -> tuple[dict[tuple[str, int], int], dict[str, int]]:
        """The sort of each argument of each schema, and of each object of training."""
        return sorts_of(self.actions)

    @cached_property
    def numbers(self) -> dict[str, int]:
        """For each schema of training the number of its arguments; empty of a ground model."""
        return {} if self.lifted is None else {schema: len(objects) for schema, objects in map(arguments, self.actions)}

    def _unfitting(self, names: Sequence[str]) -> tuple[int, str | None]:
        """The position of the first action that does not fit what was learned, and what does not; else the number of
        actions, and None."""
        if self.lifted is None:
            return len(names), None
        parameters, known = self._sorts
        sorts = dict(known)
        for step, name in enumerate(names):
            schema, objects = arguments(name)
            if schema not in self.numbers:
                return step, f"no action {schema!r} was seen in training"
            if len(objects) != self.numbers[schema]:
                return step, f"it was seen with {counted(self.numbers[schema], 'argument')}"
            for at, each in enumerate(objects):
                if sorts.setdefault(each, parameters[schema, at]) != parameters[schema, at]:
                    other = next(other for other, sort in known.items() if sort == parameters[schema, at])
                    return step, f"{each!r} stands here where {other!r} did in training, which is of another sort"
        return len(names), None

    def certain_steps(self, names: Sequence[str]) -> list[bool]:
        """For each action of a trace whether every model accepts it, given those before it."""
        return [all(self._contains_seen(*option) for option in options) for options in self.options(names)]

    def options(self, names: Sequence[str], start: int = 0) -> Iterator[list[Option]]:
        """For each action, from `start` on, its windows."""
        if self.lifted is None:
            number = {name: place for place, name in enumerate(self.actions)}
            row = [number.setdefault(name, len(number)) for name in names]
            for windows in windows_of(row, start):
                yield [((0, x, c), between) for x, between, c in windows]
        else:
            yield from self._of_slots(names, start)

    def _of_slots(self, names: Sequence[str], start: int) -> Iterator[list[Option]]:
        assert self.lifted is not None
        recent: list[dict[tuple[str, ...], list[tuple[int, ActionSet]]]] = [{} for _ in self.lifted]
        known = True
        for step, name in enumerate(names):
            touched = self._touched(name) if known else None
            known = touched is not None
            found: list[Option] = []
            for number, of_tuple in enumerate(touched or ()):
                for tuple_of, event in of_tuple.items():
                    before = recent[number].get(tuple_of, [])
                    for c in event if step >= start else ():
                        between = 0
                        for x, together in before:
                            found.append(((number, x, c), between | together))
                            between |= 1 << x
                    recent[number][tuple_of] = latest_first(event, before)
            if step >= start:
                yield found if known else [UNKNOWN]

    def _touched(self, name: str) -> list[dict[tuple[str, ...], Event]] | None:
        """For each signature the tuples of objects that an action mentions, and its slots of each; None if its schema
        was not seen with so many objects."""
        assert self.lifted is not None
        if name not in self._of_name:
            schema, objects = arguments(name)
            fits = self.numbers.get(schema) == len(objects)
            self._of_name[name] = [events(each, [name])[0] for each in self.lifted] if fits else None
        return self._of_name[name]

    @cached_property
    def _of_name(self) -> dict[str, list[dict[tuple[str, ...], Event]] | None]:
        """What `_touched` found so far."""
        return {}

    def _contains_seen(self, pair: Pair, between: ActionSet) -> bool:
        return any_inside(between, self.minimal.get(pair, ()))

    @cached_property
    def _ending(self) -> Mapping[Pair, list[int]]:
        """The negatives by the pairs of their options."""
        by_pair: dict[Pair, list[int]] = {}
        for number, options in enumerate(self.negatives):
            for pair in {pair for pair, _ in options}:
                by_pair.setdefault(pair, []).append(number)
        return by_pair

    @staticmethod
    def _explained(options: Sequence[Option], supposed: Mapping[Pair, Sequence[ActionSet]]) -> bool:
        """Whether the supposed windows make an end certainly valid."""
        return all(any_inside(between, supposed.get(pair, ())) for pair, between in options)

    def guards(self, names: Sequence[str], step: int, actions: Sequence[str]) -> list[Head]:
        """Atoms over `actions` that explain the valid traces and reject the action at `step`, which is not certain: of
        ground models one, of schemas one for each tuple of objects. With them the action is rejected wherever it is
        uncertain for the same reason. None if the schema was not seen: nothing is known that could reject it."""
        options = next(self.options(names, start=step))
        pair, between = next(option for option in options if not self._contains_seen(*option))
        number, x, c = pair
        if number < 0:
            return []
        touched: list[dict[tuple[str, ...], Event]]
        if self.lifted is None:
            spelled = list(dict.fromkeys((*self.actions, *names)))
            place = {name: at for at, name in enumerate(spelled)}
            touched = [{(): (place[name],)} if name in place else {} for name in actions]
            count = len(spelled)
        else:
            touched = events(self.lifted[number], actions)
            count = len(self.lifted[number].slots)
        for more in range(count):  # the widest window that explains the valid traces, which rejects the most
            if more != x and not self._contains_seen(pair, between | 1 << more):
                between |= 1 << more
        kept = between | 1 << x
        found: dict[tuple[str, ...], list[ActionSet]] = {}
        for at, mine in enumerate(touched):
            for tuple_of, event in mine.items():
                adds = any(not kept >> slot & 1 for slot in event)
                holds = (c in event, adds, x in event and not adds)
                parts = found.setdefault(tuple_of, [0, 0, 0])
                for which, does in enumerate(holds):
                    parts[which] |= does << at
        made = (Head(" ".join(("guard", *tuple_of)), *parts) for tuple_of, parts in found.items())
        return [each for each in made if not each.idle]

    def as_json(self) -> bytes:
        """The content of `seen.json`."""
        content = {
            "format": FORMAT,
            "actions": self.actions,
            "arity": self.arity,
            "lifted": self.lifted is not None,
            "signatures": [[each.sorts, each.slots] for each in self.lifted or ()],
            "windows": [[*pair, *map(hex, windows)] for pair, windows in sorted(self.minimal.items())],
            "negatives": [[[*pair, hex(between)] for pair, between in options] for options in self.negatives],
        }
        return (json.dumps(content) + "\n").encode()

    @classmethod
    def load(cls, folder: Path) -> Seen | None:
        """Reads `seen.json` of a learned folder; None if it has none. Raises `ValueError` if it is damaged."""
        path = folder / NAME
        if not path.is_file():
            return None
        content = read_json(path, SHAPE)
        try:
            lifted = tuple(map(_signature, content["signatures"])) if content["lifted"] else None
            if lifted == ():
                raise ValueError("it holds no signature")
            slots = [len(content["actions"])] if lifted is None else [len(each.slots) for each in lifted]
            windows = dict(_windows(each, slots) for each in content["windows"])
            negatives = [
                tuple((pair, one) for pair, (one,) in (_windows(each, slots) for each in options))
                for options in content["negatives"]
            ]
        except ValueError as error:
            raise ValueError(f"{path}: damaged: {error}") from None
        return cls(tuple(content["actions"]), lifted, content["arity"], windows, negatives)


def _signature(entry: list[Any]) -> Signature:
    """An entry of `signatures`: sorts and slots. Raises `ValueError` if it is damaged."""
    sorts, slots = entry
    check(sorts, [COUNT], "the sorts of a signature")
    check(slots, [[ANYTHING]], "the slots of a signature")
    found = []
    for schema, at in slots:
        check(schema, TEXT, "the schema of a slot")
        check(at, [COUNT], "the arguments of a slot")
        found.append((schema, tuple(at)))
    return Signature(tuple(sorts), tuple(found))


def _windows(entry: list[Any], slots: Sequence[int]) -> tuple[Pair, list[ActionSet]]:
    """A pair with its windows, where signatures have so many `slots`. Raises `ValueError` if it is damaged."""
    number, x, c = check(entry[:3], [COUNT], "the slots of a window")
    sets = [int(each, 16) for each in check(entry[3:], [_SET], "the slots between")]
    if number >= len(slots) or max(x, c) >= slots[number] or any(each >> slots[number] for each in sets):
        raise ValueError("a window has unknown slots")
    return (number, x, c), sets
