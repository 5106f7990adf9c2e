"""A log of expensive results as JSON lines: a header that describes the work, then one line per result.

Each result is on disk before work on the next one starts. Running the same work again resumes the file.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from statewise.runtime.durable import append, lock, stem
from statewise.runtime.json_files import ANYTHING, Shape, parse_json

Record = dict[str, Any]
"""One result, as plain data."""


class Ledger:
    """Use as a context manager; locks the file for one writer."""

    def __init__(self, path: Path, title: str, facts: Mapping[str, Any], shape: Shape) -> None:
        """`title` names the work, such as "judging", and `facts` its settings: both must equal those of an existing
        file, the settings only if it has results. Every record has the `shape`."""
        self.path, self.title, self.facts, self.shape = path, title, dict(facts), shape
        self.records: list[Record] = []
        self._written = 0

    def __enter__(self) -> Ledger:
        """Creates the file or resumes it. Raises `ValueError` if it belongs to other work or is damaged,
        `IsADirectoryError` if it is a folder, and `BlockingIOError` if another process writes to it."""
        if self.path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(self.path))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        beside = self.path.with_name(f".{stem(self.path.name)}.lock")
        with contextlib.ExitStack() as stack:
            stack.enter_context(lock(beside, f"{self.path} is in use by another {self.title}"))
            self._resume()
            self._held = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        with self._held:
            self._catch_up()

    def add(self, record: Record) -> None:
        """Writes a result durably. If an interrupt comes while it is written, it is among the records, and written with
        the next one or when the ledger is closed."""
        self._catch_up()
        self.records.append(record)
        try:
            self._write(record)
        except OSError:
            self.records.pop()
            raise
        self._written = len(self.records)

    def _catch_up(self) -> None:
        """Writes the last record if an interrupt kept it from the file, whose end alone tells whether it did."""
        if self._written < len(self.records) and not self._ends_with(self.records[-1]):
            self._write(self.records[-1])
        self._written = len(self.records)

    def _ends_with(self, record: Record) -> bool:
        with open(self.path, "rb") as file:
            line = _line(record)
            file.seek(max(0, file.seek(0, os.SEEK_END) - len(line)))
            return file.read() == line

    def _write(self, row: Mapping[str, Any]) -> None:
        append(self.path, _line(row))

    def _resume(self) -> None:
        content = self.path.read_bytes() if self.path.exists() else b""
        whole = content[: content.rfind(b"\n") + 1]
        rows: list[dict[str, Any]] = []
        for number, line in enumerate(whole.splitlines(), 1):
            if not rows:
                rows.append(parse_json(line, ANYTHING, f"{self.path}:{number}"))
            else:
                rows.append(parse_json(line, self.shape, f"{self.path}:{number}: not a {self.title} record"))
        header = {"title": f"statewise {self.title}", **self.facts}
        begun = not whole and _line(header).startswith(content)  # by the same work, which was stopped as it began
        if (
            content
            and not begun
            and (not rows or not isinstance(rows[0], dict) or rows[0].get("title") != f"statewise {self.title}")
        ):
            raise ValueError(f"{self.path} exists and is not a {self.title} file: choose another `out`")
        if len(rows) < 2:  # no results yet, so nothing is lost that other settings could not make
            if content:
                os.truncate(self.path, 0)
            self._write(header)
            return
        before = {key: value for key, value in rows[0].items() if key != "title"}
        changed = [
            f"{key} was {_set(before.get(key))}, is {_set(value)}"
            for key, value in self.facts.items()
            if before.get(key) != value
        ]
        if changed:
            raise ValueError(f"{self.path} was started with other settings: {'; '.join(changed)}: choose another `out`")
        if content != whole:
            os.truncate(self.path, len(whole))  # a last line without its end is incomplete after a kill during writing
        self.records = rows[1:]
        self._written = len(self.records)


def _set(value: object) -> object:
    return "not set" if value is None else value


def _line(row: Mapping[str, Any]) -> bytes:
    return json.dumps(row).encode() + b"\n"
