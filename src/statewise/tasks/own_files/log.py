"""A file of sequences in memory, as arrays: its symbols, its events, their times, and the columns of the file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from statewise.tasks.own_files.sequence_files import SequenceFile, parse_file


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
    cases: list[str] | None = None
    """(N,) name of each case; None: the sequences have no names."""
    unfinished: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))
    """(N,) bool: cases cut at the end of the log, which are never scored for the end symbol."""
    table: Table = field(default_factory=NoTable)
    """The columns of the file."""
    how: str = ""
    """A description of the layout that the file was read with."""
    notes: tuple[str, ...] = ()
    """What was left out or decided while reading, as sentences."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def sequence(self, number: int) -> list[str]:
        """Symbols of one sequence, prompt included."""
        return [self.symbols[code] for code in self.codes[self.offsets[number] : self.offsets[number + 1]]]


def read_log(path: Path, layout: SequenceFile) -> EventLog:
    """The sequences of a file. Raises `ValueError` as `FILE:LINE: what is wrong`."""
    parsed = parse_file(path, layout)
    ids: dict[str, int] = {}
    codes = [ids.setdefault(symbol, len(ids)) for _, line in parsed.lines for part in line for symbol in part]
    lengths = [len(prompt) + len(answer) for _, (prompt, answer) in parsed.lines]
    return EventLog(
        list(ids),
        np.array(codes, np.int64),
        np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        np.repeat(np.arange(len(lengths)), lengths),
        np.array([number for number, _ in parsed.lines], np.int64),
        np.array([len(prompt) for _, (prompt, _) in parsed.lines], np.int64),
        unfinished=np.zeros(len(lengths), bool),
        how=parsed.how,
        notes=parsed.warnings,
    )
