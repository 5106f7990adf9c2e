"""Reads files of users: text line by line, plain or gzipped, with problems reported by line; and rows of CSV."""

from __future__ import annotations

import csv
import gzip
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path

import numpy as np

from statewise.tasks.own_files.file_formats import BEGINNING, check_text


@contextmanager
def opened(path: Path) -> Iterator[BufferedReader | gzip.GzipFile]:
    """The bytes of a file, decompressed if its name ends in .gz. Raises `ValueError` if it cannot be read."""
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb") as file:
            yield file
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path}: damaged gzip file: {error}") from None
    except IsADirectoryError:
        raise ValueError(f"{path} is a folder: give a file") from None
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}") from None


def beginning_of(file: BufferedReader | gzip.GzipFile) -> bytes:
    """The first `BEGINNING` bytes of a file that was just opened. They are still to be read."""
    return file.peek(BEGINNING)[:BEGINNING]


def raw_lines(path: Path) -> Iterator[tuple[int, str]]:
    """(line number from 1, line with its line end) for every line. A byte order mark is dropped.

    Raises `ValueError` if the file cannot be read or is not UTF-8 text.
    """
    number = 0
    try:
        with opened(path) as file:
            check_text(beginning_of(file), path)
            for number, raw in enumerate(file, 1):
                if b"\0" in raw:
                    raise ValueError(f"{path}:{number}: a zero byte: this is not a text file")
                yield number, raw.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}:{number}: not UTF-8 text ({error.reason})") from None


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """(line number from 1, line without its line end) for every line that is not blank.

    Raises `ValueError` as `raw_lines` does, or if every line is blank.
    """
    any_line = False
    for number, line in raw_lines(path):
        if line.strip():
            any_line = True
            yield number, line.rstrip("\r\n")
    if not any_line:
        raise ValueError(f"{path}: the file is empty")


class Problems:
    """Collects the problems of a file, to report the first and the number of the others."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.first = ""
        self.count = 0

    def add(self, line: int, what: str) -> None:
        """Records a problem in `line`."""
        if not self.count:
            self.first = f"{self.path}:{line}: {what}"
        self.count += 1

    def raise_if_any(self) -> None:
        """Raises `ValueError` if there was a problem."""
        if self.count == 1:
            raise ValueError(self.first)
        if self.count:
            raise ValueError(f"{self.first} (and {self.count - 1} more such lines)")


def read_rows(
    path: Path, encode: Callable[[str], np.ndarray], problem: Callable[[np.ndarray], str]
) -> list[np.ndarray]:
    """The token ids of every line that is not blank.

    Raises `ValueError` with the line if `encode` does or `problem` says what is wrong with a row.
    """
    rows, problems = [], Problems(path)
    for number, line in read_lines(path):
        try:
            row = encode(line)
            wrong = problem(row)
        except ValueError as error:
            wrong = str(error)
        if wrong:
            problems.add(number, wrong)
        else:
            rows.append(row)
    problems.raise_if_any()
    return rows


def read_csv(path: Path, delimiter: str | None) -> tuple[list[str], Iterator[tuple[int, dict[str, str]]]]:
    """Column names, and (number of the first line, stripped cells by column) of every row that is not empty.
    `delimiter`: what separates columns; None: whichever of , ; | and tab the header has most of.

    Raises `ValueError` as `FILE:LINE: what is wrong`; for rows, while they are read.
    """
    _, header = next(read_lines(path))
    if delimiter is None:
        outside_quotes = re.sub(r'"[^"]*"', "", header)
        tabbed = path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix
        marks = "\t,;|" if tabbed.lower() == ".tsv" else ",;\t|"
        delimiter = "\t" if marks[0] == "\t" and "\t" in outside_quotes else max(marks, key=outside_quotes.count)
    rows = _rows(path, delimiter)
    header_row = next(rows, None)
    if header_row is None:
        raise ValueError(f"{path}: every cell is empty")
    _, columns = header_row
    return columns, _cells(path, columns, rows)


def _cells(
    path: Path, columns: list[str], rows: Iterator[tuple[int, list[str]]]
) -> Iterator[tuple[int, dict[str, str]]]:
    problems = Problems(path)
    for line, cells in rows:
        if len(cells) == len(columns):
            yield line, dict(zip(columns, cells))
        else:
            problems.add(line, f"{len(cells)} cells, but the header has {len(columns)} columns")
    problems.raise_if_any()


def _rows(path: Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader((line for _, line in raw_lines(path)), delimiter=delimiter, strict=True)
    while True:
        number = reader.line_num + 1
        # The limit is the process's: set for this one read, so that readers left half-way change nothing for others.
        before = csv.field_size_limit(2**31 - 1)  # a cell may hold a whole sequence
        try:
            cells = [cell.strip() for cell in next(reader)]
        except StopIteration:
            return
        except csv.Error as error:
            raise ValueError(f"{path}:{number}: not CSV: {error}: is a quotation mark not closed?") from None
        finally:
            csv.field_size_limit(before)
        if any(cells):
            yield number, cells
