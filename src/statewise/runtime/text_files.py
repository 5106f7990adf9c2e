"""Reads files of bounded size, and UTF-8 text, with one message for bytes that are not text."""

from __future__ import annotations

from pathlib import Path

CONVERT = ": convert the file to UTF-8"


def decoded(content: bytes, where: str) -> str:
    """The text of UTF-8 bytes. Raises `ValueError`, which begins with `where`."""
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ValueError(not_utf8(where, error.start, error.reason)) from None


def not_utf8(where: str, byte: int, reason: str) -> str:
    """The message for text that is not UTF-8 from `byte` on, counted from 0. `reason`: that of `UnicodeDecodeError`."""
    return f"{where}: byte {byte}: not UTF-8 text ({reason})"


def read_text(path: Path) -> str:
    """The text of a file, with `\n` for every line end. Raises `ValueError` if it is not UTF-8, and `OSError`."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(not_utf8(str(path), error.start, error.reason) + CONVERT) from None


def read_whole(path: Path, most: int) -> bytes:
    """The bytes of a file, of which at most `most` are read, since a device has no end. Raises `ValueError` if there
    are more, and `OSError`."""
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"{path}: more than {most:,} bytes, the most that can be read")
    return content
