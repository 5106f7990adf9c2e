"""Three-valued verdicts: what every action model that explains the training traces says about a new trace.

A trace is *certainly valid* if every such model accepts it. This is the case iff each of its windows (x, W, c) contains
a seen window: otherwise the atom that x deletes, c requires and all actions outside W add explains the valid traces and
rejects c, and may be part of any model.

A trace is *certainly invalid* if no such model accepts it. Suppose that it is valid, and count its own windows as seen:
this contradicts the training traces iff some negative trace then ends in an action that is certainly valid.

The training traces leave everything else undecided. No verdict is wrong if the training traces are those of some action
model and free of errors. Nothing is certain from the first action on that was never valid in training.

For lifted models, the windows are those of slots (`predicates`), and only schemas of one kind are considered
(`Seen.assumed`), so that much more is decided: a literal is a predicate of at most `arity` different arguments of the
action, and preconditions are positive. Nothing is certain from the first action on that has an unknown schema or an
object of another sort.

One object may be a *constant*, which an action requires or changes without having it as an argument: `put_on_tray ?s
?t` of childsnack requires `at ?t kitchen`. Names do not show which object this is, so it may be any object of training
(`Seen.constants`). Each of them has its own evidence, from actions that are written with the object as a part of their
schema (`apart`): predicates of the other arguments can then express every predicate with this constant. What was seen
of the constant says nothing about other objects, so their windows leave it out. A verdict is given only if no choice of
the constant changes it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from statewise.runtime.json_files import ANYTHING, COUNT, FLAG, TEXT, Leaf, Shape, check, one_of, read_json
from statewise.runtime.messages import counted
from statewise.strips.exact.predicates import (
    Event,
    Recent,
    Signature,
    events,
    latest_first,
    signatures,
    slot_windows,
    windows_of_event,
)
from statewise.strips.exact.windows import Windows, any_inside, valid_rows, windows_of
from statewise.strips.model.heads import ActionSet, Head
from statewise.strips.model.learned import SEEN_FILE
from statewise.strips.model.schemas import arguments, sorts_of
from statewise.strips.model.traces import Trace, Traces

FORMAT = "statewise seen windows 2"
EARLIER = "statewise seen windows 1"
"""The earlier format, without constants and without the actions that happened."""
_WINDOWS: Shape = {"signatures": [[ANYTHING]], "windows": [[ANYTHING]]}
SHAPE: Shape = {
    "format": one_of(FORMAT),
    "actions": [TEXT],
    "arity": COUNT,
    "lifted": FLAG,
    "signatures": [[ANYTHING]],
    "windows": [[ANYTHING]],
    "negatives": [[[ANYTHING]]],
    "happened": [TEXT],
    "ends": [[[COUNT]]],
    "constants": {...: _WINDOWS},
}
_SET = Leaf("a hexadecimal number", lambda value: isinstance(value, str) and bool(re.fullmatch("0x[0-9a-f]+", value)))

Pair = tuple[int, int, int]
"""(signature, x, c): the number of the signature and two slots; for a ground model 0 and two actions."""
Option = tuple[Pair, ActionSet]
"""A pair and a window."""
UNKNOWN: Option = ((-1, 0, 0), 0)
"""The option of an action about which nothing is known: as it may do anything, nothing is certain from it on."""
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


def kind_of_schemas(arity: int, constants: Sequence[str] = ()) -> str:
    """The kind of schemas that verdicts are about, in words: predicates have at most `arity` arguments, and one of the
    objects `constants` may be a constant."""
    named = " or ".join(constants) if len(constants) <= 3 else f"any of {len(constants)}"
    also = (
        f"except that one object ({named}) may be a constant in predicates of at most {arity - 1}"
        if constants
        else "no constants"
    )
    return (
        f"predicates of at most {counted(arity, 'argument')}, which are different arguments of the action, {also}, "
        "and no negative or equality preconditions"
    )


def apart(action: str, constant: str) -> str:
    """The action, written with `constant` and its places as a part of the schema instead of as arguments."""
    schema, objects = arguments(action)
    places = [str(at) for at, each in enumerate(objects) if each == constant]
    name = schema.replace("@", "@@") + ("@" + ",".join(places) if places else "")
    return " ".join((name, *(each for each in objects if each != constant)))


@dataclass
class Seen:
    """What the training traces show."""

    actions: tuple[str, ...]
    lifted: tuple[Signature, ...] | None = None
    """The signatures of the predicates considered; None for ground models."""
    arity: int = 0
    """The most arguments of these predicates."""
    minimal: dict[Pair, list[ActionSet]] = field(default_factory=dict)
    negatives: list[tuple[Option, ...]] = field(default_factory=list)
    """How the last action of each negative trace can be rejected: by those of its windows that contain no seen one."""
    happened: frozenset[str] = frozenset()
    """The actions that were valid in some trace; for lifted models their schemas."""
    ends: list[list[Trace]] = field(default_factory=list)
    """The negative traces that belong to each entry of `negatives`."""
    constants: dict[str, Seen] = field(default_factory=dict)
    """What the traces show if an object is the constant, for each object that may be: windows of the actions written
    `apart`, for predicates with one argument less."""

    @classmethod
    def of(
        cls,
        traces: Traces,
        *,
        arity: int | None = None,
        constants: Iterable[str] = (),
        reading: Callable[[Sequence[Trace]], Iterable[Trace]] = iter,
        has_time: Callable[[], bool] = lambda: True,
    ) -> Seen:
        """Reads the traces; for lifted models with `arity`, the most arguments of a predicate. Each of `constants` may
        be the constant of predicates with one argument less. Traces that `reading` does not pass on are ignored. Once
        `has_time()` is false, the remaining constants are not read, and verdicts that depend on them are undecided."""
        rows = valid_rows(traces)
        lifted = None if arity is None else _signatures(traces.actions, arity)
        seen = cls(traces.actions, lifted, arity or 0, _windows_of(traces.actions, lifted, rows, reading))
        happened = (traces.actions[at] for at in {at for row in rows for at in row})
        seen.happened = frozenset(name if lifted is None else arguments(name)[0] for name in happened)
        ends: dict[tuple[Option, ...], list[Trace]] = {}
        for row in reading(sorted({row for row, label in zip(traces.rows, traces.labels) if label})):
            last = next(seen.options([traces.actions[at] for at in row], start=len(row) - 1), [])
            mine = tuple(sorted(option for option in last if not seen._contains_seen(*option)))
            ends.setdefault(mine, []).append(row)
        seen.negatives = sorted(ends)
        seen.ends = [ends[each] for each in seen.negatives]
        if arity:
            for constant in constants:
                if not has_time():
                    seen.constants[constant] = cls((), (), arity - 1)
                    continue
                actions = tuple(apart(name, constant) for name in traces.actions)
                signatures_apart = _signatures(actions, arity - 1)
                windows = _windows_of(actions, signatures_apart, rows, reading)
                seen.constants[constant] = cls(actions, signatures_apart, arity - 1, windows)
        return seen

    def with_constants(self, names: Iterable[str]) -> Seen:
        """What the traces show if only these objects may be constants. Raises `ValueError` if one of them is not an
        object of the training traces, and for ground models."""
        wanted = list(dict.fromkeys(names))
        if self.lifted is None:
            raise ValueError("only schemas have constants, and this model was learned without `lifted`")
        for name in wanted:
            if name not in self.constants:
                raise ValueError(
                    f"{name!r} is not an object of the training traces, whose objects are: "
                    + (", ".join(self.constants) or "none")
                )
        return replace(self, constants={name: self.constants[name] for name in wanted})

    def verdict(self, names: Sequence[str]) -> Verdict:
        """What is certain about a trace of actions, given by name. Nothing is certain from the first action on that
        never happened in training, or does not fit the schemas and sorts of training."""
        first: int | None = None
        end, why = self._unfitting(names)
        supposed = _Supposed(self, names[:end])
        constants = {
            constant: _Supposed(seen, [apart(name, constant) for name in names[:end]])
            for constant, seen in self.constants.items()
        }
        contradicted: dict[Trace, set[str]] = {}
        for step in range(end):
            new = supposed.next()
            if new:
                first = step if first is None else first
                touched = {number for pair, _ in new for number in self._ending.get(pair, ())}
                for number in touched:
                    if supposed.explain(self.negatives[number]):
                        for row in self.ends[number]:
                            contradicted.setdefault(row, set(self.constants))
            for constant in {each for blamed in contradicted.values() for each in blamed}:
                constants[constant].up_to(step)
                for row, blamed in contradicted.items():
                    if constant in blamed and constants[constant].explain(self.constants[constant]._at_end(row)):
                        blamed.remove(constant)
            if not all(contradicted.values()):
                return Verdict("invalid", step)
        certain, why = (end, why) if first is None else (first, None)
        known, unknown = self._known(names[: certain + 1])
        if unknown is not None and (known < certain or why is None):
            certain, why = known, unknown
        for constant, seen in self.constants.items():
            sure = seen.certain_steps([apart(name, constant) for name in names[:certain]])
            if not all(sure):
                certain = sure.index(False)
                why = f"a model in which {constant!r} is a constant may reject it"
        return Verdict("valid", None) if certain == len(names) else Verdict("undecided", certain, why)

    def _at_end(self, row: Trace) -> list[Option]:
        """The windows of the last action of a training trace that contain no seen window."""
        if not self.actions:  # nothing was read
            return [UNKNOWN]
        if row not in self._of_row:
            last = next(self.options([self.actions[at] for at in row], start=len(row) - 1), [])
            self._of_row[row] = [option for option in last if not self._contains_seen(*option)]
        return self._of_row[row]

    @cached_property
    def _of_row(self) -> dict[Trace, list[Option]]:
        """Results of `_at_end`."""
        return {}

    @property
    def assumed(self) -> str:
        """What verdicts assume about schemas, in words."""
        return kind_of_schemas(self.arity, list(self.constants))

    @cached_property
    def _sorts(self) -> tuple[dict[tuple[str, int], int], dict[str, int]]:
        """The sort of each argument of each schema, and of each object of training."""
        return sorts_of(self.actions)

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The number of arguments of each schema of training; empty for a ground model."""
        return {} if self.lifted is None else {schema: len(objects) for schema, objects in map(arguments, self.actions)}

    def fits(self, name: str) -> bool:
        """Whether something is known about an action: it happened in training, or for lifted models its schema did,
        with objects of these sorts and, if some of its objects are constants, with these at these places."""
        return not (self._unfitting([name])[1] or self._known([name])[1]) and all(
            seen._touched(apart(name, constant)) is not None for constant, seen in self.constants.items()
        )

    def _unfitting(self, names: Sequence[str]) -> tuple[int, str | None]:
        """The position of the first action that does not fit what was learned, and the reason; if there is none, the
        number of actions, and None."""
        if self.lifted is None:
            return len(names), None
        parameters, known = self._sorts
        sorts = dict(known)
        for step, name in enumerate(names):
            schema, objects = arguments(name)
            if schema not in self.numbers:
                return step, f"no action {schema!r} was seen in training"
            if len(objects) != self.numbers[schema]:
                return step, f"in training it had {counted(self.numbers[schema], 'argument')}"
            for at, each in enumerate(objects):
                if sorts.setdefault(each, parameters[schema, at]) != parameters[schema, at]:
                    other = next(other for other, sort in known.items() if sort == parameters[schema, at])
                    return step, f"{each!r} is in a place of {other!r} in training, which is of another sort"
        return len(names), None

    def _known(self, names: Sequence[str]) -> tuple[int, str | None]:
        """The position of the first action that was never valid in training, and the reason; if there is none, the
        number of actions, and None."""
        for step, name in enumerate(names):
            what = name if self.lifted is None else arguments(name)[0]
            if what not in self.happened:
                seen = "was seen" if name not in self.actions else "was ever valid"
                return step, f"no action {what!r} {seen} in training"
        return len(names), None

    def certain_steps(self, names: Sequence[str]) -> list[bool]:
        """For each action of a trace, whether every model accepts it after the actions before it."""
        sure = [all(self._contains_seen(*option) for option in options) for options in self.options(names)]
        if self.happened:
            end = min(self._unfitting(names)[0], self._known(names)[0])
            sure[end:] = [False] * (len(names) - end)
        for constant, seen in self.constants.items():
            more = seen.certain_steps([apart(name, constant) for name in names])
            sure = [one and other for one, other in zip(sure, more)]
        return sure

    def options(self, names: Sequence[str], start: int = 0) -> Iterator[list[Option]]:
        """The windows of each action from `start` on."""
        if self.lifted is None:
            number = {name: place for place, name in enumerate(self.actions)}
            row = [number.setdefault(name, len(number)) for name in names]
            for windows in windows_of(row, start):
                yield [((0, x, c), between) for x, between, c in windows]
        else:
            yield from self._of_slots(names, start)

    def _of_slots(self, names: Sequence[str], start: int) -> Iterator[list[Option]]:
        assert self.lifted is not None
        recent: list[dict[tuple[str, ...], Recent]] = [{} for _ in self.lifted]
        known = True
        for step, name in enumerate(names):
            touched = self._touched(name) if known else None
            known = touched is not None
            options: list[Option] = []
            for number, of_tuple in enumerate(touched or ()):
                for tuple_of, event in of_tuple.items():
                    before = recent[number].get(tuple_of, [])
                    if step >= start:
                        options += (((number, x, c), between) for x, between, c in windows_of_event(event, before))
                    recent[number][tuple_of] = latest_first(event, before)
            if step >= start:
                yield options if known else [UNKNOWN]

    def _touched(self, name: str) -> list[dict[tuple[str, ...], Event]] | None:
        """For each signature the tuples of objects that an action mentions, and its slots for each tuple; None if its
        schema was not seen with this number of objects."""
        assert self.lifted is not None
        if name not in self._of_name:
            schema, objects = arguments(name)
            fits = self.numbers.get(schema) == len(objects)
            self._of_name[name] = [events(each, [name])[0] for each in self.lifted] if fits else None
        return self._of_name[name]

    @cached_property
    def _of_name(self) -> dict[str, list[dict[tuple[str, ...], Event]] | None]:
        """Results of `_touched`."""
        return {}

    def _contains_seen(self, pair: Pair, between: ActionSet) -> bool:
        return any_inside(between, self.minimal.get(pair, ()))

    @cached_property
    def _ending(self) -> Mapping[Pair, list[int]]:
        """The numbers of the negative traces by the pairs of their options."""
        by_pair: dict[Pair, list[int]] = {}
        for number, options in enumerate(self.negatives):
            for pair in {pair for pair, _ in options}:
                by_pair.setdefault(pair, []).append(number)
        return by_pair

    def guards(self, names: Sequence[str], step: int, actions: Sequence[str]) -> list[Head]:
        """Atoms over `actions` that explain the valid traces and reject the action at `step`, which is not certain: one
        for ground models, one for each tuple of objects for schemas. They reject the action wherever it is uncertain
        for the same reason. Empty if nothing is known about the action (`fits`) or one before it."""
        options = next(self.options(names, start=step))
        pair, between = next((option for option in options if not self._contains_seen(*option)), UNKNOWN)
        number, x, c = pair
        if number < 0:
            for constant, seen in self.constants.items():
                spelled = [apart(name, constant) for name in names]
                if not all(seen._contains_seen(*option) for option in next(seen.options(spelled, start=step))):
                    return seen.guards(spelled, step, [apart(name, constant) for name in actions])
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
        parts_of: dict[tuple[str, ...], list[ActionSet]] = {}
        for at, mine in enumerate(touched):
            for tuple_of, event in mine.items():
                adds = any(not kept >> slot & 1 for slot in event)
                holds = (c in event, adds, x in event and not adds)
                parts = parts_of.setdefault(tuple_of, [0, 0, 0])
                for which, does in enumerate(holds):
                    parts[which] |= does << at
        made = (Head(" ".join(("guard", *tuple_of)), *parts) for tuple_of, parts in parts_of.items())
        return [each for each in made if not each.idle]

    def as_json(self) -> bytes:
        """The content of `seen.json`."""
        content = {
            "format": FORMAT,
            "actions": self.actions,
            "arity": self.arity,
            "lifted": self.lifted is not None,
            **self._windows_as_json(),
            "negatives": [[[*pair, hex(between)] for pair, between in options] for options in self.negatives],
            "happened": sorted(self.happened),
            "ends": self.ends,
            "constants": {name: seen._windows_as_json() for name, seen in self.constants.items()},
        }
        return (json.dumps(content) + "\n").encode()

    def _windows_as_json(self) -> dict[str, Any]:
        return {
            "signatures": [[each.sorts, each.slots] for each in self.lifted or ()],
            "windows": [[*pair, *map(hex, windows)] for pair, windows in sorted(self.minimal.items())],
        }

    @classmethod
    def load(cls, folder: Path) -> Seen | None:
        """Reads `seen.json` of a learned folder; None if there is no such file. Raises `ValueError` if it is damaged or
        was written by an earlier version."""
        path = folder / SEEN_FILE
        if not path.is_file():
            return None
        if read_json(path, {"format": TEXT})["format"] == EARLIER:
            raise ValueError(f"{path} was written by an earlier version, whose verdicts may be wrong: learn again")
        content = read_json(path, SHAPE)
        actions: tuple[str, ...] = tuple(content["actions"])
        try:
            lifted, windows, slots = _read_windows(content, len(actions), lifted=content["lifted"])
            negatives = [
                tuple((pair, one) for pair, (one,) in (_windows(each, slots) for each in options))
                for options in content["negatives"]
            ]
            ends = [[tuple(row) for row in rows] for rows in content["ends"]]
            if len(ends) != len(negatives) or not all(row and max(row) < len(actions) for rows in ends for row in rows):
                raise ValueError("its negative traces are not those of its ends")
            if content["constants"] and not (content["lifted"] and content["arity"]):
                raise ValueError("it has constants, which are those of schemas")
            constants = {}
            for name, part in content["constants"].items():
                unread = not part["signatures"] and not part["windows"]
                mine, minimal, _ = ((), {}, []) if unread else _read_windows(part, 0, lifted=True)
                known = () if unread else tuple(apart(each, name) for each in actions)
                constants[name] = cls(known, mine, content["arity"] - 1, minimal)
        except ValueError as error:
            raise ValueError(f"{path}: damaged: {error}") from None
        return cls(
            actions, lifted, content["arity"], windows, negatives, frozenset(content["happened"]), ends, constants
        )


