"""What a file of a user is, and how to train on it: from its beginning, without reading the rest."""

from __future__ import annotations

import math
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import override

from statewise.data_types import Ragged
from statewise.runtime.messages import counted, cut, series
from statewise.tasks.own_files.layout import MISSING, SequenceFile
from statewise.tasks.own_files.lines import Problems, opened
from statewise.tasks.own_files.log import EventLog
from statewise.tasks.own_files.plain_text import files_in
from statewise.tasks.own_files.reading import File, decoded, read_beginning, read_source, source_of
from statewise.tasks.own_files.sources import Absent, Chunk, Source, written
from statewise.tasks.own_files.splits import HELD_OUT_SHARE, keys
from statewise.tasks.own_files.times import KINDS, LOCAL, NUMBER, ZONED, Moments, Reader, ordered

RECORDS = 50_000
"""Records that are looked at, at most."""
CELLS = 10**6
"""Cells that are looked at, about, at most."""
LONGEST_EXAMPLE = 36
"""Characters of an example of a cell: a time with nanoseconds and zone has up to 35."""
COLUMNS = 200
"""Columns that are described, at most."""
MOST_UNFINISHED = 0.5
"""From this share of unfinished cases on, the times do not show which cases the end of the log has cut."""
FEWEST_CASES = 8
"""Different held-out cases that a verdict needs, as in `statewise.evaluation.verdict`."""
MOST_HELD_OUT = 0.5
"""Largest share that is held out so that there are enough different cases for a verdict."""
MOSTLY = 0.9
"""Share of the cells of a column by which it is judged."""
MIXED = "times, some with a zone and some without"
CASE = (
    "case|trace|session|user|customer|patient|visitor|device|machine|ticket|incident|order|account|episode|run|game|"
    "group|id"
)
SYMBOL = (
    "activity|event|action|concept:name|task|operation|symbol|token|span|tool|type|status|step|page|item|move|state|"
    "name"
)
TIME = "start|begin|timestamp|time|when|date|order|seq|index|step|position|hour|day"


@dataclass(frozen=True)
class Column:
    """A column, as far as it was looked at."""

    name: str
    look: str
    """What its cells look like."""
    missing: dict[str, int]
    """How many cells are missing, by how they are written."""
    different: int
    """How many different values it has."""
    kind: str
    """`time`, `number`, `list`, `words` (several in a cell) or `word`; empty if every cell is missing."""
    repeated: float
    """Share of the cells whose value occurs elsewhere, too."""
    examples: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """All of it as JSON values."""
        return {
            "name": self.name,
            "look": self.look,
            "missing": self.missing,
            "different": self.different,
            "examples": list(self.examples),
        }


@dataclass(frozen=True)
class Inspection:
    """What a file is."""

    path: str
    what: str
    """Its format, and how much of it was looked at."""
    notes: tuple[str, ...]
    columns: tuple[Column, ...]
    candidates: dict[str, tuple[str, ...]]
    """Columns that may name the case, order the events and hold the symbols, the likeliest first."""
    command: str
    """A command that trains on the file."""
    reads: tuple[str, ...]
    """What the command reads, as far as the file was looked at."""

    def as_json(self) -> dict[str, Any]:
        """All of it as JSON values."""
        return {
            "path": self.path,
            "what": self.what,
            "notes": list(self.notes),
            "columns": [column.as_json() for column in self.columns],
            "candidates": {role: list(names) for role, names in self.candidates.items()},
            "command": self.command,
            "reads": list(self.reads),
        }

    def as_text(self) -> str:
        """All of it as lines."""
        lines = [f"{self.path}: {self.what}", *(f"  {note}" for note in self.notes)]
        if self.columns:
            width = min(30, max(len(column.name) for column in self.columns))
            lines.append("columns:")
            for column in self.columns:
                gone = series(f"{number:,} {text}" for text, number in column.missing.items()) if column.missing else ""
                shown = ", ".join(column.examples)
                lines.append(
                    f"  {cut(column.name, 30):{width}}  {column.look}"
                    + f"; missing: {gone}" * bool(gone)
                    + f"  ({shown})"
                )
        for role, names in self.candidates.items():
            lines.append(f"{role}: {', '.join(names) if names else 'no column looks like it'}")
        if self.reads:
            lines += ["read so, it has:", *(f"  {line}" for line in self.reads)]
        return "\n".join([*lines, "to train on it:", f"  {self.command}"])


