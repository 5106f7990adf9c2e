"""Reading text files line by line, plain or gzipped, and saying where they are wrong."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """(line number from 1, line without its end) for every line that is not blank.

    Raises `ValueError` if the file cannot be read, is not UTF-8 text, or holds no line.
    """
    found = False
    number = 0
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb") as file:
            for number, raw in enumerate(file, 1):
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
                if line.strip():
                    found = True
                    yield number, line
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}:{number}: not UTF-8 text ({error.reason})") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path}: damaged gzip file: {error}") from None
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}") from None
    if not found:
        raise ValueError(f"{path}: the file is empty")


class Problems:
    """Collects what is wrong in a file, to tell the first and how many more."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.first = ""
        self.count = 0

    def add(self, line: int, what: str) -> None:
        """Notes that `line` is wrong."""
        if not self.count:
            self.first = f"{self.path}:{line}: {what}"
        self.count += 1

    def raise_if_any(self) -> None:
        """Raises `ValueError` if anything was noted."""
        if self.count == 1:
            raise ValueError(self.first)
        if self.count:
            raise ValueError(f"{self.first} (and {self.count - 1} more such lines)")
