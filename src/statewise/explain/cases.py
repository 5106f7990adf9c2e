"""The cases of a file beside the sequences of tokens that a model reads: their names, events and columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from statewise.data_types import Examples
from statewise.runtime.messages import LacksCapability
from statewise.tasks.base import Task
from statewise.tasks.own_files.log import EventLog
from statewise.tasks.own_files.sequences import Sequences


def own_sequences(task: Task) -> Sequences:
    """The task, if it is one of the user's own sequences. Raises `LacksCapability` if not."""
    if not isinstance(task, Sequences):
        raise LacksCapability("this needs a model of your own sequences, task sequences", Sequences)
    return task


@dataclass(frozen=True)
class Cases:
    """n cases of a log, as a model reads them."""

    log: EventLog
    numbers: np.ndarray
    """(n,) int64: which sequence of the log each is."""
    examples: Examples
    events: list[np.ndarray]
    """Of each case, (tokens,) int64: the event of the log that each token belongs to; -1 for the end symbol."""

    def __len__(self) -> int:
        return len(self.numbers)

    def name(self, row: int) -> str:
        """The name of a case in the user's file; without one, the line where it begins."""
        number = int(self.numbers[row])
        return f"line {self.log.lines[number]}" if self.log.cases is None else self.log.cases[number]


@dataclass(frozen=True)
class Cut:
    """A log as far as a model can read it."""

    log: EventLog
    """The log without the events that the model cannot read."""
    kept: np.ndarray
    """(E',) int64: the event of the whole log that each event of `log` is."""
    why: dict[int, str]
    """Of events of the whole log that have no surprise: why."""


def cases_of(task: Sequences, log: EventLog, numbers: np.ndarray | None = None) -> Cases:
    """Cases of a log that the model can read whole; `numbers` (n,): which of them, None: all. Raises `ValueError` for
    unknown symbols and cases beyond the context."""
    encoded = task.encoded(log)
    chosen = np.arange(len(log)) if numbers is None else numbers
    rows = encoded.rows
    events = [encoded.events[rows.starts[row] : rows.starts[row] + rows.lengths[row]] for row in chosen.tolist()]
    return Cases(log, chosen, rows[chosen], events)
