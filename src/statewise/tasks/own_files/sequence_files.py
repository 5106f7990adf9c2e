"""Files of sequences: lines of text, JSON lines, CSV with a header, event logs.

Read by the standard library only, so that every problem can be reported with its file and line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal, InvalidOperation
from operator import itemgetter
from pathlib import Path
from sys import intern
from typing import Any, Literal, NamedTuple

from statewise.config.recipe import unknown
from statewise.runtime.json_files import loads
from statewise.runtime.messages import counted, cut
from statewise.tasks.own_files.file_formats import check_sequences
from statewise.tasks.own_files.lines import Problems, beginning_of, opened, read_csv, read_lines


@dataclass(frozen=True)
class SequenceFile:
    """A file of sequences and its layout."""

    path: str = ""
    """The file: text, JSON lines, CSV or an event log, plain or .gz."""
    format: Literal["auto", "text", "json", "csv"] = "auto"
    """auto: by the file's name (.csv, .tsv, .jsonl); else JSON lines if the first line is JSON, CSV if `column` or
    `group` is set, text otherwise."""
    separator: str | None = None
    """Separator of the symbols of a line, a string or a cell; null: white space; "": every character is a symbol."""
    column: str | None = None
    """Column (of CSV or JSON objects) with the symbols; null: `target` beside `prompt`, or the only column."""
    prompt_column: str | None = None
    """Column with the prompt, which is not scored; null: `prompt` beside `target`, or none."""
    group: str | None = None
    """Event logs, which have one event per row: the column that names the case. Each case is one sequence."""
    order: str | None = None
    """Event logs: the column that orders the events of a case, numbers or ISO 8601 times; null: file order."""
    delimiter: str | None = None
    """Separator of the columns of CSV; null: whichever of , ; | and tab the header has most of."""

    def __post_init__(self) -> None:
        if self.order is not None and self.group is None:
            raise ValueError("task.order orders the events of a case: set task.group to the column that names the case")
        if self.group is not None and self.prompt_column is not None:
            raise ValueError("an event log has no prompts: set task.group or task.prompt_column, not both")
        columns = (self.column, self.prompt_column, self.group, self.order)
        if self.format == "text" and any(column is not None for column in columns):
            raise ValueError("lines of text have no columns: set task.format to csv or json")
        if self.delimiter is not None and (len(unescaped(self.delimiter)) != 1 or self.delimiter in '"\r\n'):
            raise ValueError(f"task.delimiter must be one character, not {self.delimiter!r}")

    def split(self, text: str) -> list[str]:
        """The symbols of a line, interned: a file has few, and a string for each occurrence would be most of what it
        takes in memory. Raises `ValueError` for an empty symbol."""
        if self.separator is None:
            return list(map(intern, text.split()))
        if not self.separator:
            return list(text)
        separator = unescaped(self.separator)
        symbols = [intern(symbol.strip()) for symbol in text.split(separator)] if text.strip() else []
        while symbols and not symbols[-1]:  # exports pad short rows with empty cells
            symbols.pop()
        if not all(symbols):
            raise ValueError(f"symbol {symbols.index('') + 1} is empty: there is nothing between two {separator!r}")
        return symbols

    def join(self, symbols: Iterable[str]) -> str:
        """A line of symbols, the inverse of `split` if none of them contains the separator."""
        return (" " if self.separator is None else unescaped(self.separator)).join(symbols)

    @property
    def tab_ends_prompt(self) -> bool:
        """Whether a tab in a line of text separates prompt from answer."""
        return self.separator is None or "\t" not in unescaped(self.separator)


def unescaped(separator: str) -> str:
    """A separator as it is written in lines."""
    return separator.replace("\\t", "\t")  # a tab is hard to type in a shell


Line = tuple[tuple[str, ...], tuple[str, ...]]
"""Symbols of prompt and answer."""


class Parsed(NamedTuple):
    """The content of a file."""

    lines: list[tuple[int, Line]]
    """(line number, symbols) of every sequence; for a case, the line of its first event."""
    how: str
    """A description of the layout it was read with."""
    columns: list[str]
    """Columns of the header or the first object; empty if there are none."""
    warnings: tuple[str, ...] = ()
    """Warnings about what looks misread in it."""


MISSING = frozenset({"NA", "N/A", "#N/A", "<NA>", "NaN", "nan", "NaT", "NULL", "null", "None"})
"""Values that other software writes for a missing one."""


def parse_file(path: Path, layout: SequenceFile) -> Parsed:
    """All sequences of a file. Raises `ValueError` as `FILE:LINE: what is wrong`."""
    kind = _format(path, layout)
    if kind == "csv":
        delimiter = None if layout.delimiter is None else unescaped(layout.delimiter)
        columns, rows = read_csv(path, delimiter)
        return _of_records(path, columns, rows, layout, "CSV")
    if kind == "text":
        lines = _of_texts(path, read_lines(path), layout)
        prompted = any(prompt for _, (prompt, _) in lines)
        how = "text, one sequence a line" + (", its prompt before a tab" if prompted else "")
        return Parsed(lines, how, [])
    return _json(path, layout)


def _format(path: Path, layout: SequenceFile) -> str:
    if layout.format == "text":
        return "text"
    with opened(path) as file:
        check_sequences(beginning_of(file), path)
    if layout.format != "auto":
        return layout.format
    _, first = next(read_lines(path))
    suffix = (path.with_suffix("") if path.suffix == ".gz" else path).suffix.lower()
    if suffix in (".csv", ".tsv"):
        return "csv"
    if suffix in (".json", ".jsonl", ".ndjson") or (_is_json(first) and not _may_be_characters(first, layout)):
        return "json"
    return "text" if layout.column is None and layout.group is None else "csv"


def _is_json(line: str) -> bool:
    """Whether a line begins like a JSON object, or is a JSON list or string."""
    line = line.strip()
    if line[0] == "{":
        return True
    try:
        return line[0] in '["' and isinstance(loads(line), (list, str))
    except ValueError:
        return False


def _may_be_characters(line: str, layout: SequenceFile) -> bool:
    """Whether the characters of a JSON list, such as [3,1], may be symbols themselves: each of its symbols is one."""
    if layout.separator != "" or not line.lstrip().startswith("["):
        return False
    return all(len(str(symbol)) == 1 for symbol in loads(line))


# Text


def _of_texts(path: Path, texts: Iterable[tuple[int, str]], layout: SequenceFile) -> list[tuple[int, Line]]:
    """Sequences from lines of text. The first line decides whether all have a prompt."""
    parsed: list[tuple[int, Line]] = []
    problems = Problems(path)
    prompted = None
    for number, text in texts:
        if prompted is None:
            prompted = layout.tab_ends_prompt and "\t" in text
        try:
            parsed.append((number, _text(text, layout, prompted)))
        except ValueError as error:
            problems.add(number, str(error))
    problems.raise_if_any()
    return parsed


def _text(text: str, layout: SequenceFile, prompted: bool) -> Line:
    halves = text.split("\t") if layout.tab_ends_prompt else [text]
    if len(halves) > 1 and not prompted:
        raise ValueError("a tab, but the first line has none: either every line has a prompt or none")
    if prompted and len(halves) != 2:
        raise ValueError(
            f"{len(halves) - 1} tabs: there must be one, between prompt and answer. If tabs separate symbols, set "
            "--task.separator '\\t'; if they separate columns under a header, --task.format csv"
        )
    *prompt, answer = (tuple(layout.split(half)) for half in halves)
    if prompted and not prompt[0]:
        raise ValueError("the prompt, before the tab, is empty")
    if not prompted and not answer:
        raise ValueError("no symbol")
    return (prompt[0] if prompted else ()), answer


# JSON lines


def _json(path: Path, layout: SequenceFile) -> Parsed:
    kinds: dict[type, str] = {dict: "an object", list: "a list", str: "a string"}
    records: list[tuple[int, Any]] = []
    problems = Problems(path)
    for number, line in read_lines(path):
        try:
            value = loads(line, parse_float=_fraction)
        except ValueError as error:
            problems.add(number, str(error))
            continue
        if type(value) not in kinds:
            problems.add(number, "must be a JSON object, list or string")
        elif value == {}:
            problems.add(number, "an object without a key")
        elif records and type(value) is not type(records[0][1]):
            first, kind = kinds[type(records[0][1])], kinds[type(value)]
            problems.add(number, f"{kind}, but the first line is {first}: all must be alike")
        else:
            records.append((number, value))
    problems.raise_if_any()
    first = records[0][1]
    how = f"JSON lines, each {kinds[type(first)]}"
    if isinstance(first, str):
        return Parsed(_of_texts(path, records, layout), how, [])
    if isinstance(first, dict):
        name = layout.prompt_column or "prompt"
        by_target = layout.group is None and layout.column is None and "target" in first and name not in first
        for number in [number for number, value in records if name in value] if by_target else []:
            problems.add(number, f"it has {name!r}, which the first object lacks: give it to all, or to none")
        problems.raise_if_any()
        return _of_records(path, list(first), iter(records), layout, how)
    parsed: list[tuple[int, Line]] = []
    for number, value in records:
        try:
            parsed.append((number, ((), _nonempty(_symbols(value, "the line", layout)))))
        except ValueError as error:
            problems.add(number, str(error))
    problems.raise_if_any()
    return Parsed(parsed, how, [])


def _symbols(value: Any, what: str, layout: SequenceFile) -> tuple[str, ...]:
    """Symbols of a cell or a JSON value."""
    if isinstance(value, str):
        return tuple(layout.split(value))
    if isinstance(value, list) and all(_is_symbol(symbol) for symbol in value):
        return tuple(intern(str(symbol)) for symbol in value)
    if _is_symbol(value):
        return (str(value),)
    hint = ": put each sequence on a line of its own" if isinstance(value, list) and list in map(type, value) else ""
    raise ValueError(f"{what} must be a string, or a list of strings or whole numbers{hint}")


def _is_symbol(value: Any) -> bool:
    return isinstance(value, (str, int)) and not isinstance(value, bool)


def _nonempty(symbols: tuple[str, ...]) -> tuple[str, ...]:
    if not symbols:
        raise ValueError("no symbol")
    return symbols


# Records: CSV rows and JSON objects


def _of_records(
    path: Path, columns: list[str], records: Iterator[tuple[int, dict[str, Any]]], layout: SequenceFile, how: str
) -> Parsed:
    """Sequences from records: one per record, or one per case."""
    try:
        prompt, target = _chosen(columns, layout)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    problems = Problems(path)
    parsed: list[tuple[int, Line]] = []
    unnamed: list[str] = []
    if layout.group is not None:
        cases = _cases(records, target, layout, problems)
        parsed = [(line, ((), symbols)) for _, line, symbols in cases]
        unnamed = [
            f"{counted(len(symbols), 'event')} {'has' if len(symbols) == 1 else 'have'} the case {case!r}, which often "
            "stands for a missing value: if it does, remove these rows"
            for case, _, symbols in cases
            if case in MISSING
        ]
        ordered = "" if layout.order is None else f", ordered by {layout.order!r}"
        how += f", column {target!r}, one sequence for each {layout.group!r}{ordered}"
    else:
        for number, record in records:
            try:
                answer = _symbols(_cell(record, target), repr(target), layout)
                prompt_symbols = () if prompt is None else _symbols(_cell(record, prompt), repr(prompt), layout)
                _nonempty((*prompt_symbols, *answer))
            except ValueError as error:
                problems.add(number, str(error))
                continue
            parsed.append((number, (prompt_symbols, answer)))
        how += f", column {target!r}" + ("" if prompt is None else f" after {prompt!r}")
    problems.raise_if_any()
    if not parsed:
        raise ValueError(f"{path}: there is a header, but no row under it")
    return Parsed(parsed, how, columns, tuple(unnamed))


def _chosen(columns: list[str], layout: SequenceFile) -> tuple[str | None, str]:
    """The column of prompts, if there is one, and that of targets."""
    for name in (layout.column, layout.prompt_column, layout.group, layout.order):
        if name is not None and name not in columns:
            raise ValueError(unknown("column", name, columns))
    prompt, target = _found(columns, layout)
    for name in (target, prompt, layout.group, layout.order):
        if name is not None and columns.count(name) > 1:
            raise ValueError(f"there are {columns.count(name)} columns {name!r}")
    return prompt, target


def _found(columns: list[str], layout: SequenceFile) -> tuple[str | None, str]:
    """The result of `_chosen`, whether or not a column occurs twice."""
    if layout.column is not None:
        return layout.prompt_column, layout.column
    if layout.group is None and "target" in columns and (layout.prompt_column or "prompt") in columns:
        return layout.prompt_column or "prompt", "target"
    others = [column for column in columns if column not in (layout.prompt_column, layout.group, layout.order)]
    if len(others) == 1:
        return layout.prompt_column, others[0]
    listed = ", ".join(columns[:10]) + (f", ... ({len(columns):,} in all)" if len(columns) > 10 else "")
    raise ValueError(
        f"which column holds the symbols? Set --task.column to one of {listed}. A file with one event a "
        "row needs --task.group, too: the column that names the case; a file without a header, --task.format text "
        "--task.separator ,"
    )


def _cell(record: dict[str, Any], column: str) -> Any:
    if column not in record:
        raise ValueError(unknown("column", column, list(record)))
    return record[column]


def _cases(
    records: Iterable[tuple[int, dict[str, Any]]], column: str, layout: SequenceFile, problems: Problems
) -> list[tuple[str, int, tuple[str, ...]]]:
    """(name, line of the first event, symbols) of every case, in order of first appearance; events of equal order stay
    in file order."""
    assert layout.group is not None
    cases: dict[str, list[tuple[Any, int, str]]] = {}
    kind: tuple[str, int] | None = None
    for number, record in records:
        try:
            case, symbol = (_name(_cell(record, name), name) for name in (layout.group, column))
            at: Any = 0
            if layout.order is not None:
                at, moment = _moment(_cell(record, layout.order), layout.order)
                kind = kind or (moment, number)
                if moment != kind[0]:
                    raise ValueError(f"column {layout.order!r} is {moment}, but {kind[0]} in line {kind[1]}")
        except ValueError as error:
            problems.add(number, str(error))
            continue
        cases.setdefault(case, []).append((at, number, symbol))
    return [
        (case, min(event[1] for event in events), tuple(event[2] for event in sorted(events, key=itemgetter(0))))
        for case, events in cases.items()
    ]


def _name(value: Any, column: str) -> str:
    """The name of a case or an event."""
    if not _is_symbol(value):
        raise ValueError(f"column {column!r} must be a string or a whole number")
    if value == "":
        raise ValueError(f"column {column!r} is empty")
    return intern(str(value))


def _moment(value: Any, column: str) -> tuple[Any, str]:
    """A number or a time, exactly, comparable with others of its kind, and the kind."""
    if isinstance(value, Decimal) or (isinstance(value, int) and not isinstance(value, bool)):
        return value, "a number"
    if isinstance(value, str):
        # A colon is never in a number and nearly always in a time: two refusals for each would take a third of the time
        # of reading a log.
        number = None if ":" in value else _number(value)
        if number is not None:
            return number, "a number"
        time = _time(value)
        if time is not None:
            return time, "a time without a zone" if time[0].utcoffset() is None else "a time with a zone"
    raise ValueError(
        f"column {column!r} is {cut(repr(value))}: the order must be a number or an ISO 8601 time such as "
        "2024-05-31 09:30"
    )


def _number(text: str) -> int | Decimal | None:
    """A number without rounding: a float holds neither nanoseconds since 1970 nor their fractions. None: not a finite
    number."""
    try:
        return int(text)
    except ValueError:  # not whole, or longer than Python converts
        pass
    try:
        number = Decimal(text)
    except InvalidOperation:
        return None
    return number if number.is_finite() else None


def _fraction(text: str) -> Decimal | float:
    """A JSON number that is not whole, without rounding unless its exponent is absurd."""
    try:
        return Decimal(text)
    except InvalidOperation:
        return float(text)


def _time(text: str) -> tuple[datetime, str] | None:
    """A time to the microsecond, and the further digits of its fraction without final zeros: as text, these are in
    the order of what they mean. None: not an ISO 8601 time, or one with a fraction of anything but seconds."""
    further, mark = "", max(text.find("."), text.find(","))
    if mark >= 0:
        # Not left to Python, which drops further digits and reads a fraction of a minute as one of a second.
        before, after = text[:mark], text[mark + 1 :]
        extended = before[-6::3] == "::" and before[-9:-8] not in SIGNS
        if not extended and not (before[-6:].isdecimal() and before[-7:-6] not in DIGITS + SIGNS):
            return None
        zone = after.lstrip(DIGITS)
        if "." in zone or "," in zone:
            return None
        if len(after) - len(zone) > 6:
            further = after[6 : len(after) - len(zone)].rstrip("0")
            text = before + "." + after[:6] + zone
    try:
        return datetime.fromisoformat(text), further
    except ValueError:
        return None


DIGITS, SIGNS = "0123456789", "+-"
