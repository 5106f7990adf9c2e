"""Questions about a learned model: the shortest traces that would settle what its training traces leave open.

A question is a trace; the answer is whether its last action is possible after the others, from some state. There are
two kinds. What the model *allows*: the report of schemas lists which action never followed another in places where it
was to be expected, and a rule that forbids it would explain the training traces as well. The trace is a shortest one
that the model accepts and the rule rejects (`verification.search`). Then come all other pairs of actions, or of slots
of schemas, of which no training trace shows that the second may follow the first. What it *forbids*: each precondition;
the trace is a shortest one that the model rejects by this precondition alone. What the training traces decide anyway
(`exact.verdicts`) is left out.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from statewise.runtime.durable import write_atomically
from statewise.runtime.json_files import ANYTHING, TEXT, Shape, check, loads, read_json
from statewise.runtime.messages import short
from statewise.strips.exact.verdicts import Seen
from statewise.strips.exact.windows import any_inside
from statewise.strips.model.heads import Head, as_model, heads
from statewise.strips.model.learned import read_learned_model, read_schemas
from statewise.strips.model.model import Action, ActionModel, bits
from statewise.strips.model.schemas import Schema, arguments, ground, with_variables
from statewise.strips.model.traces import Trace, Traces
from statewise.strips.verification.containment import KnownFalseSearch
from statewise.strips.verification.search import LimitReached, Limits, shortest

ARITY = 2
"""The most arguments of the predicates that questions about pairs are about."""
WIDER = 5
"""The most traces that are tried for a question, while the training traces decide them."""
EACH = 2.0
"""Seconds for the shortest trace of one question."""
MOST_STATES = 50_000
"""States searched for one question."""


@dataclass(frozen=True)
class Question:
    """A trace to ask about."""

    trace: tuple[str, ...]
    allowed: bool
    """Whether the model accepts the trace; otherwise it rejects the last action."""
    about: str
    """What the answer settles, in words."""


@dataclass(frozen=True)
class Asked:
    """The questions about a model."""

    questions: tuple[Question, ...]
    more: bool
    """Whether there may be more: the number or the time was too small."""


def ask(folder: str | Path, *, num: int = 10, seconds: float = 20.0) -> Asked:
    """At most `num` questions about the learned model in a folder, found within `seconds`: first those about what it
    allows, those with most evidence first, then about what it forbids, the shortest first. Raises `ValueError` if the
    folder holds no learned model, or for numbers below 1."""
    if num < 1 or not seconds > 0:
        raise ValueError(f"num must be at least 1 and seconds above 0, not {num} and {seconds}")
    folder = Path(folder)
    model, schemas = read_learned_model(folder), read_schemas(folder)
    seen = Seen.load(folder)
    if seen is not None and seen.constants:
        seen = seen.with_constants([])
    end = time.monotonic() + seconds

    def left() -> float:
        return min(EACH, end - time.monotonic())

    found: dict[tuple[str, ...], Question] = {}
    more = False
    allowed = chain(
        _allowed(model, folder / "report.json", left) if schemas is not None else (),
        _never_seen(model, seen, left) if seen is not None else (),
    )
    forbidden = (
        _forbidden_by_schemas(model, schemas, seen, left) if schemas is not None else _forbidden(model, seen, left)
    )
    for kind in (allowed, forbidden):
        mine: dict[tuple[str, ...], Question] = {}
        for each in kind:
            if each is not None and each.trace not in found and (seen is None or _open(seen, each.trace)):
                mine.setdefault(each.trace, each)
            if left() <= 0 or (kind is allowed and len(mine) > num):
                more = True
                break
        found |= (
            mine if kind is allowed else {each: mine[each] for each in sorted(mine, key=lambda one: (len(one), one))}
        )
    questions = tuple(found.values())
    return Asked(questions[:num], more or len(questions) > num)


def _open(seen: Seen, trace: Sequence[str]) -> bool:
    """Whether the training traces leave the trace undecided."""
    return seen.verdict(trace).outcome == "undecided"


def _found(model: ActionModel, wanted: Sequence[Head], seconds: float) -> Trace | None:
    """A shortest trace that the model accepts and one of the heads rejects; None if none was found."""
    if seconds <= 0:
        return None
    searches = [KnownFalseSearch(model, head) for head in wanted if not head.idle]
    try:
        result = shortest(searches, Limits(seconds, MOST_STATES), tuple)
    except LimitReached:
        return None
    return result.found


OPEN: Shape = [{"action": TEXT, "after": TEXT, "without": [TEXT], "places": ANYTHING, "expected": ANYTHING}]
"""What the report of schemas holds about open questions."""


def _allowed(model: ActionModel, report: Path, left: Callable[[], float]) -> Iterator[Question | None]:
    """Questions about the open questions of a report."""
    content = read_json(report, ANYTHING)
    listed = content.get("open", []) if isinstance(content, dict) else []
    for each in check(listed, OPEN, f"{report}: open"):
        trace = _found(model, _rules(each, model.names), left())
        without = f" without {', '.join(each['without'])} between" if each["without"] else ""
        about = f"may {each['action']} follow {each['after']}{without}?"
        yield Question(tuple(model.names[at] for at in trace), True, about) if trace else None


def _rules(question: Mapping[str, Any], names: Sequence[str]) -> list[Head]:
    """The rules that forbid what a question of a report is about, one for each choice of the objects that matter."""

    def slot(pattern: str) -> tuple[str, tuple[int, ...]]:
        schema, *places = pattern.split()
        return schema, tuple(at for _, at in sorted((each, at) for at, each in enumerate(places) if each != "?"))

    return _rule(slot(question["action"]), list(map(slot, question["without"])), slot(question["after"]), names)


def _never_seen(model: ActionModel, seen: Seen, left: Callable[[], float]) -> Iterator[Question | None]:
    """Questions about pairs of actions, or of slots: rules that forbid the second after the first, unless one of the
    fewest other actions comes between that explain the training traces."""
    for number, signature in enumerate(seen.lifted or (None,)):
        slots = [(name, ()) for name in seen.actions] if signature is None else list(signature.slots)
        if signature is not None and len(signature.sorts) > ARITY:
            continue
        for x in range(len(slots)):
            for c in range(len(slots)):
                windows = seen.minimal.get((number, x, c), [])
                if 0 in windows:
                    continue  # whatever comes between
                between = 0
                for other in range(len(slots)):
                    if other != x and not any_inside(between | 1 << other, windows):
                        between |= 1 << other
                adds = [slots[at] for at in range(len(slots)) if at != x and not between >> at & 1]
                trace = _found(model, _rule(slots[c], adds, slots[x], model.names), left())
                without = f" without {', '.join(map(_slot, adds))} between" if adds else ""
                about = f"may {_slot(slots[c])} follow {_slot(slots[x])}{without}?"
                yield Question(tuple(model.names[at] for at in trace), True, about) if trace else None


def _slot(slot: tuple[str, Sequence[int]]) -> str:
    """A slot with x1, x2, ... for its arguments, as far as they matter."""
    name, places = slot
    named = {place: f"x{at + 1}" for at, place in enumerate(places)}
    return " ".join((name, *(named.get(place, "?") for place in range(max(places, default=-1) + 1))))


def _rule(
    second: tuple[str, Sequence[int]],
    adds: Sequence[tuple[str, Sequence[int]]],
    first: tuple[str, Sequence[int]],
    names: Sequence[str],
) -> list[Head]:
    """The rule that the second action is impossible after the first unless one of `adds` is between, for each choice of
    the objects of the slots. A slot without arguments may be a whole ground action."""
    parts: dict[tuple[str, ...], list[int]] = {}
    for which, slots in enumerate(([second], adds, [first])):
        for schema, places in slots:
            for at, name in enumerate(names):
                own, objects = arguments(name)
                if name == schema or own == schema:
                    key = tuple(objects[place] for place in places)
                    parts.setdefault(key, [0, 0, 0])[which] |= 1 << at
    return [
        Head(" ".join(("rule", *key)), pre, add, delete & ~add) for key, (pre, add, delete) in sorted(parts.items())
    ]


def _forbidden_by_schemas(
    model: ActionModel, schemas: Mapping[str, Schema], seen: Seen | None, left: Callable[[], float]
) -> Iterator[Question | None]:
    """Questions about the preconditions of schemas."""
    for name, schema in schemas.items():
        for literal in sorted(schema.pre):
            weaker = ground({**schemas, name: replace(schema, pre=schema.pre - {literal})}, model.names)
            mine = sum(1 << at for at, each in enumerate(model.names) if arguments(each)[0] == name)
            own = [head for head in heads(model) if arguments(head.name)[0] == literal[0]]
            trace = _rejected(weaker, [replace(head, pre=head.pre & mine) for head in own], seen, left)
            about = f"does {name} require {with_variables(literal)}, which is false here?"
            yield Question(trace, False, about) if trace else None


def _forbidden(model: ActionModel, seen: Seen | None, left: Callable[[], float]) -> Iterator[Question | None]:
    """Questions about the preconditions of ground actions."""
    columns = heads(model)
    for at, action in enumerate(model.actions):
        for atom in bits(action.pre):
            changed = Action(action.name, action.pre & ~(1 << atom), action.add, action.delete)
            weaker = ActionModel(model.atoms, (*model.actions[:at], changed, *model.actions[at + 1 :]))
            trace = _rejected(weaker, [replace(columns[atom], pre=1 << at)], seen, left)
            about = f"does {action.name} require {model.atoms[atom]}, which is false here?"
            yield Question(trace, False, about) if trace else None


def _rejected(
    weaker: ActionModel, wanted: Sequence[Head], seen: Seen | None, left: Callable[[], float]
) -> tuple[str, ...] | None:
    """A trace that the model accepts, one of the heads rejects, and the training traces leave open; None if none was
    found. After a trace that they decide, one with other actions between the first and the last is tried."""
    within = {
        name: arguments(name)[0] if seen is not None and seen.lifted is not None else name for name in weaker.names
    }
    accepting = list(heads(weaker))
    deleting = sum({1 << at for head in wanted for at in bits(head.delete)})
    requiring = sum({1 << at for head in wanted for at in bits(head.pre)})
    for attempt in range(WIDER):
        trace = _found(as_model(accepting, weaker.names), wanted, left())
        if trace is None:
            return None
        names = tuple(weaker.names[at] for at in trace)
        if seen is None or _open(seen, names):
            return names
        between = {within[name] for name in names[1:-1]}
        others = sum(1 << at for at, name in enumerate(weaker.names) if within[name] not in between)
        accepting.append(Head(f"other {attempt}", requiring, others & ~deleting, deleting))
    return None


def answered(question: Question, model: ActionModel) -> tuple[tuple[str, ...], int]:
    """The answer of a model to a question, as a trace with its label: up to the first action that the model rejects.
    Raises `ValueError` for an action that the model lacks."""
    for name in question.trace:
        if name not in model.number:
            raise ValueError(f"{name!r} is not an action of the model that is to answer")
    at = model.first_rejected([model.number[name] for name in question.trace])
    return (question.trace, 0) if at is None else (question.trace[: at + 1], 1)


def write_questions(
    asked: Asked, path: str | Path, answers: Sequence[tuple[tuple[str, ...], int]] | None = None
) -> None:
    """Writes JSON lines with `actions`, `label` (null: not answered) and `question`, which `read_answers` reads."""
    rows: Sequence[tuple[tuple[str, ...], int | None]] = answers or [(each.trace, None) for each in asked.questions]
    lines = [
        json.dumps({"actions": list(trace), "label": label, "question": each.about})
        for each, (trace, label) in zip(asked.questions, rows)
    ]
    write_atomically(Path(path), "".join(f"{line}\n" for line in lines).encode())


def read_answers(path: str | Path) -> list[tuple[tuple[str, ...], int]]:
    """The answered traces of a file that `write_questions` wrote: label 0 for a valid trace, 1 if its last action is
    impossible; those with label null are left out. Raises `ValueError` with file and line."""
    from statewise.strips.trace_data.trace_files import text_of

    path = Path(path)
    answers: list[tuple[tuple[str, ...], int]] = []
    for line, text in enumerate(text_of(path).split("\n"), 1):
        if not text.strip():
            continue
        try:
            value = loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}:{line}: {error}") from None
        actions = value.get("actions") if isinstance(value, dict) else None
        if (
            not isinstance(actions, list)
            or not actions
            or not all(isinstance(each, str) and each.strip() for each in actions)
        ):
            raise ValueError(
                f'{path}:{line}: an answer is {{"actions": ["pick a", ...], "label": 0 or 1}}, not {short(text)}'
            )
        label = value.get("label")
        if label is None:
            continue
        if isinstance(label, bool) or label not in (0, 1):
            raise ValueError(
                f"{path}:{line}: label must be 0 (the trace is valid), 1 (its last action is impossible) or null (not "
                f"answered), not {short(label)}"
            )
        answers.append((tuple(" ".join(each.split()) for each in actions), int(label)))
    return answers


def with_answers(traces: Traces, answers: Sequence[tuple[Sequence[str], int]]) -> Traces:
    """The traces, without those that were asked about, and the answers. The actions are those of both, sorted."""
    names = sorted({*traces.actions, *(name for trace, _ in answers for name in trace)})
    number = {name: at for at, name in enumerate(names)}
    own = {tuple(number[name] for name in trace): label for trace, label in answers}
    moved = traces.with_actions(names)
    kept = [each for each in zip(moved.rows, moved.labels) if each[0] not in own]
    both = [*kept, *own.items()]
    return Traces(tuple(names), tuple(row for row, _ in both), tuple(label for _, label in both))
