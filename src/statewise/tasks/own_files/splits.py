"""Which sequences of a file are held out."""

from __future__ import annotations

import hashlib
import json
from typing import NamedTuple

import numpy as np

from statewise.runtime.messages import counted
from statewise.tasks.own_files.log import EventLog


class Split(NamedTuple):
    """A division of the N sequences of a log."""

    held_out: np.ndarray
    """(N,) bool."""
    used: np.ndarray
    """(N,) int64: so many events of each sequence are used, from the first on; less than all of a sequence that goes on
    after the time at which training ends."""
    how: str
    """How sequences were chosen, as in `held out: 93 sequences, HOW`."""


def split(log: EventLog, by: str, share: float, column: str | None) -> Split:
    """Divides a log: `by` sequence, case, time or column, as in `SequencesConfig`. Raises `ValueError`, without the
    file's name, if a side would be empty or if the log lacks what is needed."""
    if by == "time":
        return _by_time(log, share)
    if by == "column":
        assert column is not None
        return _by_name(log, share, *_values(log, column))
    if by == "case":
        names = log.cases or [str(number) for number in log.lines.tolist()]
        return _by_name(log, share, names, "the {:,} cases, chosen by their names")
    return _by_sequence(log, share)


HELD_OUT_SHARE = 0.1
"""Default share that is held out."""


def keys(log: EventLog) -> list[tuple[int, bytes]]:
    """(N,) keys that are equal for equal sequences of one log."""
    codes = log.codes.astype(np.int32)
    bounds = log.offsets.tolist()
    return [
        (prompt, codes[begin:end].tobytes()) for prompt, begin, end in zip(log.prompts.tolist(), bounds, bounds[1:])
    ]


def _held(count: int, share: float) -> int:
    return min(max(1, round(share * count)), count - 1)


def _by_sequence(log: EventLog, share: float) -> Split:
    every = keys(log)
    first = {key: number for number, key in reversed(list(enumerate(every)))}
    if len(first) < 2:
        raise ValueError("at least two different sequences are needed, to train on one and hold out another")
    texts = [json.dumps(symbol) for symbol in log.symbols]

    def rank(number: int) -> tuple[bytes, int]:
        begin, end = log.offsets[number : number + 2].tolist()
        middle = begin + int(log.prompts[number])
        parts = (
            ", ".join(texts[code] for code in log.codes[one].tolist())
            for one in (slice(begin, middle), slice(middle, end))
        )
        return _digest("[[" + "], [".join(parts) + "]]"), number

    ranked = sorted(first.values(), key=rank)
    chosen = {every[number] for number in ranked[: _held(len(ranked), share)]}
    held_out = np.fromiter((key in chosen for key in every), bool, len(every))
    how = f"all copies of {len(chosen):,} of the {len(first):,} different sequences"
    return Split(held_out, log.lengths, how)


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=8).digest()


def _by_name(log: EventLog, share: float, names: list[str], what: str) -> Split:
    different = sorted(set(names), key=lambda name: (_digest(name), name))
    if len(different) < 2:
        raise ValueError("at least two of what is split by are needed, to train on one and hold out another")
    chosen = set(different[: _held(len(different), share)])
    held_out = np.fromiter((name in chosen for name in names), bool, len(names))
    return Split(held_out, log.lengths, f"{len(chosen):,} of {what.format(len(different))}")


def _values(log: EventLog, column: str) -> tuple[list[str], str]:
    """The value of a column in the first event of each sequence."""
    every = log.table.column(column)
    firsts = [every[row] for row in log.rows[log.offsets[:-1]].tolist()]
    first_codes = {value: code for code, value in enumerate(dict.fromkeys(firsts))}
    codes = np.array([first_codes.get(every[row], -1) for row in log.rows.tolist()])
    own = np.repeat([first_codes[value] for value in firsts], log.lengths)
    mixed = len(np.unique(np.repeat(np.arange(len(log)), log.lengths)[codes != own]))
    note = f"; {counted(mixed, 'sequence')} with several values count as their first" if mixed else ""
    return firsts, f"the {{:,}} values of {column!r}, with all their sequences{note}".replace("{:,}", "{0:,}")


def _by_time(log: EventLog, share: float) -> Split:
    """The cases that begin last are held out. Training ends when the first of them begins: later events of other cases
    are left out."""
    if log.times is None:
        raise ValueError(
            "there are no times to split by: set --task.order to the column of times (and --task.time_format, if its "
            "numbers count from 1970 in a unit that they do not show)"
        )
    starts = log.times[log.offsets[:-1]]
    moments = np.unique(starts)
    if len(moments) < 2:
        raise ValueError("all cases begin at the same time: at least two times are needed, to train on the earlier")
    # Of the moments, the one that leaves a share nearest to the wanted one after it.
    after = len(starts) - np.searchsorted(np.sort(starts), moments)
    cut = moments[1:][np.argmin(np.abs(after[1:] - share * len(starts)))]
    held_out = starts >= cut
    early = log.times < cut
    before = np.add.reduceat(early.astype(np.int64), log.offsets[:-1])
    used = np.where(held_out, log.lengths, before)
    open_ = int((used < log.lengths).sum())
    how = f"all that begin at {np.datetime64(int(cut), 'ns').astype('datetime64[s]')} or later"
    if open_:
        how += f"; {counted(open_, 'sequence')} of training that go on then are cut there and get no end symbol"
    return Split(held_out, used, how)
