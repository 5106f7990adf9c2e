"""What a reader of a format gives: sequences, or the columns of a table."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from statewise.tasks.own_files.lines import Problems

CHUNK = 2**14
"""Records that are read at a time, at most."""
CELLS = 2**22
"""Cells that are read at a time, at most, unless one record has more."""

LETTERS = 2**23
"""Characters that are read at a time, about, unless one record has more."""


class Ids(dict[Any, int]):
    """Numbers of values, in the order in which they are first asked for."""

    def __missing__(self, value: Any) -> int:
        number = self[value] = len(self)
        return number

    def of(self, values: Sequence[Any]) -> np.ndarray:
        """(n,) int64 numbers of n values."""
        return np.fromiter(map(self.__getitem__, values), np.int64, len(values))


class Absent:
    """In place of a cell that a record does not have."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        """Names that the record has."""


class Chunk(NamedTuple):
    """Some records, n in all."""

    records: np.ndarray
    """(n,) int64 numbers of the records in the file, from 0, those with problems included."""
    lines: np.ndarray
    """(n,) int64 number of the first line of each, from 1."""
    cells: list[Sequence[Any]]
    """The n cells of each wanted column: text without white space at its ends, numbers, lists, `Absent`."""


class Source(ABC):
    """A file with columns, which can be read several times."""

    path: Path
    names: list[str]
    """Names of its columns, as far as its beginning shows."""
    how: str
    """What it is, such as `CSV`."""
    notes: Sequence[str] = ()
    """What the user should know about how it is read."""
    case: str | None = None
    """The column that names the case, where the format says it."""
    symbol: str | None = None
    """The column with the symbols, where the format says it."""
    clock: str | None = None
    """The column with times, where the format says it."""

    def has(self, name: str) -> bool:
        """Whether there is such a column, as far as the beginning shows."""
        return name in self.names

    @abstractmethod
    def chunks(self, wanted: Sequence[str], problems: Problems | None) -> Iterator[Chunk]:
        """The wanted columns of all records. Records that cannot be read are reported and left out; without `problems`
        none is left out, and what is missing is empty. Raises `ValueError`."""

    def column(self, name: str) -> list[str]:
        """Text of one column, one value per record. Raises `ValueError` for an unknown column."""
        self.check(name)
        return [written(cell) for chunk in self.chunks([name], None) for cell in chunk.cells[0]]

    def records(self) -> Iterator[list[str]]:
        """Text of all columns of each record."""
        for chunk in self.chunks(self.names, None):
            yield from ([written(cell) for cell in row] for row in zip(*chunk.cells))

    def check(self, name: str) -> None:
        """Raises `ValueError` unless there is such a column."""
        if not self.has(name):
            raise ValueError(f"{self.path}: {unknown_column(name, self.names)}")


def unknown_column(name: str, names: Sequence[str]) -> str:
    """The message for a column that does not exist, with names like it."""
    from statewise.config.recipe import unknown

    if len(names) <= 40:
        return unknown("column", name, names)
    near = unknown("column", name, names[:2000]).partition("choices: ")[0]
    return f"{near}there are {len(names):,}, such as {', '.join(names[:10])}"


def written(cell: Any) -> str:
    """Text of a cell; empty if there is none."""
    if isinstance(cell, str):
        return cell
    if cell is None or isinstance(cell, Absent):
        return ""
    if isinstance(cell, list):
        return " ".join(map(written, cell))
    if isinstance(cell, dict):
        return json.dumps(cell, ensure_ascii=False, default=str)
    return str(cell).lower() if isinstance(cell, bool) else str(cell)


class Collected:
    """Collects sequences of symbols as arrays."""

    def __init__(self) -> None:
        self.ids = Ids()
        self.codes: list[np.ndarray] = []
        self.records: list[int] = []
        self.lines: list[int] = []
        self.prompts: list[int] = []
        self.names: list[str | None] = []

    def add(
        self, line: int, record: int, answer: Sequence[str], prompt: Sequence[str] = (), name: str | None = None
    ) -> None:
        """One sequence: the first line of its record, the record's number, and its symbols."""
        self.codes.append(self.ids.of((*prompt, *answer)).astype(np.int32))
        self.records.append(record)
        self.lines.append(line)
        self.prompts.append(len(prompt))
        self.names.append(name)
