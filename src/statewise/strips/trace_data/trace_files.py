"""Trace files: CSV with columns `trace_id,action` and optionally `label` and `step`, JSON, or plans.

`label` is 0 for a valid action and 1 for an invalid one, which must be the last of its trace. It may be given on every
row, or once per trace, on its first or last row. Without labels all actions are valid. JSON holds objects
`{"actions": [...], "label": 0}`, or lists of names, one on each line or all in a list. Any other text holds plans
(`plan_texts`); a folder holds one plan in each file. Plans are valid. White space in names counts as one space.
Observed states are an error unless the caller asks to ignore them.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Sequence
from json import JSONDecodeError, JSONDecoder
from pathlib import Path
from typing import Any

from statewise.runtime.durable import write_atomically
from statewise.runtime.json_files import loads
from statewise.runtime.messages import cut, short, without_advice
from statewise.strips.model.traces import Trace, Traces
from statewise.strips.trace_data.plan_texts import (
    HOW_TO_IGNORE,
    Place,
    Plan,
    holds_states,
    one_line,
    read_plan,
    read_plans,
)

OTHERS = (".csv", ".tsv", ".json", ".jsonl", ".md")
"""Suffixes of files that do not hold plans."""
COLUMNS = ("trace_id", "action", "action_id", "step", "label")
"""The columns of CSV files."""
A_TRACE = 'a trace must be {"actions": [...], "label": 0 or 1} or ["pick a", ...], on a line of its own or in a list'
KEYS = ("actions", "label")
"""The keys of JSON objects."""
BITS = re.compile(r"0[01]{3,}|[01](?: [01]){3,}")
"""Text that looks like the bits of a state: four or more, separated by spaces, or with a leading 0, unlike numbers."""

SPACE, BETWEEN = re.compile(r"\s*"), re.compile(r"[\s,]*")
ATOMS = re.compile(r"\s*[\[{]?\s*(?:\((?:[^()]|\([^()]*\))*\)[\s,;&]*)+[\]}]?\s*")
"""A cell that holds atoms in parentheses."""


def read_traces(path: str | Path, actions: Sequence[str] | None = None, *, ignore_states: bool = False) -> Traces:
    """Reads a file or a folder. A file is JSON if its name ends in `.jsonl` or `.json`, CSV if it ends in `.csv` or
    `.tsv` or begins with the columns of CSV; otherwise its beginning shows whether it is JSON or plans. In a folder
    each file is one plan.

    `actions` are those of a model: any other action is an error. Without them the actions are those of the file, sorted
    by name. Names stay as they are written, in lower case if plans are written in a form of PDDL. With `ignore_states`
    the actions of files with observed states are read. Raises `ValueError` with file and line.
    """
    path, unread = Path(path), dict[str, None]()
    plans = _from_folder(path, ignore_states) if path.is_dir() else _from_file(path, ignore_states, unread)
    if not plans:
        raise ValueError(f"{path} holds no traces")
    if any(each.pddl for each in plans):
        for each in plans:
            each.actions = [name.lower() for name in each.actions]
    _check_names(plans, path)
    known = list(actions) if actions is not None else sorted({name for each in plans for name in each.actions})
    number = {name: place for place, name in enumerate(known)}
    rows: list[Trace] = []
    for each in plans:
        if not each.actions:
            Place(_file(each, path), each.line).fail("empty trace: it must have at least one action")
        for name, line in zip(each.actions, each.lines):
            if name not in number:
                what = f"{cut(name, 200)!r} is not an action of the model"
                Place(_file(each, path), line).fail(what + _near(name, known))
        rows.append(tuple(number[name] for name in each.actions))
    labels = tuple(_label(each, path) for each in plans)
    files = tuple(each.file for each in plans) if path.is_dir() else ()
    return Traces(tuple(known), tuple(rows), labels, tuple(each.line for each in plans), files, tuple(unread))


def _file(plan: Plan, path: Path) -> Path:
    return path / plan.file if plan.file else path


def _check_names(plans: Sequence[Plan], path: Path) -> None:
    """Raises `ValueError` for two actions whose names, or first words, differ only in the case of letters, and for an
    action that looks like the bits of a state."""
    spelled: dict[str, tuple[str, str]] = {}
    seen: set[str] = set()
    for each in plans:
        for name, line in zip(each.actions, each.lines):
            if name in seen:
                continue
            seen.add(name)
            where = f"{_file(each, path)}:{line}"
            if BITS.fullmatch(name):
                raise ValueError(
                    f"{where}: {name!r} looks like the bits of a state, not like an action: remove the "
                    "states, since only actions are read"
                )
            first = name.partition(" ")[0]
            for word in dict.fromkeys((first, name)):
                other, there = spelled.setdefault(word.lower(), (word, where))
                if other != word:
                    raise ValueError(
                        f"{where}: {word!r} and, at {there}, {other!r} differ only in the case of "
                        "letters, which PDDL ignores: write them alike"
                    )


def text_of(path: Path) -> str:
    """The text of a file, without a byte-order mark. Raises `ValueError`, which names the line, if it is not UTF-8."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{path}:{line}: not UTF-8 text ({error.reason})") from None


