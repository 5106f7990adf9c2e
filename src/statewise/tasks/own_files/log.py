"""A file of sequences in memory, as arrays: its symbols, its events, their times, and the columns of the file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from sys import intern
from typing import Any, NamedTuple, Protocol

import numpy as np

from statewise.runtime.json_files import loads
from statewise.runtime.messages import counted, series
from statewise.tasks.own_files.encodings import WESTERN, Text, text_of, western
from statewise.tasks.own_files.fasta import read_fasta
from statewise.tasks.own_files.file_formats import Format, recognised
from statewise.tasks.own_files.layout import DROP, MISSING, SequenceFile, unescaped
from statewise.tasks.own_files.lines import Problems, beginning_of, opened
from statewise.tasks.own_files.pgn import read_pgn
from statewise.tasks.own_files.plain_text import files_in, read_folder, read_texts
from statewise.tasks.own_files.sources import Absent, Collected, Ids, Source, unknown_column, written
from statewise.tasks.own_files.times import EPOCHS, Moments, Reader, ordered
from statewise.tasks.own_files.unfinished import cut_cases


class Table(Protocol):
    """The columns of a file, read again from the file when they are asked for."""

    names: list[str]
    """Names of the columns, in the order of the file; empty for lines of text."""

    def column(self, name: str) -> list[str]:
        """Text of one column, one value per record: `EventLog.rows` are indices into it. Raises `ValueError` for an
        unknown column, and if the file cannot be read again as it was."""

    def records(self) -> Iterator[list[str]]:
        """All columns of each record, in the order of `names`. Raises `ValueError` as `column` does."""


class NoTable:
    """The table of a file without columns."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def column(self, name: str) -> list[str]:
        """Raises `ValueError`."""
        raise ValueError(f"the file has no columns, so it has no column {name!r}")

    def records(self) -> Iterator[list[str]]:
        """No records."""
        return iter(())


