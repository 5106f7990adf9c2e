"""How many tokens to draft in each cycle: a fixed number, or what is measured to be fastest."""

from __future__ import annotations

import statistics
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from math import exp

from typing_extensions import override

LENGTHS = (0, 1, 3, 7, 15)
"""The draft lengths that `MeasuredLength` compares. A pass of one token more than these fills the rows of matrix
products."""
TRIALS = 3
"""Cycles of the lengths that are tried first."""
STRETCH = 8
"""Cycles of the fastest length before lengths are compared again."""
PAUSES = (64, 128)
"""Cycles before the first trial of another length, and between later ones."""
MEMORY = 200.0
"""Cycles after which an observed acceptance counts 1 / e."""
EXPECTED, DOUBT = 0.8, 3.0
"""The share of accepted tokens that is expected before any are observed, and how many observations that counts for."""


class DraftLength(ABC):
    """Chooses the draft length of each cycle."""

    @abstractmethod
    def next(self) -> int:
        """The most tokens to draft in the next cycle."""

    def record(  # noqa: B027 -- a fixed length needs none
        self, asked: int, most: Sequence[int], accepted: Sequence[int], seconds: float
    ) -> None:
        """Records a cycle: the length that was `asked` for, how much of it the limit of each of the B rows allowed, the
        tokens accepted in each row, and the time that it took."""


class FixedLength(DraftLength):
    """Always the same length."""

    def __init__(self, length: int) -> None:
        self.length = length

    @override
    def next(self) -> int:
        return self.length


class MeasuredLength(DraftLength):
    """The length of `LENGTHS` with the most tokens per second, by the shares accepted at each place and the median time
    of a cycle. The first cycles try 0 and 3, and any other length is tried when it promises more than all that are
    known: times of untried lengths are interpolated linearly from those of the nearest tried ones. Later cycles try a
    neighbour of the best length now and then, since text and batch change."""

    def __init__(self, longest: int) -> None:
        """`longest`: the longest draft allowed."""
        self.lengths = [length for length in LENGTHS if length <= longest]
        self.seconds: dict[int, deque[float]] = {length: deque(maxlen=9) for length in self.lengths}
        self.offered, self.accepted = [0.0] * LENGTHS[-1], [0.0] * LENGTHS[-1]
        self._first = self.lengths if len(self.lengths) < 3 else [self.lengths[0], self.lengths[2]]
        self._best, self._stretch = 0, 0  # for how many cycles it stays the best without a comparison
        self._trials, self._pause = 0, PAUSES[0]

    @override
    def next(self) -> int:
        for length in self._first:
            if len(self.seconds[length]) < TRIALS:
                return length
        self._pause -= 1
        if self._pause <= 0:
            self._trials += 1
            self._pause = PAUSES[min(self._trials, len(PAUSES) - 1)]
            return self._neighbour(self._trials)
        self._stretch -= 1
        if self._stretch < 0:
            self._best = max(self.lengths, key=self.rate)
            tried = len(self.seconds[self._best]) >= TRIALS
            self._stretch = STRETCH - 1 if tried else 0
        return self._best

    def _neighbour(self, number: int) -> int:
        if self._best == 0:
            return self._first[-1]
        place = self.lengths.index(self._best)
        near = [self.lengths[other] for other in (place + 1, place - 1) if other < len(self.lengths)]
        return near[number % len(near)]

    def record(self, asked: int, most: Sequence[int], accepted: Sequence[int], seconds: float) -> None:
        """See `DraftLength.record`. Short answers allow no whole drafts, so the time of cut ones counts, too, unless
        nothing of a draft was allowed."""
        longest = max(most, default=0)
        if asked and not longest:
            return
        self.seconds[asked].append(seconds)
        if not longest:
            return
        keep = exp(-1 / MEMORY)
        for place in range(longest):
            self.offered[place] *= keep
            self.accepted[place] *= keep
        for allowed, kept in zip(most, accepted):
            for place in range(min(kept, allowed)):
                self.offered[place] += 1
                self.accepted[place] += 1
            if kept < allowed:  # a place counts only where all before it were accepted
                self.offered[kept] += 1

    def tokens(self, length: int) -> float:
        """Expected tokens of a cycle and row. The share accepted at a place is expected to be that of the place before
        it until there are observations."""
        share, chain, total = EXPECTED, 1.0, 1.0
        for offered, accepted in zip(self.offered[:length], self.accepted):
            share = (accepted + DOUBT * share) / (offered + DOUBT)
            chain *= share
            total += chain
        return total

    def time(self, length: int) -> float:
        """Seconds of a cycle: the median, or of an untried length an estimate. At least one must have been tried."""
        if self.seconds[length]:
            return statistics.median(self.seconds[length])
        tried = [other for other in self.lengths if self.seconds[other]]
        if len(tried) == 1:
            return self.time(tried[0])
        low = max(0, min(sum(other < length for other in tried), len(tried) - 1) - 1)
        (first, last), (begin, end) = tried[low : low + 2], map(self.time, tried[low : low + 2])
        return max(begin, begin + (end - begin) * (length - first) / (last - first))

    def rate(self, length: int) -> float:
        """Expected tokens per second and row."""
        return self.tokens(length) / self.time(length)