def _from_file(path: Path, ignore_states: bool, unread: dict[str, None]) -> list[Plan]:
    text = text_of(path)
    if path.suffix.lower() in (".jsonl", ".json"):
        return list(_from_json(text, path, ignore_states, unread))
    begin = text.lstrip()[:1000]
    if path.suffix.lower() in (".csv", ".tsv") or "trace_id" in begin.partition("\n")[0]:
        return list(_from_csv(text, path, ignore_states, unread))
    if re.match(r"\{|\[\s*[\[{\"]", begin):
        return list(_from_json(text, path, ignore_states, unread))
    return read_plans(text, path, ignore_states=ignore_states)


def write_traces(written: Traces, path: str | Path) -> None:
    """Writes a file that `read_traces` reads: JSON lines or, by its name, CSV with a label on every row."""
    path, out = Path(path), io.StringIO()
    if path.suffix in (".jsonl", ".json"):
        for row, label in zip(written.rows, written.labels):
            out.write(json.dumps({"actions": [written.actions[at] for at in row], "label": label}) + "\n")
    else:
        table = csv.writer(out, lineterminator="\n")
        table.writerow(["trace_id", "action", "label"])
        for place, (row, label) in enumerate(zip(written.rows, written.labels)):
            table.writerows(
                [place, written.actions[at], label if position == len(row) - 1 else 0]
                for position, at in enumerate(row)
            )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, out.getvalue().encode())


def _from_csv(text: str, path: Path, ignore_states: bool, unread: dict[str, None]) -> Iterator[Plan]:
    table = csv.reader(io.StringIO(text, newline=""), strict=True)
    rows = _rows(table, path)
    header = [name.strip() for name in next(rows, [])]
    column = {name: place for place, name in enumerate(header)}
    for name in header:
        meant = name.casefold().removesuffix("s")
        if name not in COLUMNS and meant in COLUMNS and meant not in header:
            raise ValueError(f"{path}:1: the column {name} would be ignored: call it {meant}")
    for name in COLUMNS:
        if header.count(name) > 1:
            raise ValueError(f"{path}:1: there are {header.count(name)} columns {name}")
    if "action_id" in column:
        column.setdefault("action", column["action_id"])
    if "trace_id" not in column or "action" not in column:
        raise ValueError(f"{path}:1: the columns trace_id and action are needed, not {', '.join(header) or 'none'}")
    others = {name: place for name, place in column.items() if name not in COLUMNS}
    for name in others:
        if holds_states(name) and not ignore_states:
            Place(path, 1).fail(f"the column {name!r} holds observed states, which are not read yet: {HOW_TO_IGNORE}")
    unread |= {f"the column {name!r}": None for name in others}
    as_atoms = {} if ignore_states else dict.fromkeys(others, 0)
    current: Plan | None = None
    name, begun = "", set()
    last_step = 0
    for row in rows:
        line = table.line_num
        if not row:
            continue
        if len(row) != len(header):
            Place(path, line).fail(f"{len(row)} cells, where the header has {len(header)}")
        trace, action = row[column["trace_id"]].strip(), one_line(row[column["action"]])
        if not trace:
            Place(path, line).fail("trace_id is empty")
        if current is None or trace != name:
            if trace in begun:
                Place(path, line).fail(f"trace {trace} continues here after other traces; its rows must be contiguous")
            if current is not None:
                yield current
            current, name = Plan(line), trace
            begun.add(trace)
        for other in list(as_atoms):
            cell = row[others[other]].strip()
            if cell and not ATOMS.fullmatch(cell):
                del as_atoms[other]
            elif cell and not as_atoms[other]:
                as_atoms[other] = line
        if not action:
            Place(path, line).fail(f"trace {trace} has a gap: no action here")
        if "step" in column:
            step = _whole(row[column["step"]], path, line, "step")
            if current.actions and step != last_step + 1:
                Place(path, line).fail(f"trace {trace} has a gap: step {step} follows {last_step}")
            last_step = step
        current.actions.append(action)
        current.lines.append(line)
        cell = row[column["label"]].strip() if "label" in column else ""
        current.labels.append(_whole(cell, path, line, "label") if cell else None)
    for name, line in as_atoms.items():
        if line:
            Place(path, line).fail(
                f"the column {name!r} holds what looks like observed states, which are not read yet: {HOW_TO_IGNORE}"
            )
    if current is not None:
        yield current


