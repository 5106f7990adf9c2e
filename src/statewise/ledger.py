"""A file of JSON lines that costly work is written to: a line that says what it is about, then a line a result.

Each result is on disk before the next is begun. The same work takes the file up where it was left.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

Record = dict[str, Any]
"""One result, as plain data."""


class Ledger:
    """Use as a context manager; holds the file for one writer."""

    def __init__(self, path: Path, title: str, facts: Mapping[str, Any], needed: Collection[str]) -> None:
        """`title` says what the file holds, such as "judging", and `facts` of what: both must be those that the file
        was begun with, if there is one. Every record holds the keys `needed`."""
        self.path, self.title, self.facts, self.needed = path, title, dict(facts), set(needed)
        self.records: list[Record] = []

    def __enter__(self) -> Ledger:
        """Opens the file, new or to go on with it. Raises `ValueError` if it is of something else, or is damaged, and
        `BlockingIOError` if another process writes to it."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(self.path, "a+b")
        try:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BlockingIOError(f"{self.path} is in use by another {self.title}") from None
            self._take_up()
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, record: Record) -> None:
        """Writes a result down, durably."""
        self._write(record)
        self.records.append(record)

    def _write(self, row: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(row).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def _take_up(self) -> None:
        self._file.seek(0)
        content = self._file.read()
        whole = content[: content.rfind(b"\n") + 1]
        rows: list[dict[str, Any]] = []
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                rows.append(json.loads(line))
            except ValueError as error:
                raise ValueError(f"{self.path}:{number}: not JSON: {error}") from None
            if rows[1:] and not (isinstance(rows[-1], dict) and set(rows[-1]) >= self.needed):
                wanted = ", ".join(sorted(self.needed))
                raise ValueError(f"{self.path}:{number}: no line of a {self.title}: it must hold {wanted}")
        if content and (not rows or not isinstance(rows[0], dict) or rows[0].get("title") != f"statewise {self.title}"):
            raise ValueError(f"{self.path} exists and holds no {self.title}: choose another --out")
        if not rows:
            self._write({"title": f"statewise {self.title}", **self.facts})
            return
        before = {key: value for key, value in rows[0].items() if key != "title"}
        changed = [f"{key} was {before.get(key)}, is {value}" for key, value in self.facts.items()
                   if before.get(key) != value]  # fmt: skip
        if changed:
            raise ValueError(f"{self.path} was begun with something else: {'; '.join(changed)}: choose another --out")
        self._file.truncate(len(whole))  # a last line without an end was torn by a kill in the middle of writing
        self.records = rows[1:]
