"""A file of sequences in memory, as arrays: its symbols, its events, their times, and the columns of the file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from statewise.runtime.messages import counted
from statewise.tasks.own_files.layout import SequenceFile
from statewise.tasks.own_files.lines import Problems
from statewise.tasks.own_files.sources import Collected, Source


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


def log_of(
    found: Collected,
    path: Path,
    layout: SequenceFile,
    problems: Problems,
    how: str,
    notes: Iterable[str],
    source: Source | None = None,
    columns: Sequence[str] = (),
) -> EventLog:
    """The log of sequences of symbols. `how`: how the file was read. Raises `ValueError` as `settled` does, and if the
    file has no sequence."""
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