def _rows(table: Any, path: Path) -> Iterator[list[str]]:
    """The rows of a CSV reader."""
    begun = 1
    try:
        for row in table:
            yield row
            begun = table.line_num + 1
    except csv.Error as error:
        raise ValueError(f"{path}:{begun}: not CSV: {error}: is a quotation mark not closed?") from None


def _from_json(text: str, path: Path, ignore_states: bool, unread: dict[str, None]) -> Iterator[Plan]:
    """The objects of a text, one after the other or in lists, each with the line where it begins."""
    for line, value in _json_values(text, path):
        if isinstance(value, list):
            value = {"actions": value}
        if not isinstance(value, dict) or not isinstance(value.get("actions"), list):
            Place(path, line).fail(A_TRACE)
        actions = [_name(action, path, line) for action in value["actions"]]
        count = len(actions)
        for key, other in value.items():
            if key in KEYS:
                continue
            meant = next((each for each in KEYS if key.casefold().rstrip("s") == each.rstrip("s")), None)
            if meant is not None and meant not in value:
                Place(path, line).fail(f"the key {short(key)} would be ignored: call it {meant}")
            if not ignore_states and (holds_states(key) or _for_each_action(other, count)):
                Place(path, line).fail(
                    f"the key {short(key)} holds observed states, which are not read yet: {HOW_TO_IGNORE}"
                )
            unread[f"the key {short(key)}"] = None
        label = value.get("label")
        if label is not None and (isinstance(label, bool) or not isinstance(label, int)):
            Place(path, line).fail(f"label must be 0 or 1, not {short(label)}")
        yield Plan(line, "", actions, [line] * count, [*([None] * (count - 1)), label] if count else [])


def _for_each_action(value: object, actions: int) -> bool:
    """Whether a value looks like observed states: a list with a list or an object for each action, and perhaps one
    more."""
    return (
        isinstance(value, list)
        and len(value) in (actions, actions + 1)
        and all(isinstance(each, list | dict) for each in value)
    )


def _json_values(text: str, path: Path) -> Iterator[tuple[int, Any]]:
    """The values of JSON lines, or the items of one list over several lines, each with its line."""
    at, line = 0, 1
    while at < len(text):
        end = text.find("\n", at)  # not splitlines: JSON may contain other line separators
        end = len(text) if end < 0 else end
        content = text[at:end]
        if content.strip():
            try:
                value = loads(content)
            except ValueError as error:
                if content.strip()[0] not in "[{":
                    Place(path, line).fail(str(error))
                value, end = _decoded(text, at, path, line)
            if isinstance(value, list) and any(isinstance(each, list | dict) for each in value):
                yield from _items(text, text.index("[", at) + 1, path, line + text.count("\n", at, text.index("[", at)))
            elif value == []:
                Place(path, line).fail(f"an empty list: {A_TRACE}")
            else:
                yield line, value
            line += text.count("\n", at, end)
            at, end = end, text.find("\n", end)
            end = len(text) if end < 0 else end
            if rest := text[at:end].strip():
                Place(path, line).fail(f"{short(rest)} follows the end of a trace on its line")
        line, at = line + 1, end + 1


