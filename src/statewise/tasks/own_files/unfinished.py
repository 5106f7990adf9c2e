"""Cases that the end of a log has cut, so that their last event is not the end of the case."""

from __future__ import annotations

import numpy as np

from statewise.runtime.messages import counted

WAITS = 0.95
"""Share of the durations between events of a case that are shorter than the time that a case may be silent."""
ENDS = 0.5
"""Share of the occurrences of a symbol in other cases that end the case, from which on it is an ending."""


def cut_cases(codes: np.ndarray, offsets: np.ndarray, times: np.ndarray | None) -> tuple[np.ndarray, str]:
    """(N,) bool: cases that were probably still open at the end of the log, and a sentence about them. Arrays as in
    `EventLog`.

    A case is unfinished if its last event is at most a long duration before the last event of the log, and its last
    symbol is not an ending. A duration is long if `WAITS` of the durations between events of a case are shorter; a
    symbol is an ending if at least `ENDS` of its occurrences in the cases that had a long time to go on are their last
    event.
    """
    lengths = np.diff(offsets)
    none = np.zeros(len(lengths), bool)
    if times is None:
        return none, "without times nothing shows which cases the end of the log has cut: all count as finished"
    last = offsets[1:] - 1
    within = np.ones(len(codes), bool)
    within[offsets[:-1]] = False
    waits = np.diff(times, prepend=times[:1])[within]
    if not len(waits):
        return none, "every case has one event: all count as finished"
    recent = times.max() - times[last] <= np.quantile(waits, WAITS)
    occurs = np.bincount(codes[np.repeat(~recent, lengths)], minlength=int(codes.max()) + 1)
    closes = np.bincount(codes[last][~recent], minlength=len(occurs))
    ending = closes >= ENDS * np.maximum(occurs, 1)
    unfinished = recent & ~ending[codes[last]]
    count = int(unfinished.sum())
    return unfinished, (
        f"{counted(count, 'case')} of {len(lengths):,} {'was' if count == 1 else 'were'} still open at the end of the "
        f"log, and {'gets' if count == 1 else 'get'} no end symbol"
    )