class _Supposed:
    """The windows of a trace that contain no seen one, added one action after the other as if they had been seen."""

    def __init__(self, seen: Seen, names: Sequence[str]) -> None:
        self._seen, self._options, self._read = seen, seen.options(names), 0
        self._windows: dict[Pair, list[ActionSet]] = {}

    def next(self) -> list[Option]:
        """The windows of the next action that contain no seen one."""
        new = [option for option in next(self._options) if not self._seen._contains_seen(*option)]
        for pair, between in new:
            if (pair, between) != UNKNOWN:
                self._windows.setdefault(pair, []).append(between)
        self._read += 1
        return new

    def up_to(self, step: int) -> None:
        """Reads the trace up to the action at `step`."""
        while self._read <= step:
            self.next()

    def explain(self, options: Iterable[Option]) -> bool:
        """Whether an end that could be rejected by these windows becomes certainly valid."""
        return all(any_inside(between, self._windows.get(pair, ())) for pair, between in options)


def _signatures(actions: Sequence[str], arity: int) -> tuple[Signature, ...]:
    """The signatures of at most `arity` arguments."""
    return tuple(each for count in range(arity + 1) for each in signatures(actions, count))


def _windows_of(
    actions: Sequence[str],
    lifted: Sequence[Signature] | None,
    rows: Sequence[Trace],
    reading: Callable[[Sequence[Trace]], Iterable[Trace]],
) -> dict[Pair, list[ActionSet]]:
    """The minimal windows of actions, or of the slots of signatures."""
    parts = (
        [Windows.of_rows(len(actions), reading(rows))]
        if lifted is None
        else [slot_windows(each, actions, reading(rows)) for each in lifted]
    )
    return {(number, *pair): some for number, part in enumerate(parts) for pair, some in part.minimal.items()}