def _items(text: str, at: int, path: Path, line: int) -> Iterator[tuple[int, Any]]:
    """The items of a list that begins before `at` and can be read, each with its line."""
    while True:
        before, at = at, BETWEEN.match(text, at).end()  # type: ignore[union-attr]
        line += text.count("\n", before, at)
        if text[at] == "]":
            return
        value, end = _decoded(text, at, path, line)
        yield line, value
        line += text.count("\n", at, end)
        at = end


def _decoded(text: str, at: int, path: Path, line: int) -> tuple[Any, int]:
    """The value that begins at `at`, or after white space, and where it ends."""
    at = SPACE.match(text, at).end()  # type: ignore[union-attr]
    try:
        end = JSONDecoder().raw_decode(text, at)[1]
    except RecursionError:
        Place(path, line).fail("not JSON: brackets are nested too deeply")
    except JSONDecodeError as error:
        what = f"not JSON: {error.msg.removesuffix(' at')}"
        if error.pos >= len(text.rstrip()):  # a value that does not end, which begins here
            Place(path, line).fail(f"{what} at the end of the file")
        Place(path, error.lineno).fail(f"{what} at column {error.colno}")
    except ValueError as error:
        Place(path, line).fail(f"not JSON: {without_advice(error)}")
    try:
        return loads(text[at:end]), end
    except ValueError as error:
        Place(path, line).fail(str(error))


def _from_folder(folder: Path, ignore_states: bool) -> list[Plan]:
    """A plan per file, all of them in forms of PDDL or none."""
    plans: list[Plan] = []
    for path in sorted(each for each in folder.iterdir() if each.is_file() and not each.name.startswith(".")):
        text = text_of(path)
        if path.suffix.lower() in OTHERS or re.match(r"\s*[{]", text):
            raise ValueError(f"{path}: in a folder each file is a plan: give this file itself, or move it away")
        plan = read_plan(text, path, ignore_states=ignore_states)
        if plan is not None and plan.actions:
            plan.file = path.name
            plans.append(plan)
    other = next((each for each in plans if not each.pddl), None)
    if other is not None and (planned := next((each for each in plans if each.pddl), None)):
        Place(folder / other.file, other.lines[0]).fail(
            f"{short(other.actions[0])} is not written as the plan in "
            f"{planned.file}: write both alike, or move this file away if it is "
            "no plan"
        )
    return plans


def _name(action: object, path: Path, line: int) -> str:
    if action is None or (isinstance(action, str) and not action.strip()):
        Place(path, line).fail("the trace has a gap: an action without a name")
    if not isinstance(action, str | int) or isinstance(action, bool):
        Place(path, line).fail(f"an action must be a name, not {action!r}")
    name = one_line(str(action))
    if any("\ud800" <= letter <= "\udfff" for letter in name):
        Place(path, line).fail(f"{name!r} contains half of a surrogate pair, which is not a character")
    return name


def _label(read: Plan, path: Path) -> int:
    for label, line in zip(read.labels, read.lines):
        if label not in (None, 0, 1):
            Place(path, line).fail(f"label must be 0 or 1, not {short(label)}")
    labelled = [place for place, label in enumerate(read.labels) if label is not None]
    if labelled == [0]:
        return read.labels[0] or 0  # once for the whole trace
    for place in labelled[:-1] if labelled and labelled[-1] == len(read.labels) - 1 else labelled:
        if read.labels[place]:
            raise ValueError(
                f"{path}:{read.lines[place]}: label 1 on an action that is not the last of its trace: a negative trace "
                "ends with its invalid action"
            )
    return read.labels[-1] or 0


def _whole(cell: str, path: Path, line: int, what: str) -> int:
    try:
        return int(cell)
    except ValueError:
        Place(path, line).fail(f"{what} must be a whole number, not {cut(cell)!r}")


def _near(name: str, known: Sequence[str]) -> str:
    import difflib

    near = difflib.get_close_matches(name[:200], known, 1)
    return f"; did you mean {near[0]!r}?" if near else ""