def inspect(path: Path, layout: SequenceFile | None = None) -> Inspection:
    """What a file or folder is. `layout`: what is known of it already. Raises `ValueError` if it cannot be read."""
    layout = layout or SequenceFile()
    if not path.exists():
        raise ValueError(f"{path}: No such file or directory")
    found: Inspection = decoded(path, layout, lambda file: _inspected(file, layout))
    return found


def _inspected(file: File, layout: SequenceFile) -> Inspection:
    if file.family == "text" and layout.format == "auto" and _is_table(file):
        file, layout = file._replace(family="csv"), replace(layout, format="csv")
    source = source_of(file, layout)
    if source is None:
        return _sequences(file, layout)
    first = _First(source)
    names = list(dict.fromkeys([*source.names, *getattr(source, "nested", ())]))[:COLUMNS]
    cells: dict[str, list[Any]] = {name: [] for name in names}
    lines: list[int] = []
    problems = Problems(file.path, by_kind=True)
    for chunk in first.chunks(names, problems):
        lines.extend(chunk.lines)
        for name, column in zip(names, chunk.cells):
            cells[name].extend(column)
    records = len(cells[names[0]])
    if not records and not problems.count:
        raise ValueError(f"{file.path}: there is a header, but no row under it")
    names = [name for name in names if not _holds_objects(cells[name])] or names  # keys are columns of their own
    columns = tuple(_described(name, cells[name], lines) for name in names)
    candidates = _candidates(columns, source)
    notes = [*_about(file), *source.notes]
    if len(source.names) > COLUMNS:
        notes.append(f"{len(source.names):,} columns, of which the first {COLUMNS} are shown")
    if problems.count:
        notes.append(f"{counted(problems.count, 'row')} with errors: {'; '.join(problems.listed())}")
    layout = _layout(layout, columns, candidates, source, cells)
    if (copies := _copies(cells, columns)) and not first.cut:
        notes.append(f"{counted(copies, 'row')} equal to an earlier row in every column: each counts as an event")
    mixed = any(column.name == layout.order and column.look == MIXED for column in columns)
    layout, log, trouble = _tried(first, layout, drop=not mixed)
    if log is not None and log.times is not None and not first.cut:
        marked = read_source(first, replace(layout, unfinished="mark"))
        if 0 < marked.unfinished.mean() < MOST_UNFINISHED:
            layout, log = replace(layout, unfinished="mark"), marked
    reads = [f"nothing yet: {trouble}"] if log is None else _reads(log)
    share, few = (None, "") if log is None or first.cut else _enough(log)
    reads += [few] if few else []
    what = f"{source.how}, {_amount(file, records, first.cut)}"
    return Inspection(
        str(file.path), what, tuple(notes), columns, candidates, _command(file.path, layout, share), tuple(reads)
    )


def _holds_objects(cells: Sequence[Any]) -> bool:
    """Whether most cells that are not missing are JSON objects, or lists of them."""
    held = [cell[0] if isinstance(cell, list) and cell else cell for cell in cells]
    objects = sum(isinstance(cell, dict) for cell in held)
    return 2 * objects > sum(cell is not None and not isinstance(cell, Absent) for cell in held)