def _read_windows(
    content: Mapping[str, Any], actions: int, *, lifted: bool
) -> tuple[tuple[Signature, ...] | None, dict[Pair, list[ActionSet]], list[int]]:
    """Signatures, minimal windows, and the number of slots of each signature, or of `actions`. Raises `ValueError` if
    they are damaged."""
    lifted_signatures = tuple(map(_signature, content["signatures"])) if lifted else None
    if lifted_signatures == ():
        raise ValueError("it holds no signature")
    slots = [actions] if lifted_signatures is None else [len(each.slots) for each in lifted_signatures]
    return lifted_signatures, dict(_windows(each, slots) for each in content["windows"]), slots


def _signature(entry: list[Any]) -> Signature:
    """An entry of `signatures`: sorts and slots. Raises `ValueError` if it is damaged."""
    sorts, slots = entry
    check(sorts, [COUNT], "the sorts of a signature")
    check(slots, [[ANYTHING]], "the slots of a signature")
    read = []
    for schema, at in slots:
        check(schema, TEXT, "the schema of a slot")
        check(at, [COUNT], "the arguments of a slot")
        read.append((schema, tuple(at)))
    return Signature(tuple(sorts), tuple(read))


def _windows(entry: list[Any], slots: Sequence[int]) -> tuple[Pair, list[ActionSet]]:
    """A pair with its windows, where signatures have so many `slots`. Raises `ValueError` if it is damaged."""
    number, x, c = check(entry[:3], [COUNT], "the slots of a window")
    sets = [int(each, 16) for each in check(entry[3:], [_SET], "the slots between")]
    if number >= len(slots) or max(x, c) >= slots[number] or any(each >> slots[number] for each in sets):
        raise ValueError("a window has unknown slots")
    return (number, x, c), sets
