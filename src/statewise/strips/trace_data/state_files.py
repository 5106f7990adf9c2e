"""Files of traces with observed states.

| form | example |
| --- | --- |
| trajectories (AMLGym, FAMA) | `(:trajectory (:init (p a)) (:action (go a b)) (:state (p b)) ...)` |
| JSON | `{"actions": ["go a b"], "states": [["p a"], ["p b"]]}`; `next_states` has the states after the actions |
| JSON by steps (macq) | `[{"state": {"(p t a)": true}, "action": "(go t a t b)"}, {"state": ...}]` |
| CSV | a column `state`, before the action of its row, or `next_state`, after it |

A state is a list of atoms, an object from atoms to true, false or null, or text that holds atoms in parentheses or
separated by `,` or `;`. Atoms are written `on a b`, `(on a b)`, `on(a, b)`, as PDDLGym does `on(a:block,b:block)`, or
`["on", "a", "b"]`, and negated `(not (on a b))` or `not on(a,b)`.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn

from statewise.runtime.json_files import loads
from statewise.runtime.messages import short
from statewise.strips.model.states import Observed, State
from statewise.strips.model.traces import Traces
from statewise.strips.trace_data.plan_texts import Place, holds_states, one_line
from statewise.strips.trace_data.trace_files import read_traces, text_of

Reading = Literal["auto", "some", "full"]
"""How atoms that a state does not list are read: as false (full), as unknown (some), or (auto) as false if no state
lists false atoms."""

TRAJECTORY = re.compile(r"\s*\(\s*(?::?(?:trajectory|observation)\b|\(\s*:(?:init|state|objects)\b)", re.IGNORECASE)
COMMENT = re.compile(r";[^\n]*")
SECTION = re.compile(r"\s*(?:\(\s*:?([a-z]+):?(?=[\s()])|(\)))")
STEP = re.compile(r"\s*(?:\(\s*([^\s()][^()]*?)\s*\)|([^\s()][^()]*?))?\s*\)")
_LITERALS = r"((?:\s*\(\s*not\s*\([^()]*\)\s*\)|\s*\((?!\s*(?:and|not)\b)[^()]*\))*)"
ATOMS = re.compile(rf"\s*(?:\(\s*and\b{_LITERALS}\s*\)|{_LITERALS})\s*\)")
NEGATED = re.compile(r"\(\s*not\s*\(([^()]*)\)\s*\)")
ATOM = re.compile(r"\(([^()]*)\)")
CALL = re.compile(r"\s*([^\s(),;]+)\s*\(([^()]*)\)\s*")
AFTER = re.compile(r"(?:next|new|after|post|result)", re.IGNORECASE)
"""Names of states after an action."""


def read_observed(path: str | Path, states: Reading = "auto") -> Observed:
    """Reads traces with observed states from a file or a folder with a file per plan or trajectory; traces without
    states are read like `read_traces` does. `states` says how atoms that a state does not list are read (`Reading`).

    Raises `ValueError` with file and line, or the number of the trace."""
    path = Path(path)
    if not path.is_dir():
        return _observed(_walks(path), states, path)
    files = sorted(each for each in path.iterdir() if each.is_file() and not each.name.startswith("."))
    if not files:
        raise ValueError(f"{path} holds no traces")
    return joined_files(files, states)


def joined_files(paths: Sequence[str | Path], states: Reading = "auto") -> Observed:
    """The traces of several files, like those of a folder (`read_observed`). Raises `ValueError`."""
    parts = []
    for path in map(Path, paths):
        parts += [
            _Walk(each.actions, each.states, each.label, each.line, path.name, each.unread) for each in _walks(path)
        ]
    if not parts:
        raise ValueError("there are no traces")
    return _observed(parts, states, Path(paths[0]).parent)


@dataclass
class _Walk:
    """A trace as a file writes it."""

    actions: list[str] = field(default_factory=list)
    states: list[State | None] = field(default_factory=list)
    label: int = 0
    line: int = 1
    file: str = ""
    unread: tuple[str, ...] = ()
    """What else its file holds, beside states."""


def _observed(walks: Sequence[_Walk], reading: Reading, path: Path) -> Observed:
    names = sorted({name for walk in walks for name in walk.actions})
    number = {name: place for place, name in enumerate(names)}
    for walk in walks:
        if not walk.actions:
            Place(path / walk.file if walk.file else path, walk.line).fail(
                "empty trace: it must have at least one action"
            )
    traces = Traces(
        tuple(names),
        tuple(tuple(number[name] for name in walk.actions) for walk in walks),
        tuple(walk.label for walk in walks),
        tuple(walk.line for walk in walks),
        tuple(walk.file for walk in walks) if all(walk.file for walk in walks) else (),
        tuple(dict.fromkeys(what for walk in walks for what in walk.unread)),
    )
    observed = Observed(traces, tuple(tuple(walk.states) for walk in walks))
    try:
        predicates = observed.predicates
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    false = any(state.false for states in observed.states for state in states if state)
    if reading == "full" or (reading == "auto" and not false):
        return observed.with_complete(frozenset(predicates))
    return observed


def _walks(path: Path) -> list[_Walk]:
    text = text_of(path)
    plain = COMMENT.sub(lambda match: " " * len(match[0]), text) if ";" in text else text
    if TRAJECTORY.match(plain):
        return list(_trajectories(plain.lower(), path))
    if steps := _steps(text, path):
        return steps
    traces = read_traces(path, ignore_states=True)
    unread = tuple(what for what in traces.unread if not holds_states(what.partition(" ")[2].partition(" ")[2]))
    walks = [
        _Walk([traces.actions[at] for at in row], [None] * (len(row) + 1), label, line, unread=unread)
        for row, label, line in zip(traces.rows, traces.labels, traces.lines)
    ]
    begin = text.lstrip()[:1]
    suffix = path.suffix.lower()
    if suffix in (".jsonl", ".json") or (begin in ("{", "[") and suffix not in (".csv", ".tsv")):
        _add_json(text, path, walks)
    elif suffix in (".csv", ".tsv") or "trace_id" in text.lstrip()[:1000].partition("\n")[0]:
        _add_csv(text, path, walks)
    return walks


# ---- trajectories ----


def _trajectories(text: str, path: Path) -> Iterator[_Walk]:
    """The trajectories of a text in lower case without comments."""
    at, known = 0, dict[str, str]()

    def fail(message: str) -> NoReturn:
        Place(path, text.count("\n", 0, at) + 1).fail(message)

    while text[at:].strip():
        start = re.compile(r"\s*\(\s*(?::?(?:trajectory|observation)\b)?").match(text, at)
        if start is None:
            fail(f"{short(text[at:].split()[0])} stands outside the parentheses of a trajectory")
        walk = _Walk(line=text.count("\n", 0, start.end()) + 1)
        at = start.end()
        before: State | None = None
        seen = False
        while True:
            section = SECTION.match(text, at)
            if section is None:
                rest = text[at:].split()
                fail(f"expected a part of the trajectory here, not {short(rest[0])}" if rest else "( is not closed")
            if section[2]:
                at = section.end()
                break
            at, kind = section.start(1), section[1]
            if kind in ("action", "operator"):
                step = STEP.match(text, section.end())
                words = (step[1] or step[2] or "").split() if step else []
                if step is None or not words:
                    fail("expected one action here, such as (:action (pick a))")
                walk.states.append(before if seen else None)
                walk.actions.append(" ".join(words))
                before, seen = None, False
                at = step.end()
            elif kind in ("init", "state", "observation"):
                atoms = ATOMS.match(text, section.end())
                if atoms is None:
                    fail(f"the atoms of ({kind} ...) cannot be read: they look like (on a b) or (not (on a b))")
                state = _of_pddl(atoms[1] or atoms[2] or "", known)
                if state is None:
                    fail("an atom without a predicate, or the value of a function, which is not STRIPS")
                if seen and before != state:
                    fail("a second state without an action between")
                before, seen = state, True
                at = atoms.end()
            elif kind in ("objects", "goal"):
                at = _closed(text, section.end(), fail)
            else:
                fail(
                    f"({short(kind)} ...) is not a part of a trajectory that can be read: there are :objects, :init, "
                    ":action, :state, :goal"
                )
        walk.states.append(before if seen else None)
        yield walk


def _closed(text: str, at: int, fail: Any) -> int:
    """Where the list ends whose first word ends before `at`."""
    depth = 1
    for match in re.compile(r"[()]").finditer(text, at):
        depth += 1 if match[0] == "(" else -1
        if not depth:
            return match.end()
    fail("( is not closed")
    raise AssertionError


def _of_pddl(text: str, known: dict[str, str]) -> State | None:
    """The state of atoms in parentheses; None if one of them is not an atom. `known` holds atoms by their text."""
    false: list[str] = []
    if "not" in text:
        false = NEGATED.findall(text)
        text = NEGATED.sub("", text)
    parts = []
    for each in (ATOM.findall(text), false):
        atoms = set()
        for content in each:
            atom = known.get(content)
            if atom is None:
                atom = known[content] = one_line(content)
            if not atom or atom[0] == "=":
                return None
            atoms.add(atom)
        parts.append(frozenset(atoms))
    return State(parts[0], parts[1])


# ---- JSON ----


def _add_json(text: str, path: Path, walks: Sequence[_Walk]) -> None:
    """Adds the states of JSON objects to their traces."""
    from statewise.strips.trace_data.trace_files import _json_values

    for walk, (line, value) in zip(walks, _json_values(text, path)):
        keys = [key for key in value if holds_states(key)] if isinstance(value, dict) else []
        for key in keys:
            _add_list(walk, value[key], key, Place(path, line))


def _steps(text: str, path: Path) -> list[_Walk]:
    """The traces of JSON that lists steps, each with a state and the action after it; empty if it does not."""
    if not text.lstrip().startswith(("[", "{")):
        return []
    try:
        value = loads(text)
    except ValueError:
        return []
    traces = value if isinstance(value, list) and value and all(isinstance(each, list) for each in value) else [value]
    walks = []
    for number, steps in enumerate(traces, 1):
        if isinstance(steps, dict):
            steps = steps.get("steps", steps.get("observations"))
        if not isinstance(steps, list) or not steps or not all(isinstance(each, dict) for each in steps):
            return []
        if any("actions" in each for each in steps) or not any("state" in each for each in steps):
            return []
        walk, place = _Walk(line=number), Place(path, number)
        for at, each in enumerate(steps):
            walk.states.append(_state(each.get("state"), place))
            action = each.get("action")
            if action is None and at == len(steps) - 1:
                break
            if not isinstance(action, str) or not action.strip():
                place.fail(f"step {at + 1} of trace {number} has no action, which only the last step may lack")
            walk.actions.append(_atom(action, place)[0])
        if len(walk.states) == len(walk.actions):
            walk.states.append(None)
        walks.append(walk)
    return _without_types(walks)


def _without_types(walks: list[_Walk]) -> list[_Walk]:
    """The traces without the types that macq writes before each object: `stack block a block b`."""
    texts = {name for walk in walks for name in walk.actions}
    texts |= {atom for walk in walks for state in walk.states if state is not None for part in state for atom in part}
    split = {text: text.split() for text in texts}
    types = {word for words in split.values() for word in words[1::2]}
    objects = {word for words in split.values() for word in words[2::2]}
    if types & objects or not objects or not all(len(words) % 2 for words in split.values()):
        return walks
    plain = {text: " ".join((words[0], *words[2::2])) for text, words in split.items()}
    for walk in walks:
        walk.actions = [plain[name] for name in walk.actions]
        walk.states = [
            state and State(*(frozenset(plain[atom] for atom in part) for part in state)) for state in walk.states
        ]
    return walks


def _add_list(walk: _Walk, value: object, key: str, place: Place) -> None:
    count = len(walk.actions)
    if value is None:
        return
    if not isinstance(value, list):
        place.fail(f"{short(key)} must be a list with a state for each action, not {short(value)}")
    after = bool(AFTER.match(key)) and len(value) <= count
    if len(value) not in (count, count + 1) and not (len(value) == 1 and not after):
        place.fail(
            f"{short(key)} has {len(value)} states for {count} actions: give one before each action and one after the "
            "last, or null where a state is not known"
        )
    for at, state in enumerate(value):
        _put(walk, at + after, _state(state, place), place)


def _put(walk: _Walk, at: int, state: State | None, place: Place) -> None:
    """Adds what is known of a state. A state may be given twice: after an action and before the next."""
    if state is None:
        return
    before = walk.states[at]
    if before is not None and before != state:
        place.fail(f"two different states are given before action {at + 1}")
    walk.states[at] = state


def _state(value: object, place: Place) -> State | None:
    """A state as JSON or a cell writes it."""
    if value is None:
        return None
    if isinstance(value, str):
        return _of_text(value, place)
    if isinstance(value, dict) and set(value) == {"fluents"}:
        return _state(value["fluents"], place)
    true: set[str] = set()
    false: set[str] = set()
    pairs: list[tuple[object, object]]
    if isinstance(value, dict):
        pairs = list(value.items())
    elif isinstance(value, list):
        pairs = [(each, True) for each in value]
    else:
        place.fail(f"a state is a list of atoms, not {short(value)}")
    for atom, holds in pairs:
        if holds is None:
            continue
        if not isinstance(holds, bool):
            place.fail(f"the value of the atom {short(atom)} must be true, false or null, not {short(holds)}")
        name, positive = _atom(atom, place)
        (true if positive == holds else false).add(name)
    if both := true & false:
        place.fail(f"the atom {short(min(both))} is given as true and as false")
    return State(frozenset(true), frozenset(false))


def _of_text(text: str, place: Place) -> State | None:
    """A state that a cell holds; None for an empty cell."""
    text = text.strip().removeprefix("frozenset(").strip()
    if text.startswith("{") or text.startswith("["):
        text = text[1:].rstrip(")").rstrip()[:-1] if text.rstrip(")").rstrip()[-1:] in "]}" else text[1:]
    if not text:
        return None
    if "(" not in text:
        parts: list[object] = [each for each in re.split(r"[,;&]", text) if each.strip()]
    else:
        parts = []
        rest = text
        while rest.strip(" ,;&\t\n"):
            match = re.match(
                r"[\s,;&]*(\(\s*not\s*\([^()]*\)\s*\)|(?:not\s+)?[^\s(),;&]*\s*\([^()]*\)|(?:not\s+)?[^\s(),;&]+)", rest
            )
            if match is None:
                place.fail(f"a state cannot be read here: {short(rest.strip())}")
            parts.append(match[1])
            rest = rest[match.end() :]
    return _state(parts, place)


def _atom(value: object, place: Place) -> tuple[str, bool]:
    """An atom `predicate object object`, and whether it is positive."""
    if isinstance(value, list) and value and all(isinstance(each, str) and each.split() == [each] for each in value):
        return " ".join(value), True
    if not isinstance(value, str):
        place.fail(f"an atom is written like on a b, not {short(value)}")
    text, positive = value.strip(), True
    while True:
        if negated := re.fullmatch(r"\(\s*not\s*(\(.*\))\s*\)", text, re.DOTALL) or re.fullmatch(
            r"(?:not\s+|[!~¬]\s*)(\S.*)", text, re.DOTALL
        ):
            text, positive = negated[1].strip(), not positive
        else:
            break
    if call := CALL.fullmatch(text):
        objects = [each.strip().partition(":")[0] for each in call[2].split(",")] if call[2].strip() else []
        text = " ".join((call[1], *objects))
    elif text.startswith("(") and text.endswith(")"):
        text = text[1:-1]
    name = one_line(text)
    if not name or re.search(r"[()]", name):
        place.fail(f"{short(value)} is not an atom such as on a b")
    return name, positive


# ---- CSV ----


def _add_csv(text: str, path: Path, walks: Sequence[_Walk]) -> None:
    """Adds the states of the columns `state` and `next_state`."""
    table = csv.reader(io.StringIO(text, newline=""), strict=True)
    header = [name.strip() for name in next(table)]
    columns = {name: place for place, name in enumerate(header) if holds_states(name)}
    if not columns:
        return
    places = iter([(walk, at) for walk in walks for at in range(len(walk.actions))])
    for row in table:
        if not row:
            continue
        walk, at = next(places)
        for name, column in columns.items():
            place = Place(path, table.line_num)
            _put(walk, at + bool(AFTER.match(name)), _of_text(row[column], place), place)
