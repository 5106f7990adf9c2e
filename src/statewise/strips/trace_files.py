"""Trace files: CSV with columns `trace_id,action` and optionally `label` and `step`, or JSON lines.

`label` is 0 for a valid action and 1 for an invalid one, which must be the last of its trace. It may be given on every
row, or once per trace, on its first or last row. Without labels all actions are valid. JSON lines hold
`{"actions": [...], "label": 0}`. A text file holds a plan per line, its actions in parentheses, as planners print them,
or separated by commas; a folder holds a plan per file. Plans are valid. White space in names counts as one space.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from statewise.durable import write_atomically
from statewise.json_files import loads
from statewise.strips.random_traces import Trace, Traces

OTHERS = (".csv", ".tsv", ".json", ".jsonl", ".md")
"""Suffixes of files that are no plans."""
COLUMNS = ("trace_id", "action", "action_id", "step", "label")
"""Those of CSV files."""


@dataclass
class _Read:
    """A trace as written in the file."""

    line: int
    file: str = ""
    """Its name, of a folder."""
    actions: list[str] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    labels: list[int | None] = field(default_factory=list)


def read_traces(path: Path, actions: Sequence[str] | None = None) -> Traces:
    """Reads a file: JSON lines if it ends in `.jsonl` or `.json`, plans if it is a folder, or ends in `.txt` and does
    not begin with CSV's columns, otherwise CSV.

    With `actions`, those of a model, any other action is an error. Without, the actions are those of the file, sorted
    by name. Raises `ValueError` with file and line.
    """
    found = list(_from_folder(path) if path.is_dir() else _reader(path)(_text(path), path))
    if not found:
        raise ValueError(f"{path} holds no traces")
    known = list(actions) if actions is not None else sorted({name for each in found for name in each.actions})
    number = {name: place for place, name in enumerate(known)}
    rows: list[Trace] = []
    for each in found:
        if not each.actions:
            raise ValueError(f"{path}:{each.line}: empty trace: it must have at least one action")
        for name, line in zip(each.actions, each.lines):
            if name not in number:
                raise ValueError(f"{path}:{line}: {name!r} is not an action of the model{_near(name, known)}")
        rows.append(tuple(number[name] for name in each.actions))
    labels = tuple(_label(each, path) for each in found)
    files = tuple(each.file for each in found) if path.is_dir() else ()
    return Traces(tuple(known), tuple(rows), labels, tuple(each.line for each in found), files)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text: {error}") from None


def _reader(path: Path) -> Callable[[str, Path], Iterator[_Read]]:
    if path.suffix in (".jsonl", ".json"):
        return _from_json
    return _from_plans if path.suffix == ".txt" and "trace_id" not in _text(path).partition("\n")[0] else _from_csv


def write_traces(written: Traces, path: Path) -> None:
    """Writes a file that `read_traces` reads: JSON lines or, by its name, CSV with a label on every row."""
    out = io.StringIO()
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


def _from_csv(text: str, path: Path) -> Iterator[_Read]:
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
    current: _Read | None = None
    name, begun = "", set()
    last_step = 0
    for row in rows:
        line = table.line_num
        if not row:
            continue
        if len(row) != len(header):
            raise ValueError(f"{path}:{line}: {len(row)} cells, where the header has {len(header)}")
        trace, action = row[column["trace_id"]].strip(), _one_line(row[column["action"]])
        if not trace:
            raise ValueError(f"{path}:{line}: trace_id is empty")
        if current is None or trace != name:
            if trace in begun:
                raise ValueError(
                    f"{path}:{line}: trace {trace} continues here after other traces; its rows must be contiguous"
                )
            if current is not None:
                yield current
            current, name = _Read(line), trace
            begun.add(trace)
        if not action:
            raise ValueError(f"{path}:{line}: trace {trace} has a gap: no action here")
        if "step" in column:
            step = _whole(row[column["step"]], path, line, "step")
            if current.actions and step != last_step + 1:
                raise ValueError(f"{path}:{line}: trace {trace} has a gap: step {step} follows {last_step}")
            last_step = step
        current.actions.append(action)
        current.lines.append(line)
        cell = row[column["label"]].strip() if "label" in column else ""
        current.labels.append(_whole(cell, path, line, "label") if cell else None)
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


def _from_json(text: str, path: Path) -> Iterator[_Read]:
    for line, content in enumerate(text.split("\n"), 1):  # not splitlines: JSON may contain other line separators
        if not content.strip():
            continue
        try:
            found = loads(content)
        except ValueError as error:
            raise ValueError(f"{path}:{line}: {error}") from None
        if not isinstance(found, dict) or not isinstance(found.get("actions"), list):
            raise ValueError(f'{path}:{line}: a line must hold {{"actions": [...], "label": 0 or 1}}')
        actions = [_name(action, path, line) for action in found["actions"]]
        label = found.get("label")
        if label is not None and (isinstance(label, bool) or not isinstance(label, int)):
            raise ValueError(f"{path}:{line}: label must be 0 or 1, not {label!r}")
        count = len(actions)
        yield _Read(line, "", actions, [line] * count, [*([None] * (count - 1)), label] if count else [])


def _from_plans(text: str, path: Path) -> Iterator[_Read]:
    found = [
        _Read(line, "", actions, [line] * len(actions), [None] * len(actions))
        for line, content in enumerate(text.split("\n"), 1)
        if (actions := _plan(content, path, line))
    ]
    in_parentheses = any("(" in content.partition(";")[0] for content in text.split("\n"))
    if in_parentheses and len(found) > 1 and all(len(each.actions) == 1 for each in found):
        raise ValueError(
            f"{path}:{found[0].line}: each line has one action in parentheses, as in the file of one plan, but here a "
            "line is a plan: put the file into a folder and give that, or write the plan on one line"
        )
    yield from found


def _from_folder(folder: Path) -> Iterator[_Read]:
    """A plan per file."""
    for path in sorted(each for each in folder.iterdir() if each.is_file() and not each.name.startswith(".")):
        if path.suffix.lower() in OTHERS:
            raise ValueError(f"{path}: in a folder each file is a plan: give this file itself, or move it away")
        found = _Read(1, path.name)
        for line, content in enumerate(_text(path).split("\n"), 1):
            actions = _plan(content, path, line)
            found.actions += actions
            found.lines += [line] * len(actions)
        found.labels += [None] * len(found.actions)
        if found.actions:
            yield found


def _plan(content: str, path: Path, line: int) -> list[str]:
    """The actions of one line, without their times and, in brackets, durations and costs; none if it is empty or a
    comment."""
    if "(" in content.partition(";")[0]:
        content = re.sub(r"(\([^()]*\))|\[[^\[\]]*\]", lambda found: found[1] or "", content)
    plan = content.partition(";")[0].strip()
    if not plan:
        return []
    if "(" in plan or ")" in plan:
        actions = re.findall(r"\(([^()]*)\)", plan)
        if re.sub(r"\([^()]*\)|[\d.]+(?:[eE][+-]?\d+)?:|[\s,]", "", plan):
            raise ValueError(f"{path}:{line}: not a plan: there is text outside the parentheses of its actions")
    else:
        actions = plan.split(",")
    named = [_one_line(action) for action in actions]
    if "" in named:
        raise ValueError(f"{path}:{line}: the plan has a gap: an action without a name")
    return named


def _name(action: object, path: Path, line: int) -> str:
    if action is None or (isinstance(action, str) and not action.strip()):
        raise ValueError(f"{path}:{line}: the trace has a gap: an action without a name")
    if not isinstance(action, str | int) or isinstance(action, bool):
        raise ValueError(f"{path}:{line}: an action must be a name, not {action!r}")
    name = _one_line(str(action))
    if any("\ud800" <= letter <= "\udfff" for letter in name):
        raise ValueError(f"{path}:{line}: {name!r} holds half of a surrogate pair, which is no character")
    return name


def _one_line(action: str) -> str:
    """A name with single spaces for white space, so that `sail  x` and `sail x` are one action in every format."""
    return " ".join(action.split())


def _label(read: _Read, path: Path) -> int:
    for label, line in zip(read.labels, read.lines):
        if label not in (None, 0, 1):
            raise ValueError(f"{path}:{line}: label must be 0 or 1, not {label}")
    given = [place for place, label in enumerate(read.labels) if label is not None]
    if given == [0]:
        return read.labels[0] or 0  # once for the whole trace
    for place in given[:-1] if given and given[-1] == len(read.labels) - 1 else given:
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
        raise ValueError(f"{path}:{line}: {what} must be a whole number, not {cell!r}") from None


def _near(name: str, known: Sequence[str]) -> str:
    import difflib

    near = difflib.get_close_matches(name, known, 1)
    return f"; did you mean {near[0]!r}?" if near else ""
