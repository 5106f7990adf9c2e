"""Action traces: which actions happened, and whether the last one was invalid."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Trace = tuple[int, ...]
"""Numbers of actions."""


@dataclass(frozen=True)
class Traces:
    """Traces over named actions. A trace with label 1 ends in its one invalid action; with label 0 all are valid."""

    actions: tuple[str, ...]
    rows: tuple[Trace, ...]
    labels: tuple[int, ...]
    lines: tuple[int, ...] = field(default=(), compare=False, repr=False)
    """The line of its file at which each trace begins; empty if they were not read from a file."""
    files: tuple[str, ...] = field(default=(), compare=False, repr=False)
    """The name of the file of each trace, if they were read from a folder; otherwise empty."""
    unread: tuple[str, ...] = field(default=(), compare=False, repr=False)
    """What else the file holds, such as `the column 'note'`."""

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def positives(self) -> int:
        """The number of traces with label 0."""
        return self.labels.count(0)

    @property
    def longest(self) -> int:
        """The length of the longest trace."""
        return max(map(len, self.rows), default=0)

    @property
    def sha256(self) -> str:
        """A checksum of actions, rows and labels."""
        return hashlib.sha256(json.dumps([self.actions, self.rows, self.labels]).encode()).hexdigest()

    def where(self, place: int) -> str:
        """The name of a trace in messages: its file, its line, or its number from 1."""
        if self.files:
            return self.files[place]
        return f"line {self.lines[place]}" if self.lines else f"trace {place + 1}"

    def valid(self, place: int) -> Trace:
        """The valid actions of a trace: all but the last action of a negative one."""
        return self.rows[place][: len(self.rows[place]) - self.labels[place]]

    def summary(self) -> dict[str, Any]:
        """The number of traces and their checksum, as plain data."""
        return {"count": len(self), "positive": self.positives, "longest": self.longest, "sha256": self.sha256}

    def padded(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Action numbers [N, T], padded with -1; lengths [N]; labels [N]."""
        lengths = np.array([len(row) for row in self.rows], dtype=np.int64)
        numbers = np.full((len(self.rows), self.longest), -1, dtype=np.int64)
        for place, row in enumerate(self.rows):
            numbers[place, : len(row)] = row
        return numbers, lengths, np.array(self.labels, dtype=np.int64)

    def only(self, places: Iterable[int]) -> Traces:
        """The traces at `places`."""
        kept = list(places)
        rows, labels = tuple(self.rows[at] for at in kept), tuple(self.labels[at] for at in kept)
        return Traces(self.actions, rows, labels, *self._origins(kept))

    def _origins(self, kept: Sequence[int]) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """Lines and files of the traces at `kept`."""
        lines = tuple(self.lines[at] for at in kept) if self.lines else ()
        return lines, tuple(self.files[at] for at in kept) if self.files else ()

    def with_actions(self, actions: Sequence[str]) -> Traces:
        """The traces with the numbers of another list of actions. Raises `ValueError` if an action is not in it."""
        number = {name: place for place, name in enumerate(actions)}
        used = {at for row in self.rows for at in row}
        unknown = sorted(self.actions[at] for at in used if self.actions[at] not in number)
        if unknown:
            raise ValueError(f"{unknown[0]!r} is not an action of the model ({len(unknown)} such actions)")
        move = [number.get(name, -1) for name in self.actions]
        rows = tuple(tuple(move[at] for at in row) for row in self.rows)
        return Traces(tuple(actions), rows, self.labels, self.lines, self.files)

    def valid_only(self) -> Traces:
        """Only the valid actions, all labelled 0; a trace without valid actions is left out."""
        kept = [place for place in range(len(self)) if self.valid(place)]
        return Traces(self.actions, tuple(map(self.valid, kept)), (0,) * len(kept), *self._origins(kept))
