"""Text of files of users, in whatever encoding they have it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import NamedTuple, TextIO

from statewise.runtime.messages import cut
from statewise.tasks.own_files.file_formats import Format
from statewise.tasks.own_files.lines import opened

WESTERN = "windows-1252"
_CONTROLS = bytes(set(range(32)) - set(b"\t\n\r\f")) + b"\x7f\x81\x8d\x8f\x90\x9d"
"""Bytes that text in Windows-1252 does not have."""


class Text(NamedTuple):
    """A file of text, and how it is decoded."""

    path: Path
    encoding: str
    newline: str
    """What ends its lines: a line feed, after which a carriage return may stand before it; or, in a file without line
    feeds, a carriage return."""
    note: str = ""
    """What the user should know about the encoding."""

    @contextmanager
    def open(self) -> Iterator[TextIO]:
        """The text, without a byte order mark, its line ends as they are. Raises `ValueError` as `opened` does, and
        `UnicodeDecodeError`."""
        wide = self.encoding.startswith(("utf-16", "utf_16", "utf-32", "utf_32"))
        with opened(self.path, text=not wide) as file, TextIOWrapper(file, self.encoding, newline=self.newline) as text:
            try:
                yield text
            except UnicodeDecodeError:
                raise
            except UnicodeError as error:
                raise ValueError(f"{self.path}: not {self.encoding} text ({error})") from None

    def lines(self) -> Iterator[tuple[int, str]]:
        """(line number from 1, line without its line end) for every line that is not blank. Raises `ValueError` if
        there is none."""
        found = False
        with self.open() as text:
            for number, line in enumerate(text, 1):
                if line.strip():
                    found = True
                    yield number, line.rstrip("\r\n")
        if not found:
            raise ValueError(f"{self.path}: the file is empty")


def text_of(path: Path, encoding: str | None, kind: Format | None) -> Text:
    """A file as text. `encoding`: as the user says; None: as the file shows, `kind` being its format if it has one.
    UTF-8 is decoded only while it is read: see `western`."""
    given = encoding is not None
    if encoding is None:
        encoding = kind.family if kind is not None and kind.family.startswith("utf-") else "utf-8-sig"
    elif encoding.lower().replace("_", "-") in ("utf-8", "utf8"):
        encoding = "utf-8-sig"
    note = "" if given or encoding == "utf-8-sig" else f"the text is in {encoding.upper()}"
    text = Text(path, encoding, "\n", note)
    try:
        with text.open() as file:
            sample = file.read(2**16)
    except UnicodeDecodeError:
        return text  # which is said when it is read
    only = "\r" in sample and "\n" not in sample
    return text._replace(newline="\r") if only else text


def western(text: Text, given: bool) -> Text:
    """The same text in Windows-1252, after it turned out not to be in UTF-8. Raises `ValueError`, naming the line, if
    it is not in Windows-1252 either, if parts of it are in UTF-8, or if the encoding is `given`."""
    undecodable, example, decodable, strange = 0, "", 0, False
    with opened(text.path) as file:
        for number, line in enumerate(file, 1):
            if line.isascii():
                continue
            strange |= bool(line.translate(None, _CONTROLS) != line)
            try:
                line.decode()
                decodable += 1
            except UnicodeDecodeError as error:
                if not undecodable:
                    undecodable, reason = number, error.reason
                    example = line.decode(WESTERN, "replace").strip()
    if not undecodable:  # another encoding, which the user named
        raise ValueError(f"{text.path}: the text is not in the encoding {text.encoding}, as task.encoding says")
    if given or decodable or strange or text.encoding != "utf-8-sig":
        wrong = "UTF-8" if text.encoding == "utf-8-sig" else text.encoding
        hint = "" if given else ": set --task.encoding if it is text"
        raise ValueError(f"{text.path}:{undecodable}: not {wrong} text ({reason}){hint}")
    place = next((at for at, letter in enumerate(example) if ord(letter) > 127), 0)
    shown = cut(example[max(0, place - 20) : place + 20])
    return text._replace(
        encoding=WESTERN,
        note=f"the text is not in UTF-8 and is read as Windows-1252: line {undecodable} has {shown!r}; if that is "
        "wrong, set --task.encoding",
    )