@dataclass(frozen=True)
class EventLog:
    """N sequences of E events. A line of text or a JSON list is a sequence, too, and each of its symbols an event."""

    symbols: list[str]
    """The different symbols, in the order in which they first occur in the sequences."""
    codes: np.ndarray
    """(E,) int64 index in `symbols` of each event; the events of a sequence follow one another."""
    offsets: np.ndarray
    """(N + 1,) int64: the events of sequence i are `offsets[i]` to `offsets[i + 1]`, the last excluded."""
    rows: np.ndarray
    """(E,) int64 number of the record in the file, counted from 0 without empty rows."""
    lines: np.ndarray
    """(N,) int64 number of the first line of each sequence in the file, from 1; of the element, if it has no lines."""
    prompts: np.ndarray
    """(N,) int64: so many events at the beginning of each sequence are a prompt, which is not scored."""
    times: np.ndarray | None = None
    """(E,) int64 nanoseconds since 1970, of wall clocks where the file has no zone; None: no times are known."""
    steps: np.ndarray | None = None
    """(E,) float64: the numbers by which events are ordered where they are no times; None: there are none."""
    cases: list[str] | None = None
    """(N,) name of each case; None: the sequences have no names."""
    unfinished: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))
    """(N,) bool: cases cut at the end of the log, which are never scored for the end symbol."""
    table: Table = field(default_factory=NoTable)
    """The columns of the file."""
    columns: tuple[str, ...] = ()
    """Columns of the header, or of the first object; empty for files without columns."""
    how: str = ""
    """A description of the layout that the file was read with."""
    notes: tuple[str, ...] = ()
    """What was left out or decided while reading, as sentences."""
    doubts: tuple[str, ...] = ()
    """Signs that the file was misread, each with its remedy."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> np.ndarray:
        """(N,) int64: events of each sequence."""
        return np.diff(self.offsets)

    def sequence(self, number: int) -> list[str]:
        """Symbols of one sequence, prompt included."""
        return [self.symbols[code] for code in self.codes[self.offsets[number] : self.offsets[number + 1]]]


class File(NamedTuple):
    """A file and what reads it."""

    path: Path
    family: str
    """A value of `SequenceFile.format` but `auto`, or `folder`."""
    text: Text | None
    """How it is decoded; None: it is not text."""
    kind: Format | None
    """Its format, if its beginning shows it."""


def identified(path: Path, layout: SequenceFile, text: Text | None = None) -> File:
    """What reads a file. `text`: how it is decoded, if that is known. Raises `ValueError` for formats that are not
    read."""
    if path.is_dir():
        return File(path, "folder", None, None)
    if path.exists() and not path.is_file():
        raise ValueError(f"{path}: this is not a file that can be read twice: write it to a file first")
    with opened(path) as file:
        beginning = beginning_of(file)
    kind = recognised(beginning, path, text=layout.format == "text")
    binary = kind is not None and not kind.is_text and not kind.family.startswith("utf-")
    if kind is not None and binary:
        if layout.format not in ("auto", kind.family):
            raise ValueError(f"{path}: this is {kind.name}, not UTF-8 text: set --task.format {kind.family} or auto")
        return File(path, kind.family, None, kind)
    if layout.format in ("parquet", "feather"):
        raise ValueError(f"{path}: this is not a {layout.format.capitalize()} file")
    if text is None:
        text = text_of(path, layout.encoding, kind)
    if kind is not None and kind.family.startswith("utf-"):
        with text.open() as decoded:
            sample = decoded.read(2**12)
        kind = recognised(sample.removeprefix("\ufeff").encode("utf-8", "replace"), path, text=layout.format == "text")
    if layout.format != "auto":
        return File(path, layout.format, text, kind)
    return File(path, _family(path, layout, text, kind), text, kind)


def _family(path: Path, layout: SequenceFile, text: Text, kind: Format | None) -> str:
    if kind is not None and kind.family:
        return kind.family
    _, first = next(text.lines())
    suffixes = [suffix.lower() for suffix in path.suffixes]
    while suffixes and suffixes[-1] in (".gz", ".zip"):
        suffixes.pop()
    suffix = suffixes[-1] if suffixes else ""
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


def source_of(file: File, layout: SequenceFile) -> Source | None:
    """The columns of a file; None: it has no columns. Raises `ValueError` if it cannot be read."""
    if file.family == "csv":
        from statewise.tasks.own_files.delimited import Delimited

        assert file.text is not None
        return Delimited(file.text, None if layout.delimiter is None else unescaped(layout.delimiter))
    if file.family == "json":
        from statewise.tasks.own_files.json_records import JsonObjects, JsonValues

        assert file.text is not None
        values = JsonValues(file.text)
        return JsonObjects(values) if values.kind is dict else None
    if file.family == "xes":
        from statewise.tasks.own_files.xes import Xes

        return Xes(file.path)
    if file.family in ("parquet", "feather"):
        from statewise.tasks.own_files.columnar import Columnar

        return Columnar(file.path, file.family)
    return None


def read_log(path: Path, layout: SequenceFile) -> EventLog:
    """The sequences of a file, or of the files of a folder. Raises `ValueError` as `FILE:LINE: what is wrong`."""
    log: EventLog = decoded(path, layout, lambda file: _read(file, layout))
    return log


def decoded(path: Path, layout: SequenceFile, read: Callable[[File], Any]) -> Any:
    """What `read` makes of a file; in Windows-1252 if the file turns out not to be in UTF-8. Raises `ValueError`."""
    try:
        return read(identified(path, layout))
    except UnicodeDecodeError:
        pass
    text = western(text_of(path, layout.encoding, None), layout.encoding is not None)
    return read(identified(path, layout, text))


def _read(file: File, layout: SequenceFile) -> EventLog:
    source = source_of(file, layout)
    log = _of_text(file, layout, None) if source is None else read_source(source, layout)
    if file.text is None or not file.text.note:
        return log
    if file.text.encoding == WESTERN:
        return replace(log, doubts=(file.text.note, *log.doubts))
    return replace(log, notes=(file.text.note, *log.notes))


def read_source(source: Source, layout: SequenceFile) -> EventLog:
    """The sequences of a file with columns. Raises `ValueError` as `read_log` does."""
    roles, problems = _roles(source, layout), Problems(source.path, by_kind=True)
    read = _rows if roles.case is None else _events
    return read(source, roles, layout, problems)


def read_beginning(file: File, layout: SequenceFile, most: int) -> EventLog:
    """The first `most` sequences, or lines, of a file without columns. Raises `ValueError` as `read_log` does."""
    return _of_text(file, layout, most)


def _of_text(file: File, layout: SequenceFile, most: int | None) -> EventLog:
    problems = Problems(file.path, by_kind=True)
    found, how, notes = _sequences(file, layout, problems, most)
    return _log_of(found, file.path, layout, problems, how, notes)


def _sequences(
    file: File, layout: SequenceFile, problems: Problems, most: int | None
) -> tuple[Collected, str, list[str]]:
    """Sequences of a file without columns, how it was read, and notes. `most`: sequences, or lines, that are read."""
    given = [name for name in ("column", "prompt_column", "group", "order") if getattr(layout, name) is not None]
    if given and file.family in _ONE_EACH:
        raise ValueError(f"{file.path}: {_ONE_EACH[file.family]}, without columns: omit --task.{given[0]}")
    if file.family == "folder":
        texts = [text_of(path, layout.encoding, None) for path in files_in(file.path)[:most]]
        try:
            return read_folder(texts, layout, problems), "a folder, one sequence a file", []
        except UnicodeDecodeError:
            raise ValueError(f"{file.path}: a file of this folder is not in UTF-8: set --task.encoding") from None
    assert file.text is not None
    if file.family == "fasta":
        found, notes = read_fasta(islice(file.text.lines(), most), problems)
        return found, "FASTA, each letter a symbol", notes
    if file.family == "pgn":
        return read_pgn(file.text, problems, most), "PGN, the moves of each game", []
    if file.family == "json":
        from statewise.tasks.own_files.json_records import JsonValues

        values = JsonValues(file.text)
        of_file = islice(values.values(problems), most)
        if values.kind is str:
            return read_texts(of_file, layout, problems), values.how, []
        found = Collected()
        for record, (number, value) in enumerate(of_file):
            try:
                found.add(number, record, _nonempty(_symbols(value, "the line", layout)))
            except ValueError as error:
                problems.add(number, str(error))
        return found, values.how, []
    found = read_texts(islice(file.text.lines(), most), layout, problems)
    return found, "text, one sequence a line" + (", its prompt before a tab" if any(found.prompts) else ""), []


_ONE_EACH = {
    "folder": "a folder is read as one sequence a file",
    "fasta": "FASTA is read as one sequence a record",
    "pgn": "PGN is read as one sequence a game",
}


def _symbols(value: Any, what: str, layout: SequenceFile) -> tuple[str, ...]:
    """Symbols of a cell or a JSON value."""
    if isinstance(value, str):
        return tuple(layout.symbols_of(value))
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


def settled(path: Path, layout: SequenceFile, problems: Problems, sequences: int) -> list[str]:
    """Notes about rows with errors. Raises `ValueError` if `layout` says to stop, or if no sequence is left."""
    if not problems.kinds:
        return []
    if layout.on_error == "stop":
        problems.raise_if_any()
    if not sequences:
        raise ValueError(f"{path}: every row has an error, such as {problems.listed()[0]}")
    dropped = counted(problems.count, "row")
    return [f"{dropped} with errors left out: {'; '.join(problems.listed())}"]


def _log_of(
    found: Collected,
    path: Path,
    layout: SequenceFile,
    problems: Problems,
    how: str,
    notes: Iterable[str],
    source: Source | None = None,
    columns: Sequence[str] = (),
) -> EventLog:
    left = settled(path, layout, problems, len(found.lines))
    if not found.lines:
        header = ": there is a header, but no row under it" if source is not None else ": the file has no sequence"
        raise ValueError(f"{path}{header}")
    lengths = np.fromiter(map(len, found.codes), np.int64, len(found.codes))
    names = [name for name in found.names if name is not None]
    return EventLog(
        list(found.ids),
        np.concatenate(found.codes).astype(np.int64),
        np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        np.repeat(np.array(found.records, np.int64), lengths),
        np.array(found.lines, np.int64),
        np.array(found.prompts, np.int64),
        cases=names if len(names) == len(lengths) else None,
        unfinished=np.zeros(len(lengths), bool),
        table=NoTable() if source is None else source,
        columns=tuple(columns),
        how=how,
        notes=tuple(notes),
        doubts=tuple(left),
    )


# Tables


class Roles(NamedTuple):
    """What columns are for."""

    symbols: list[str]
    prompts: list[str]
    case: str | None
    order: str | None
    clock: str | None
    """The column of times: that of the order, or one that the format names."""
    never: str | None = None
    """A column that no record may have."""


def _roles(source: Source, layout: SequenceFile) -> Roles:
    """Raises `ValueError` for columns that do not exist or occur twice, and for symbols that cannot be found."""
    case = layout.group or source.case
    order = layout.order
    prompts = [] if layout.prompt_column is None else _listed(source, layout.prompt_column, case is not None)
    never = None
    if layout.column is not None:
        symbols = _listed(source, layout.column, case is not None)
    else:
        target, prompt, never = _found(source, layout, case)
        symbols = [target]
        prompts = prompts or ([prompt] if prompt else [])
    for name in (*symbols, *prompts, case, order):
        if name is None:
            continue
        source.check(name)
        if source.names.count(name) > 1:
            raise ValueError(f"{source.path}: there are {source.names.count(name)} columns {name!r}")
    clock = order or (source.clock if source.clock and source.has(source.clock) else None)
    return Roles(symbols, prompts, case, order, clock, never)


def _listed(source: Source, names: str, several: bool) -> list[str]:
    """The columns of a field that is the name of a column, or, if `several` may be, names with commas between."""
    if source.has(names) or "," not in names:
        return [names]
    parts = [part.strip() for part in names.split(",")]
    if any(map(source.has, parts)):
        if several:
            return parts
        raise ValueError(
            f"{source.path}: several columns make one symbol only in a file with an event per row: set task.group to "
            "the column that names the case"
        )
    return [names]


def _found(source: Source, layout: SequenceFile, case: str | None) -> tuple[str, str | None, str | None]:
    """The column of symbols and that of prompts where `layout` does not name the first, and one that must be empty."""
    columns = list(getattr(source, "first", source.names))
    if source.symbol is not None:
        return source.symbol, None, None
    prompt = layout.prompt_column or "prompt"
    if case is None and "target" in columns and prompt in columns:
        return "target", prompt, None
    for name in (layout.prompt_column, layout.group, layout.order):
        if name is not None:
            source.check(name)
    others = [column for column in columns if column not in (layout.prompt_column, case, layout.order)]
    if len(others) == 1:
        never = prompt if case is None and others == ["target"] and hasattr(source, "first") else None
        return others[0], layout.prompt_column, never
    listed = ", ".join(columns[:10]) + (f", ... ({len(columns):,} in all)" if len(columns) > 10 else "")
    raise ValueError(
        f"{source.path}: which column holds the symbols? Set --task.column to one of {listed}. A file with one event a "
        "row needs --task.group, too: the column that names the case; a file without a header, --task.format text "
        "--task.separator ,"
    )


def _rows(source: Source, roles: Roles, layout: SequenceFile, problems: Problems) -> EventLog:
    """A sequence from each record."""
    found = Collected()
    target = roles.symbols[0]
    prompt = roles.prompts[0] if roles.prompts else None
    wanted = [target, *roles.prompts, *([roles.never] if roles.never else [])]
    for chunk in source.chunks(wanted, problems):
        for place, (record, line) in enumerate(zip(chunk.records.tolist(), chunk.lines.tolist())):
            cells = [column[place] for column in chunk.cells]
            try:
                for name, cell in zip((target, *roles.prompts), cells):
                    if isinstance(cell, Absent):
                        raise ValueError(unknown_column(name, cell.names))
                if roles.never and not isinstance(cells[-1], Absent):
                    raise ValueError(
                        f"it has {roles.never!r}, which the first object lacks: give it to all, or to none"
                    )
                answer = _symbols(cells[0], repr(target), layout)
                before = () if prompt is None else _symbols(cells[1], repr(prompt), layout)
                _nonempty((*before, *answer))
            except ValueError as error:
                problems.add(line, str(error))
                continue
            found.add(line, record, answer, before)
    how = f"{source.how}, column {target!r}" + ("" if prompt is None else f" after {prompt!r}")
    columns = getattr(source, "first", source.names)
    return _log_of(found, source.path, layout, problems, how, source.notes, source, columns)


# Event logs


class _Names:
    """Numbers of the values of a column."""

    def __init__(self, column: str, layout: SequenceFile, *, replaced: bool) -> None:
        self.column, self.missing, self.replaced = column, layout.missing, replaced
        self.ids = Ids()
        self.count: Counter[str] = Counter()
        """Missing cells, by how they are written."""

    def read(self, cells: Sequence[Any], lines: np.ndarray, problems: Problems, kept: np.ndarray) -> np.ndarray:
        """(n,) int64 numbers of the values. Clears `kept` (n,) of rows without one, and reports them if that is an
        error."""
        ids = self.ids
        if set(map(type, cells)) <= {str}:
            texts: Sequence[Any] = cells
        else:
            texts = [cell if isinstance(cell, str) else str(cell) if _is_symbol(cell) else None for cell in cells]
        codes = ids.of(texts)
        gone = [
            code
            for text, code in ((text, ids.get(text)) for text in (None, "", *(MISSING if self.missing else ())))
            if code is not None
        ]
        if not gone:
            return codes
        for place in np.flatnonzero(np.isin(codes, gone)).tolist():
            if not kept[place]:
                continue
            cell = cells[place]
            text = texts[place]
            absent = cell is None or isinstance(cell, Absent)
            if text is None and (not absent or self.missing is None):
                kept[place] = False
                if isinstance(cell, Absent) and cell.names:
                    wrong = unknown_column(self.column, cell.names)
                elif absent and isinstance(cell, Absent):
                    wrong = f"column {self.column!r} is missing{HINT}"
                else:
                    wrong = f"column {self.column!r} must be a string or a whole number"
                problems.add(int(lines[place]), wrong, f"{self.column} {type(cell).__name__}")
            elif self.missing is None or (self.missing != DROP and not self.replaced):
                kept[place] = False
                problems.add(int(lines[place]), f"column {self.column!r} is empty{HINT}", f"{self.column} empty")
            else:
                self.count["empty" if text == "" else "null" if absent else repr(text)] += 1
                if self.missing == DROP:
                    kept[place] = False
                else:
                    codes[place] = ids[self.missing]
        return codes

    def notes(self) -> list[str]:
        """What became of missing cells."""
        if not self.count:
            return []
        kinds = series(f"{number:,} {name}" for name, number in self.count.most_common())
        became = "rows left out" if self.missing == DROP else f"read as {self.missing!r}"
        return [f"column {self.column!r}: {kinds} cell{'s' * (self.count.total() > 1)}: {became}"]


HINT = ": set --task.missing drop to leave such rows out, or --task.missing SYMBOL"


def _events(source: Source, roles: Roles, layout: SequenceFile, problems: Problems) -> EventLog:
    """A sequence from each case."""
    case = roles.case
    assert case is not None
    cycle, stages = _lifecycle(source, roles), set[str]()
    optional = [name for name in (roles.clock, cycle) if name is not None]
    wanted = list(dict.fromkeys([case, *roles.symbols, *roles.prompts, *optional]))
    place = {name: number for number, name in enumerate(wanted)}
    names = {name: _Names(name, layout, replaced=name != case) for name in (case, *roles.symbols)}
    values = {
        name: _Names(name, replace(layout, missing=layout.missing or "missing"), replaced=True)
        for name in roles.prompts
    }
    reader = None if roles.clock is None else Reader(roles.clock, layout.time_format)
    blocks: list[list[np.ndarray]] = []
    moments: list[Moments] = []
    timeless = Counter[str]()
    for chunk in source.chunks(wanted, problems):
        kept = np.ones(len(chunk.lines), bool)
        if cycle is not None and len(stages) < 10:
            stages.update(cell.lower() for cell in chunk.cells[place[cycle]] if isinstance(cell, str))
        columns = [names[name].read(chunk.cells[place[name]], chunk.lines, problems, kept) for name in names]
        columns += [values[name].read(chunk.cells[place[name]], chunk.lines, problems, kept) for name in values]
        if reader is not None:
            cells = chunk.cells[place[reader.column]]
            found, wrong = reader.read(cells, chunk.lines)
            if roles.order is None:  # the times do not order events: they may be missing
                timeless.update(["missing"] * len(wrong))
            for row, what in wrong.items() if roles.order is not None else ():
                if kept[row]:
                    kept[row] = False
                    cell = cells[row]
                    if layout.missing == DROP and (written(cell) in MISSING or written(cell) == ""):
                        timeless[repr(cell) if isinstance(cell, str) and cell else "empty"] += 1
                    else:
                        problems.add(int(chunk.lines[row]), what, f"{reader.column} {_kind_of(cell)}")
            moments.append(found.take(kept))
        blocks.append([one[kept] for one in (chunk.lines, chunk.records, *columns)])
    lines, records, cases, *codes = (
        (np.concatenate(part) for part in zip(*blocks)) if blocks else (np.zeros(0, int),) * 3
    )
    notes = [*source.notes, *(note for one in (*names.values(), *values.values()) for note in one.notes())]
    order = None
    how = ""
    if reader is not None and len(lines) and not (roles.order is None and timeless):
        try:
            every = Moments.joined(moments)
            moments.clear()
            order = ordered(every, reader.column, layout.time_format if layout.time_format in EPOCHS else None)
        except ValueError as error:
            raise ValueError(f"{source.path}: {error}") from None
        for row, what in order.wrong.items():
            problems.add(int(lines[row]), what, f"{reader.column} order")
        how = f" ({order.how})" if order.how else ""
    if roles.order is not None and timeless:
        kinds = series(f"{number:,} {name}" for name, number in timeless.most_common())
        notes.append(f"column {roles.order!r}: {kinds} cell{'s' * (timeless.total() > 1)}: rows left out")
    good = np.ones(len(lines), bool)
    good[list(order.wrong) if order is not None else []] = False
    left = settled(source.path, layout, problems, int(good.sum()))
    if not good.any():
        raise ValueError(f"{source.path}: there is a header, but no row under it")
    _, case_of = _by_first(cases[good])
    case_names = _taken(names[case].ids, cases[good], case_of)
    keys = [] if order is None or roles.order is None else [key[good] for key in order.keys]
    placed = np.lexsort((*keys, case_of))
    width = len(roles.symbols)
    events = _joined(
        [one[good][placed] for one in codes[:width]], [names[name].ids for name in roles.symbols], source.path
    )
    lengths = np.bincount(case_of)
    first_lines = np.full(len(lengths), np.iinfo(np.int64).max)
    np.minimum.at(first_lines, case_of, lines[good])
    log = EventLog(
        *events,
        np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        records[good][placed],
        first_lines,
        np.zeros(len(lengths), np.int64),
        None if order is None or order.times is None else order.times[good][placed],
        None if order is None or order.steps is None else order.steps[good][placed],
        case_names,
        np.zeros(len(lengths), bool),
        source,
        tuple(getattr(source, "first", source.names)),
        f"{source.how}, column {'+'.join(roles.symbols)!r}, one sequence for each {case!r}"
        + ("" if roles.order is None else f", ordered by {roles.order!r}{how}"),
    )
    if layout.unfinished == "mark":
        unfinished, said = cut_cases(log.codes, log.offsets, log.times)
        log, notes = replace(log, unfinished=unfinished), [*notes, said]
    if roles.prompts:
        log = _prompted(log, [one[good][placed] for one in codes[width:]], [values[name].ids for name in roles.prompts])
    return replace(log, notes=tuple(notes), doubts=(*left, *_doubts(log, roles, layout, cycle, stages)))


def _kind_of(cell: Any) -> str:
    return "missing" if isinstance(cell, Absent) or cell is None or cell == "" else "value"


def _by_first(codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The different numbers in the order in which they first occur, and (n,) the place of each in that order."""
    different, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return different[order], rank[inverse.ravel()]


