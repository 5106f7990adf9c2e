"""Reads files of users: text line by line, plain or packed, with problems reported by line."""

from __future__ import annotations

import gzip
import lzma
import os
import re
import stat
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from io import BufferedReader, RawIOBase
from pathlib import Path
from typing import IO, Any

import numpy as np
from typing_extensions import override

from statewise.tasks.own_files.file_formats import BEGINNING, check_text


@contextmanager
def opened(path: Path, *, text: bool = False) -> Iterator[BufferedReader]:
    """The bytes of a file, unpacked if it is a gzip file or a zip archive of one file. `text`: refuse zero bytes.

    Raises `ValueError` if it cannot be read, if it is unpacked to absurd amounts, and at the end if it has changed
    since it was opened.
    """
    try:
        with ExitStack() as stack:
            file = stack.enter_context(open(path, "rb"))
            before = os.fstat(file.fileno())
            inner = _unpacked(file, path, stack)
            checked = _Checked(inner, path, None if inner is file else file, text)
            yield BufferedReader(checked, _BLOCK)
            after = os.fstat(file.fileno())
            if stat.S_ISREG(after.st_mode) and (before.st_size, before.st_mtime_ns) != (
                after.st_size,
                after.st_mtime_ns,
            ):
                raise ValueError(f"{path} changed while it was read: wait until it is complete, or give a copy")
    except (gzip.BadGzipFile, EOFError, zlib.error, zipfile.BadZipFile, lzma.LZMAError) as error:
        kind = "zip archive" if isinstance(error, zipfile.BadZipFile) or path.suffix.lower() == ".zip" else "gzip file"
        raise ValueError(f"{path}: damaged {kind}: {error}") from None
    except IsADirectoryError:
        raise ValueError(f"{path} is a folder: give a file") from None
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}") from None


def _unpacked(file: BufferedReader, path: Path, stack: ExitStack) -> IO[bytes]:
    magic = file.peek(4)[:4]
    if magic[:2] == b"\x1f\x8b" or (path.suffix.lower() == ".gz" and magic):
        packed: Any = gzip.GzipFile(fileobj=file)
        inner: IO[bytes] = stack.enter_context(packed)
        return inner
    if magic not in (b"PK\x03\x04", b"PK\x05\x06"):
        return file
    archive = stack.enter_context(zipfile.ZipFile(file))
    names = [name for name in archive.namelist() if not name.startswith("__MACOSX/") and not name.endswith("/")]
    if any(name.startswith(("xl/", "word/", "ppt/")) or name == "[Content_Types].xml" for name in names):
        raise ValueError(
            f"{path}: this is an Excel workbook, or another Office document: save the sheet as CSV (UTF-8)"
        )
    if len(names) != 1:
        raise ValueError(
            f"{path}: this zip archive has {len(names):,} files: unpack it, and give one of them, or a folder with one "
            "sequence per file"
        )
    try:
        return stack.enter_context(archive.open(names[0]))
    except (RuntimeError, NotImplementedError) as error:  # a password, or a method that Python lacks
        raise ValueError(f"{path}: this zip archive cannot be read ({error}): unpack it, and give the file") from None


_BLOCK = 2**18
_RATIO, _ENOUGH = 500, 2**22
"""What is unpacked to more than so many times the bytes that were read, and to more than so many bytes, is refused."""


class _Checked(RawIOBase):
    """Bytes that are counted while they are read. `packed`: the file that they are unpacked from, if it is one."""

    def __init__(self, inner: IO[bytes], path: Path, packed: BufferedReader | None, text: bool) -> None:
        self.inner, self.path, self.packed, self.text = inner, path, packed, text
        self.size, self.lines = 0, 1

    @override
    def readable(self) -> bool:
        return True

    @override
    def readinto(self, buffer: Any) -> int:
        block = self.inner.read(len(buffer))
        self.size += len(block)
        if self.packed is not None and self.size > _ENOUGH and self.size > _RATIO * self.packed.tell():
            raise ValueError(
                f"{self.path}: this file is unpacked to more than {_RATIO} times its size, as files made to fill a "
                "disk are: unpack it yourself if it is sound"
            )
        if self.text:
            zero = block.find(b"\0")
            if zero >= 0:
                line = self.lines + block.count(b"\n", 0, zero)
                raise ValueError(f"{self.path}:{line}: a zero byte: this is not a text file")
            self.lines += block.count(b"\n")
        buffer[: len(block)] = block
        return len(block)


def beginning_of(file: BufferedReader) -> bytes:
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
    """Collects the problems of a file, to report the first and how many there are; `by_kind`: of each kind."""

    def __init__(self, path: Path, *, by_kind: bool = False) -> None:
        self.path, self.by_kind = path, by_kind
        self.kinds: dict[str, tuple[str, int]] = {}

    @property
    def count(self) -> int:
        """How many problems there are."""
        return sum(count for _, count in self.kinds.values())

    def add(self, line: int, what: str, kind: str | None = None) -> None:
        """Records a problem in `line`. `kind`: problems that are counted together; None: those whose text differs in
        values and numbers alone."""
        kind = "" if not self.by_kind else _VALUES.sub("...", what) if kind is None else kind
        if kind not in self.kinds and len(self.kinds) >= MOST_KINDS:
            kind = OTHERS
        example, count = self.kinds.get(kind, (f"{self.path}:{line}: {what}", 0))
        self.kinds[kind] = example, count + 1

    def listed(self) -> list[str]:
        """An example of each kind, and how many others there are."""
        return [
            example + (f" (and {count - 1:,} more such lines)" if count > 1 else "")
            for example, count in self.kinds.values()
        ]

    def raise_if_any(self) -> None:
        """Raises `ValueError` if there was a problem."""
        if self.kinds:
            raise ValueError("; ".join(self.listed()))


MOST_KINDS, OTHERS = 4, "others"
"""Kinds of problems that are listed, and what counts the rest together."""
_VALUES = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[0-9][0-9,]*")


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
