"""Cases that the end of a log has cut, so that their last event is not the end of the case."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from statewise.runtime.messages import counted

if TYPE_CHECKING:
    from statewise.tasks.own_files.log import EventLog

WAITS = 0.95
"""Share of the durations between events of a case that are shorter than the time that a case may be silent."""
ENDS = 0.5
"""Share of the occurrences of a symbol in other cases that end the case, from which on it is an ending."""


def cut_cases(log: EventLog) -> tuple[np.ndarray, str]:
    """(N,) bool: cases that were probably still open at the end of the log, and a sentence about them.

    A case is unfinished if its last event is at most a long duration before the last event of the log, and its last
    symbol is not an ending. A duration is long if `WAITS` of the durations between events of a case are shorter; a
    symbol is an ending if at least `ENDS` of its occurrences in the cases that had a long time to go on are their last
    event.
    """
    none = np.zeros(len(log), bool)
    if log.times is None:
        return none, "without times nothing shows which cases the end of the log has cut: all count as finished"
    last = log.offsets[1:] - 1
    within = np.ones(len(log.codes), bool)
    within[log.offsets[:-1]] = False
    waits = np.diff(log.times, prepend=log.times[:1])[within]
    if not len(waits):
        return none, "every case has one event: all count as finished"
    silence = log.times.max() - log.times[last]
    recent = silence <= np.quantile(waits, WAITS)
    of_old = np.repeat(~recent, log.lengths)
    occurs = np.bincount(log.codes[of_old], minlength=len(log.symbols))
    closes = np.bincount(log.codes[last][~recent], minlength=len(log.symbols))
    ending = closes >= ENDS * np.maximum(occurs, 1)
    unfinished = recent & ~ending[log.codes[last]]
    count = int(unfinished.sum())
    return unfinished, (
        f"{counted(count, 'case')} of {len(log):,} {'was' if count == 1 else 'were'} still open at the end of the log, "
        "and get no end symbol"
    )
