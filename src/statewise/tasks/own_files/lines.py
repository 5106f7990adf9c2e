"""Reading files of users: text line by line, plain or gzipped, with problems reported by line; or whole, up to a
size."""

from __future__ import annotations

import gzip
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
    found = False
    for number, line in raw_lines(path):
        if line.strip():
            found = True
            yield number, line.rstrip("\r\n")
    if not found:
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


def read_whole(path: Path, most: int) -> bytes:
    """The bytes of a file, of which at most `most` are read: a device has no end. Raises `ValueError` if there are
    more, and `OSError`."""
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"{path}: more than {most:,} bytes, the most that are read")
    return content
