"""CSV and its relatives: any delimiter, `sep=` lines of Excel, and lines above the header."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from typing_extensions import override

from statewise.runtime.messages import counted
from statewise.tasks.own_files.encodings import Text
from statewise.tasks.own_files.lines import Problems
from statewise.tasks.own_files.sources import CELLS, CHUNK, LETTERS, Chunk, Source

MARKS = ",;\t|"
SAMPLE = 2**18
"""Characters at the beginning by which the delimiter and the header are found."""
LONGEST_CELL = 2**28
"""Characters of a cell; a longer one is that of a quotation mark that is not closed."""


class Dialect(NamedTuple):
    """How rows are written."""

    delimiter: str
    skipped: int
    """Lines above the header, blank ones included."""


class Delimited(Source):
    """Rows under a header. `delimiter`: None: as the file shows."""

    def __init__(self, text: Text, delimiter: str | None) -> None:
        self.path, self.text = text.path, text
        self.dialect, notes = dialect(text, delimiter)
        self.notes = notes
        self.how = "CSV"
        self.names: list[str] = []
        with self._rows() as (reader, _):
            while rows := self._some(reader, 1, self.dialect.skipped + reader.line_num + 1):
                if any(map(str.strip, rows[0])):
                    self.names = [cell.strip() for cell in rows[0]]
                    break
        if not self.names:
            raise ValueError(f"{self.path}: every cell is empty")

    @contextmanager
    def _rows(self) -> Iterator[tuple[Any, int]]:
        """A reader of the rows from the header on, and the number of lines above."""
        with self.text.open() as file:
            for _ in range(self.dialect.skipped):
                next(file, "")
            yield csv.reader(file, delimiter=self.dialect.delimiter, strict=True), self.dialect.skipped

    def _some(self, reader: Any, size: int, line: int) -> list[list[str]]:
        """The next rows, of which the first begins in `line`."""
        # The limit is the process's: set for this one read, so that readers left half-way change nothing for others.
        before = csv.field_size_limit(LONGEST_CELL)
        rows: list[list[str]] = []
        try:
            rows.extend(islice(reader, size))
        except csv.Error as error:
            line += sum(self._lines_of(row) for row in rows)
            raise ValueError(f"{self.path}:{line}: not CSV: {error}: is a quotation mark not closed?") from None
        finally:
            csv.field_size_limit(before)
        return rows

    def _lines_of(self, row: list[str]) -> int:
        """How many lines a row has in the file."""
        return 1 + sum(cell.count(self.text.newline) for cell in row)

    @override
    def chunks(self, wanted: Sequence[str], problems: Problems | None) -> Iterator[Chunk]:
        places = [self.names.index(name) for name in wanted]
        width, record = len(self.names), 0
        size = max(1, min(64, CELLS // width))
        with self._rows() as (reader, above):
            under_header = False
            while True:
                line = above + reader.line_num + 1
                rows = self._some(reader, size, line)
                if not rows:
                    return
                some = rows[:16]
                letters = sum(sum(map(len, row)) for row in some) // len(some)
                size = max(1, min(8 * size, CHUNK, CELLS // width, LETTERS // (letters + 1)))
                if above + reader.line_num + 1 - line == len(rows):
                    lines = np.arange(line, line + len(rows))
                else:  # cells contain line ends
                    lines = line + np.cumsum([0, *map(self._lines_of, rows[:-1])])
                if not under_header:
                    header = next((place for place, row in enumerate(rows) if any(map(str.strip, row))), None)
                    if header is None:
                        continue
                    rows, lines, under_header = rows[header + 1 :], lines[header + 1 :], True
                widths = np.fromiter(map(len, rows), np.int64, len(rows))
                real = np.ones(len(rows), bool)
                kept = widths == width
                for place in np.flatnonzero(~kept).tolist():
                    if not any(map(str.strip, rows[place])):
                        real[place] = False
                    elif problems is None:
                        rows[place] = (rows[place] + [""] * width)[:width]
                        kept[place] = True
                    else:
                        problems.add(
                            int(lines[place]), f"{widths[place]} cells, but the header has {counted(width, 'column')}"
                        )
                if not kept.all():
                    rows = [row for row, keep in zip(rows, kept.tolist()) if keep]
                cells = [[row[place].strip() for row in rows] for place in places]
                blank = _blank(rows, cells)
                if blank:
                    real[np.flatnonzero(kept)[blank]] = False
                    gone = set(blank)
                    cells = [[cell for place, cell in enumerate(column) if place not in gone] for column in cells]
                numbers = record + np.cumsum(real) - real
                record += int(real.sum())
                kept &= real
                yield Chunk(numbers[kept], lines[kept], list(cells))


def _blank(rows: list[list[str]], cells: list[list[str]]) -> list[int]:
    """The rows of which every cell is empty."""
    if cells and "" not in cells[0]:
        return []
    maybe = range(len(rows)) if not cells else [place for place, cell in enumerate(cells[0]) if not cell]
    return [place for place in maybe if not any(map(str.strip, rows[place]))]


def dialect(text: Text, delimiter: str | None) -> tuple[Dialect, list[str]]:
    """The delimiter of a table and the lines above its header, and notes about both."""
    with text.open() as file:
        sample = file.read(SAMPLE)
    end = text.newline
    lines = sample.split(end)
    if len(sample) == SAMPLE and len(lines) > 1:
        lines.pop()  # which may be cut
    first = next((place for place, line in enumerate(lines) if line.strip()), None)
    if first is None:
        if len(sample) < SAMPLE:
            raise ValueError(f"{text.path}: the file is empty")
        return Dialect(delimiter or ",", 0), []
    said = re.fullmatch("sep=(.)", lines[first].rstrip("\r\n"))
    if said:
        return Dialect(delimiter or said[1], first + 1), []
    tsv = ".tsv" in [suffix.lower() for suffix in text.path.suffixes[-2:]]
    usual = delimiter or most(lines[first], tsv)
    under = lines[first : first + 200]
    for mark in (delimiter,) if delimiter else dict.fromkeys((usual, *MARKS)):
        skipped = _preamble(under, mark, end)
        if skipped == 0:
            break
        if skipped is not None:
            above = first + skipped
            shown = f"{counted(above, 'line')} above the header {'is' if above == 1 else 'are'} skipped"
            return Dialect(mark, above), [shown]
    return Dialect(usual, 0), []


def most(header: str, tsv: bool = False) -> str:
    """Whichever delimiter a header has most of; a tab, if it has one, for files called .tsv."""
    outside_quotes = re.sub(r'"[^"]*"', "", header)
    if tsv and "\t" in outside_quotes:
        return "\t"
    return max(MARKS, key=outside_quotes.count)


def _preamble(lines: Sequence[str], mark: str, end: str) -> int | None:
    """How many lines stand above the header, if `mark` separates columns; None: no header is seen."""
    try:
        rows = [next(csv.reader([line], delimiter=mark), []) for line in lines]
    except csv.Error:
        return 0
    widths = [len(row) for row in rows if any(map(str.strip, row))]
    if not widths:
        return 0
    (width, count), *_ = Counter(widths).most_common(1)
    if len(rows[0]) == width and width > 1:
        return 0
    if width < 2 or count < 3 or 2 * count < len(widths):
        return None
    for place, row in enumerate(rows):
        cells = [cell.strip() for cell in row]
        filled = sum(map(bool, cells))
        if len(row) == width and filled == width:
            named = len(set(cells)) == width and not any(
                re.fullmatch(r"[-+]?[0-9][0-9.,:/ TZ+-]*", cell) for cell in cells
            )
            return place if named and place else None
        if filled > max(1, min(2, width - 1)) or (filled == width):
            return None
    return None
