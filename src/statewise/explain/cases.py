"""The cases of a file beside the sequences of tokens that a model reads: their names, events and columns."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from statewise.data_types import Examples, Ragged
from statewise.runtime.messages import LacksCapability
from statewise.tasks.base import Task
from statewise.tasks.own_files.gaps import gap_symbols
from statewise.tasks.own_files.log import EventLog
from statewise.tasks.own_files.sequences import Sequences


def own_sequences(task: Task) -> Sequences:
    """The task, if it is one of the user's own sequences. Raises `LacksCapability` if not."""
    if not isinstance(task, Sequences):
        raise LacksCapability("this needs a model of your own sequences, task sequences", Sequences)
    return task


def case_name(log: EventLog, number: int) -> str:
    """The name of a case in the user's file; without one, the line where it begins."""
    return f"line {log.lines[number]}" if log.cases is None else log.cases[number]


def part_of(log: EventLog, numbers: np.ndarray) -> EventLog:
    """The sequences of a log with these numbers, (n,) int64, in their order."""
    lengths = log.lengths[numbers]
    firsts = np.cumsum(lengths) - lengths
    events = np.arange(lengths.sum()) + np.repeat(log.offsets[numbers] - firsts, lengths)
    return with_events(
        dataclasses.replace(
            log,
            lines=log.lines[numbers],
            prompts=log.prompts[numbers],
            cases=None if log.cases is None else [log.cases[number] for number in numbers.tolist()],
            unfinished=log.unfinished[numbers],
        ),
        events,
        lengths,
    )


def with_events(log: EventLog, events: np.ndarray, lengths: np.ndarray) -> EventLog:
    """The log with only these events, (E',) int64, of which each sequence has `lengths` (N,)."""
    return dataclasses.replace(
        log,
        codes=log.codes[events],
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        rows=log.rows[events],
        times=None if log.times is None else log.times[events],
        steps=None if log.steps is None else log.steps[events],
    )


@dataclass(frozen=True)
class Cases:
    """n cases, as a model reads them."""

    log: EventLog
    """Of these cases alone."""
    examples: Examples
    events: np.ndarray
    """(n, T) int64: the event of `log` that each token belongs to; -1 for end symbols and padding."""

    def __len__(self) -> int:
        return len(self.log)

    def name(self, row: int) -> str:
        """The name of a case in the user's file; without one, the line where it begins."""
        return case_name(self.log, row)


def cases_of(task: Sequences, log: EventLog) -> Cases:
    """Cases that the model can read whole. Raises `ValueError` for unknown symbols, and for cases that are longer than
    the longest sequence of the model."""
    encoded = task.encoded(log)
    examples, rows = encoded.rows[:], encoded.rows
    events = np.full(examples.tokens.shape, -1, np.int64)
    events[np.repeat(np.arange(len(rows)), rows.lengths), rows.columns()] = encoded.events
    return Cases(log, examples, events)


def held_out_log(task: Sequences) -> EventLog:
    """The held-out cases of a run's data. Raises `ValueError` if the data are missing or have changed."""
    held_out = task.held_out_cases()
    if task.config.held_out_path is None:
        return part_of(task.log(), np.flatnonzero(held_out))
    log = task.log(task.paths[1])
    known = task.training().holds(task.encoded(log).rows[:])
    return part_of(log, np.flatnonzero(~known))


def held_out_cases(task: Sequences, num: int | None = None) -> Cases:
    """The held-out cases of a run's data as the model reads them, the first `num` (None: all), in the order of
    `task.held_out`. Raises `ValueError` as `held_out_log` does."""
    log = held_out_log(task)
    return cases_of(task, log if num is None else part_of(log, np.arange(min(num, len(log)))))


def is_gap(task: Sequences, tokens: np.ndarray) -> np.ndarray:
    """Whether each token is the duration before an event."""
    return np.isin(tokens, [task.vocab.ids[symbol] for symbol in gap_symbols(task.config.gaps)])


def without_gaps(task: Sequences, sequences: Ragged) -> Ragged:
    """Sequences without the tokens of durations, and without prompts as such."""
    if not task.config.gaps:
        return sequences
    kept = ~is_gap(task, sequences.tokens)
    row = np.repeat(np.arange(len(sequences)), sequences.lengths)
    lengths = np.bincount(row[kept], minlength=len(sequences))
    return Ragged(sequences.tokens[kept], lengths, np.zeros(len(sequences), np.int64))
