"""How many tokens to draft in each cycle: a fixed number, or what is measured to be fastest."""

from __future__ import annotations

import statistics
from abc import ABC, abstractmethod
from collections import deque

import numpy as np

LENGTHS = (0, 1, 3, 7, 15)
"""The draft lengths that `MeasuredLength` compares. A pass of one token more than these fills the rows of matrix
products."""
TRIALS = 3
"""Cycles of each length before it is compared."""
PAUSE = 128
"""Cycles of the fastest length between trials of others."""
MEMORY = 200.0
"""Cycles after which an observed acceptance counts 1 / e."""


class DraftLength(ABC):
    """Chooses the draft length of each cycle."""

    @abstractmethod
    def next(self) -> int:
        """The most tokens to draft in the next cycle."""

    def record(  # noqa: B027 -- a fixed length needs none
        self, asked: int, most: np.ndarray, accepted: np.ndarray, seconds: float
    ) -> None:
        """Told of each cycle: the length asked for, how much of it the limit of each row allowed, (B,), the tokens
        accepted in each row, (B,), and the time it took."""


class FixedLength(DraftLength):
    """Always the same length."""

    def __init__(self, length: int) -> None:
        self.length = length

    def next(self) -> int:
        """See `DraftLength.next`."""
        return self.length


class MeasuredLength(DraftLength):
    """The length of `LENGTHS` with the most tokens per second, by the shares accepted at each place and the median time
    of a cycle. The first cycles try the lengths in ascending order, those above 3 while they would add a tenth to the
    tokens of a cycle, and not 1, which is seldom the best. Later ones try another length now and then, since text and
    batch change."""

    def __init__(self, longest: int) -> None:
        """`longest`: the longest draft allowed."""
        self.lengths = [length for length in LENGTHS if length <= longest]
        self.seconds: dict[int, deque[float]] = {length: deque(maxlen=9) for length in self.lengths}
        self.offered, self.accepted = np.zeros(LENGTHS[-1]), np.zeros(LENGTHS[-1])
        self._cycle = 0

    def next(self) -> int:
        """See `DraftLength.next`."""
        self._cycle += 1
        for length in self._worth_trying():
            if len(self.seconds[length]) < TRIALS:
                return length
        best = max((length for length in self.lengths if self.seconds[length]), key=self.rate)
        if self._cycle % PAUSE == 0:
            place = self.lengths.index(best)
            near = [self.lengths[other] for other in (place + 1, place - 1) if 0 <= other < len(self.lengths)]
            return near[self._cycle // PAUSE % len(near)] if best else self.lengths[min(2, len(self.lengths) - 1)]
        return best

    def _worth_trying(self) -> list[int]:
        found: list[int] = []
        for length in self.lengths if len(self.lengths) < 3 else [0, *self.lengths[2:]]:
            if length > 3 and self.tokens(length) < 1.1 * self.tokens(found[-1]):
                break
            found.append(length)
        return found

    def record(self, asked: int, most: np.ndarray, accepted: np.ndarray, seconds: float) -> None:
        """See `DraftLength.record`. Short answers allow no whole drafts, so the time of cut ones counts, too, unless
        nothing of a draft was allowed."""
        if asked and not most.any():
            return
        self.seconds[asked].append(seconds)
        keep = np.exp(-1 / MEMORY)
        for place in range(int(most.max(initial=0))):
            # A place counts only where all before it were accepted; a row that drafted less accepts none there.
            reached = int(((accepted >= place) & (most > place)).sum())
            self.offered[place] = keep * self.offered[place] + reached
            self.accepted[place] = keep * self.accepted[place] + int((accepted > place).sum())

    def tokens(self, length: int) -> float:
        """Expected tokens of a cycle and row. A place that was never reached is taken to be accepted as the one before
        it, the first as certain."""
        share, chain, total = 1.0, 1.0, 1.0
        for place in range(length):
            if self.offered[place]:
                share = self.accepted[place] / self.offered[place]
            chain *= share
            total += chain
        return total

    def rate(self, length: int) -> float:
        """Expected tokens per second and row."""
        return self.tokens(length) / statistics.median(self.seconds[length])