def _taken(ids: dict[str, int], codes: np.ndarray, ranks: np.ndarray) -> list[str]:
    """Names in the order of their ranks."""
    every = list(ids)
    number = np.empty(int(ranks.max()) + 1, np.int64)
    number[ranks] = codes
    return [every[code] for code in number.tolist()]


def _joined(columns: list[np.ndarray], ids: list[dict[str, int]], path: Path) -> tuple[list[str], np.ndarray]:
    """Symbols and codes of events whose symbol is made of several columns, with a plus sign between."""
    every = [list(one) for one in ids]
    if len(columns) == 1:
        different, codes = _by_first(columns[0])
        return [every[0][code] for code in different.tolist()], codes
    joint = columns[0]
    for column, one in zip(columns[1:], ids[1:]):
        joint = joint * len(one) + column
        _, joint = _by_first(joint)
    different, first, codes = np.unique(joint, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    symbols = ["+".join(names[column[row]] for names, column in zip(every, columns)) for row in first[order].tolist()]
    if len(set(symbols)) < len(symbols):
        twice = next(symbol for symbol in symbols if symbols.count(symbol) > 1)
        raise ValueError(
            f"{path}: the columns make the symbol {twice!r} in two ways, since their values have plus signs: replace "
            "those"
        )
    return symbols, rank[codes.ravel()]


def _prompted(log: EventLog, columns: list[np.ndarray], ids: list[dict[str, int]]) -> EventLog:
    """The log with the values of columns in the first event of each case as prompts."""
    starts, width = log.offsets[:-1], len(columns)
    symbols = list(log.symbols)
    known = {symbol: code for code, symbol in enumerate(symbols)}
    added = np.empty((len(starts), width), np.int64)
    for number, (column, names) in enumerate(zip(columns, ids)):
        every = list(names)
        added[:, number] = [known.setdefault(every[code], len(known)) for code in column[starts].tolist()]
    before = np.repeat(starts, width)

    def spread(array: np.ndarray, inserted: np.ndarray) -> np.ndarray:
        return np.insert(array, before, inserted)

    every_symbol = list(known)
    codes = spread(log.codes, added.ravel())
    different, codes = _by_first(codes)
    return replace(
        log,
        symbols=[every_symbol[code] for code in different.tolist()],
        codes=codes,
        offsets=log.offsets + width * np.arange(len(log.offsets)),
        rows=spread(log.rows, np.repeat(log.rows[starts], width)),
        prompts=np.full(len(starts), width, np.int64),
        times=None if log.times is None else spread(log.times, np.repeat(log.times[starts], width)),
        steps=None if log.steps is None else spread(log.steps, np.repeat(log.steps[starts], width)),
    )


def _lifecycle(source: Source, roles: Roles) -> str | None:
    """The column of the stages of activities, if there is one that is not used."""
    return next(
        (
            name
            for name in source.names
            if "lifecycle" in name.lower() and not name.startswith("case:") and name not in roles.symbols
        ),
        None,
    )


def _doubts(log: EventLog, roles: Roles, layout: SequenceFile, cycle: str | None, stages: set[str]) -> Iterator[str]:
    """Signs that the columns are not those that the user means. `stages`: what the column `cycle` has, in small
    letters."""
    assert log.cases is not None
    if layout.missing is None:
        for number, case in enumerate(log.cases):
            if case in MISSING:
                length = int(log.lengths[number])
                yield (
                    f"{counted(length, 'event')} {'has' if length == 1 else 'have'} the case {case!r}, which often "
                    "stands for a missing value: if it does, set --task.missing drop"
                )
    if cycle is not None and {"start", "complete"} <= stages:
        columns = ",".join([*roles.symbols, cycle])
        yield (
            f"column {cycle!r} says whether an event is the start or the end of an activity, so that most activities "
            f"occur twice in a row: set --task.column {columns} to distinguish them"
        )