def _is_table(file: File) -> bool:
    """Whether lines of text are rows of as many cells each, under names that no row has."""
    from statewise.tasks.own_files.delimited import Delimited

    assert file.text is not None
    try:
        table = Delimited(file.text, None)
        names = table.names
        tabbed = table.dialect.delimiter == "\t" and len(names) == 2  # as prompts are
        if len(names) < 2 or len(names) > COLUMNS or tabbed or len(set(names)) < len(names) or "" in names:
            return False
        problems = Problems(file.path, by_kind=True)
        chunk = next(table.chunks(names, problems), None)
    except ValueError:
        return False
    if chunk is None or not len(chunk.lines) or problems.count * 10 > len(chunk.lines):
        return False
    return not any(name in column for name, column in zip(names, chunk.cells))


class _First(Source):
    """The first records of a file."""

    def __init__(self, source: Source) -> None:
        self.source, self.path, self.names, self.how = source, source.path, source.names, source.how
        self.case, self.symbol, self.clock = source.case, source.symbol, source.clock
        self.cut = False
        if hasattr(source, "first"):
            self.first = source.first

    @override
    def has(self, name: str) -> bool:
        return self.source.has(name)

    @override
    def chunks(self, wanted: Sequence[str], problems: Problems | None) -> Iterator[Chunk]:
        most = min(RECORDS, max(1, CELLS // max(1, min(len(self.names), COLUMNS))))
        left = most
        for chunk in self.source.chunks(wanted, problems):
            if len(chunk.lines) > left:
                self.cut = True
                yield Chunk(chunk.records[:left], chunk.lines[:left], [column[:left] for column in chunk.cells])
                return
            yield chunk
            left -= len(chunk.lines)


def _about(file: File) -> list[str]:
    """The packing and encoding of a file."""
    notes = []
    if file.path.suffix.lower() in (".gz", ".zip"):
        notes.append(f"packed ({file.path.suffix.lower()[1:]})")
    if file.text is not None:
        if file.text.note:
            notes.append(file.text.note)
        else:
            notes.append(f"encoding: {'UTF-8' if file.text.encoding == 'utf-8-sig' else file.text.encoding}")
        if file.text.newline == "\r":
            notes.append("lines end with carriage returns alone, as on old Macintoshes")
    return notes


def _amount(file: File, records: int, cut_off: bool, things: str = "record") -> str:
    """How many records there are, or that only the first were looked at."""
    if not cut_off:
        return counted(records, things)
    size = file.path.stat().st_size
    packed = file.path.suffix.lower() in (".gz", ".zip")
    about = ""
    if file.text is not None and not packed:
        with opened(file.path) as content:
            sample = content.read(2**20)
        lines = sample.count(b"\n") or sample.count(b"\r")
        if lines:
            about = f", of about {float(f'{size / len(sample) * lines:.2g}'):,.0f} lines in {size / 1e6:,.0f} MB"
    return f"of which the first {counted(records, things)} were looked at{about or f' ({size / 1e6:,.0f} MB in all)'}"


def _described(name: str, cells: Sequence[Any], lines: Sequence[int]) -> Column:
    """`lines`: the number of each cell's line."""
    texts = [written(cell) for cell in cells]
    absent = sum(cell is None or isinstance(cell, Absent) for cell in cells)
    counts = Counter(texts)
    missing = {"empty": counts.pop("", 0) - absent, "null": absent}
    missing |= {text: counts.pop(text) for text in sorted(MISSING & set(counts))}
    missing = {text: number for text, number in missing.items() if number}
    total = counts.total()
    examples = tuple(cut(text, LONGEST_EXAMPLE) for text, _ in counts.most_common(3))
    if not total:
        return Column(name, "no values", missing, 0, "", 0, ())
    repeated = sum(number for number in counts.values() if number > 1) / total
    first = dict(zip(reversed(texts), reversed(lines)))
    kind, look = _kind(name, cells, counts, np.array([first[text] for text in counts]))
    return Column(name, look, missing, len(counts), kind, repeated, examples)


def _kind(name: str, cells: Sequence[Any], counts: Counter[str], lines: np.ndarray) -> tuple[str, str]:
    """The kind of a column, and what it looks like. `lines`: where each different value first stands."""
    values, total = list(counts), counts.total()
    if sum(isinstance(cell, list) for cell in cells) > MOSTLY * total:
        return "list", "lists"
    moments, wrong = Reader(name).read(values, lines)
    good = np.ones(len(values), bool)
    good[list(wrong)] = False
    read = sum(counts[value] for value, keep in zip(values, good.tolist()) if keep)
    if read >= MOSTLY * total:
        kinds = np.bincount(moments.kind[good], minlength=3)
        usual = int(kinds.argmax())
        if kinds[usual] >= MOSTLY * good.sum():
            return _moments(name, moments.take(good & (moments.kind == usual)), usual, total, len(counts))
        if kinds[LOCAL] + kinds[ZONED] >= MOSTLY * good.sum():
            return "time", _mixed(name, moments.take(good & (moments.kind != NUMBER)))
    several = sum(number for value, number in counts.items() if len(value.split()) > 2) / total
    lengths = np.array([len(value.split()) for value in values])
    if several > 0.5 and len(values) > total / 2 and len(np.unique(lengths)) > 1:
        return "words", f"several words in a cell, {lengths.min():,} to {lengths.max():,}"
    return "word", f"{len(counts):,} different" if len(counts) < total else "all different"


def _moments(name: str, moments: Moments, kind: int, total: int, different: int) -> tuple[str, str]:
    try:
        order = ordered(moments, name)
    except ValueError as error:
        return "time", f"times: {str(error).partition(' has ')[2] or error}"
    found = "numbers" if kind == NUMBER else f"times {KINDS[kind].removeprefix('a time ')}"
    if order.times is not None and len(order.times):
        ends = [np.datetime64(int(one), "ns").astype("datetime64[s]") for one in (order.times.min(), order.times.max())]
        found = f"{found}, all {ends[0]}" if ends[0] == ends[1] else f"{found}, {ends[0]} to {ends[1]}"
    if order.how:
        found += f" ({order.how})"
    counts = f", {different:,} different" if kind == NUMBER and order.times is None else ""
    return ("number" if kind == NUMBER and order.times is None else "time"), f"{found}{counts}"


def _mixed(name: str, moments: Moments) -> str:
    """What times look like of which some have a zone and others none."""
    try:
        ordered(moments, name)
    except ValueError as error:
        return f"times: {str(error).partition(' has ')[2] or error}"
    return MIXED


def _hint(name: str, pattern: str) -> float:
    """How well a name fits: 1 for the first word of a pattern, less for later ones, 0 for none."""
    words = pattern.split("|")
    parts = re.sub(r"([a-z])([A-Z])", r"\1 \2", name).lower()
    for place, word in enumerate(words):
        if re.search(rf"(?<![a-z]){re.escape(word)}(?![a-z])", parts) or (len(word) > 3 and word in parts):
            return 1 - place / len(words) / 1.25
    return 0


def _candidates(columns: Sequence[Column], source: Source) -> dict[str, tuple[str, ...]]:
    """Columns that may be the case, the order and the symbol, the likeliest first; nothing for a file with a sequence
    in each record."""
    by_name = {column.name: column for column in columns}
    if {"prompt", "target"} <= set(by_name):
        return {}
    inner = [column for column in columns if not column.name.startswith("case:")]
    cases = {
        column.name: _hint(column.name, CASE) + column.repeated / 2
        for column in columns
        if column.kind in ("word", "number") and column.different > 1 and column.repeated > 0.5
    }
    cases = {name: value for name, value in cases.items() if _hint(name, CASE) or by_name[name].different > 5}
    times = {
        column.name: _hint(column.name, TIME) + (column.kind == "time") + min(1, column.different / 10) / 4
        for column in inner
        if column.kind == "time" or (column.kind == "number" and _hint(column.name, TIME))
    }
    symbols = {
        column.name: _hint(column.name, SYMBOL) + column.repeated / 2 - (0.75 * _hint(column.name, CASE))
        for column in inner
        if column.kind in ("word", "words") and column.repeated > 0.5 and "lifecycle" not in column.name.lower()
    }
    if source.case is not None:
        order = tuple(name for name in times if name == source.clock)
        return {"case": (source.case,), "order": order, "symbol": (source.symbol or "",)}
    if not cases or not symbols:
        return {}
    best = max(cases, key=cases.__getitem__)
    for found in (times, symbols):
        found.pop(best, None)
    if not symbols:
        return {}

    def likeliest(found: dict[str, float]) -> tuple[str, ...]:
        return tuple(sorted(found, key=lambda name: -found[name])[:4])

    symbol = likeliest(symbols)
    cases = {name: value for name, value in cases.items() if name == best or name != symbol[0]}
    return {"case": likeliest(cases), "order": likeliest(times), "symbol": symbol}


def _layout(
    layout: SequenceFile,
    columns: Sequence[Column],
    candidates: dict[str, tuple[str, ...]],
    source: Source,
    cells: dict[str, list[Any]],
) -> SequenceFile:
    """The layout with the likeliest columns where the user has named none."""
    by_name = {column.name: column for column in columns}
    if candidates:
        symbol = layout.column or candidates["symbol"][0]
        cycle = next((name for name in by_name if "lifecycle" in name.lower() and not name.startswith("case:")), None)
        stages = {written(cell).lower() for cell in cells[cycle]} if cycle else set()
        if layout.column is None and cycle is not None and {"start", "complete"} <= stages:
            symbol = f"{symbol},{cycle}"
        if source.case is not None:
            name = candidates["symbol"][0]
            missing = layout.missing or ("drop" if name in by_name and by_name[name].missing else None)
            return replace(layout, column=symbol if symbol != source.symbol else None, missing=missing)
        order = candidates["order"][0] if candidates["order"] else None
        used = (symbol, order, candidates["case"][0])
        gone = any(by_name[name].missing for name in used if name in by_name)
        return replace(
            layout,
            column=symbol,
            group=layout.group or candidates["case"][0],
            order=layout.order or order,
            missing=layout.missing or ("drop" if gone else None),
        )
    if layout.column is None and not set(by_name) >= {"prompt", "target"}:
        sequences = [column.name for column in columns if column.kind in ("list", "words")] or [
            column.name for column in columns if column.kind == "word"
        ]
        if len(columns) > 1 and sequences:
            best = max(
                sequences, key=lambda name: _hint(name, "target|sequence|steps|symbols|tokens|moves|text|events")
            )
            return replace(layout, column=best)
    return layout


def _copies(cells: dict[str, list[Any]], columns: Sequence[Column]) -> int:
    """How many records have the same cells as an earlier one, in a table with times, where that is rarely meant."""
    if not any(column.kind == "time" for column in columns):
        return 0
    rows = list(zip(*(map(written, column) for column in cells.values())))
    return len(rows) - len(set(rows))


def _tried(source: _First, layout: SequenceFile, drop: bool) -> tuple[SequenceFile, EventLog | None, str]:
    """A layout with which the first records can be read, and what they are; without one, why. `drop`: whether records
    with errors may be left out."""
    trouble = ""
    for _ in range(5):
        try:
            return layout, read_source(source, layout), ""
        except ValueError as error:
            trouble = str(error)
        changed = layout
        if "--task.time_format" in trouble and "first: set" in trouble:
            formats = re.search(r"--task\.time_format '([^']*)'", trouble)
            changed = replace(layout, time_format=formats[1]) if formats else layout
        elif "--task.missing" in trouble and layout.missing is None and layout.group is not None:
            changed = replace(layout, missing="drop")
        elif drop and re.search(r":[0-9]+: ", trouble) and layout.on_error == "stop":
            changed = replace(layout, on_error="drop")
        if changed == layout:
            break
        layout = changed
    return layout, None, trouble


def _reads(log: EventLog) -> list[str]:
    """Sizes of what was read."""
    lengths = log.lengths
    counts = np.bincount(log.codes, minlength=len(log.symbols))
    most = ", ".join(f"{cut(log.symbols[code], 24)!r}" for code in np.argsort(-counts, kind="stable")[:5])
    return [
        log.how,
        f"{counted(len(log), 'sequence')}, {counted(len(log.codes), 'symbol')}, {len(log.symbols):,} of them "
        f"different, such as {most}",
        f"lengths: {lengths.min():,} to {lengths.max():,}, median {np.median(lengths):,g}",
        *log.notes,
        *(f"warning: {doubt}" for doubt in log.doubts),
    ]


def _enough(log: EventLog) -> tuple[float | None, str]:
    """The share to hold out so that `statewise evaluate` has enough different cases for a verdict, None for the
    default; and a sentence, where the default is too little."""
    different = len(set(keys(log)))
    if different < 2:
        return None, "all sequences are the same: training needs at least two different ones, one of them to hold out"
    if round(HELD_OUT_SHARE * different) >= FEWEST_CASES:
        return None, ""
    share = math.ceil(20 * FEWEST_CASES / different) / 20
    if share > MOST_HELD_OUT:
        return None, f"{counted(different, 'different sequence')}: too few for a verdict of statewise evaluate"
    return share, (
        f"a tenth of {different:,} different sequences is too little for a verdict: --task.held_out_share {share:g} "
        f"holds out at least {FEWEST_CASES}"
    )


def _sequences(file: File, layout: SequenceFile) -> Inspection:
    """A file without columns."""
    from statewise.tasks.own_files.sequences import warnings

    doubts: list[str] = []
    log = None
    if file.family == "fasta" and layout.separator is None:
        layout = replace(layout, separator="")  # so that prompts are written as letters, too
    for _ in range(3):
        try:
            log = read_beginning(file, layout, RECORDS)
        except ValueError as error:
            if layout.on_error == "drop" or not re.search(r":[0-9]+: ", str(error)):
                raise
            layout = replace(layout, on_error="drop")
            continue
        end = len(log.symbols)
        tokens = np.insert(log.codes, log.offsets[1:], end)
        rows = Ragged(tokens, log.lengths + 1, log.prompts)
        none = Ragged(tokens[:0], log.lengths[:0], log.prompts[:0])
        doubts = warnings([*log.symbols, "<end>"], rows, none, layout, ())
        separator = re.search(r"--task\.separator '(.*?)'", doubts[0]) if doubts else None
        if separator is None or layout.separator is not None or file.family in ("fasta", "pgn"):
            break
        layout = replace(layout, separator=separator[1])
    assert log is not None
    records = len(log)
    things = "file" if file.family == "folder" else "sequence"
    total = len(files_in(file.path)) if file.family == "folder" else records
    what = f"{log.how.partition(',')[0]}, {_amount(file, records, records >= RECORDS or total > records, things)}"
    share, few = _enough(log) if records < RECORDS else (None, "")
    reads = [*_reads(log), *([few] if few else []), *(f"warning: {doubt}" for doubt in doubts)]
    command = _command(file.path, layout, share)
    return Inspection(str(file.path), what, tuple(_about(file)), (), {}, command, tuple(reads))


def _command(path: Path, layout: SequenceFile, share: float | None) -> str:
    """A command that trains on the file; `share`: what is held out, None for the default."""
    words = ["statewise", "train", "sequences-small", "--task.path", str(path)]
    plain = SequenceFile()
    for name in ("format", "encoding", "delimiter", "separator", "column", "prompt_column", "group", "order"):
        words += _flag(name, layout, plain)
    for name in ("time_format", "missing", "on_error", "unfinished"):
        words += _flag(name, layout, plain)
    if share is not None:
        words += ["--task.held_out_share", f"{share:g}"]
    stem = re.sub(r"[^\w-]+", "-", path.resolve().name.partition(".")[0]) or "mine"
    return shlex.join([*words, "--out", f"runs/{stem}"])


def _flag(name: str, layout: SequenceFile, plain: SequenceFile) -> list[str]:
    value = getattr(layout, name)
    return [] if value == getattr(plain, name) else [f"--task.{name}", value]
