"""What the best prediction of a process loses: the entropy of each token given those before it, and its limit."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import NamedTuple

import numpy as np

from statewise.beliefs.process import Process
from statewise.beliefs.reachable import TooMany, entropies, levels
from statewise.runtime.progress import announced

DISTINCT = 2**16
"""Maximum number of distinct beliefs of one length for exact floors; with more they are estimated from drawn
sequences."""
SAMPLED = 4096
"""Maximum number of drawn sequences for such an estimate."""
ROWS_AT_ONCE = 2**22
"""Numbers of beliefs computed at a time."""
LONGEST = 2000
"""Maximum length of the prefixes from which an entropy rate is computed."""
TOLERANCE = 1e-9
"""Difference in nats at which the two bounds of an entropy rate count as equal."""
MOST_BELIEFS = 2**14
"""Maximum number of beliefs that are followed exactly."""
MOST_LISTED = 2**24
"""Numbers of beliefs after which an entropy rate is given with what is then known."""
MOST_STEPS, STEADY = 100_000, 1e-13
"""Maximum number of steps to the stationary distribution, and the change by a step below which it is that."""


class EntropyRate(NamedTuple):
    """Nats per token that no predictor can save, in the long run."""

    value: float
    within: float | None
    """How far the exact rate may be from `value`; None where only an upper bound is known: for generalised
    processes, whose beliefs are no probabilities of hidden states."""


def floors(process: Process, length: int) -> tuple[np.ndarray, bool]:
    """(length,) nats: the mean entropy of the next token after 0, 1, ... tokens, given the exact belief, and whether
    that is exact. Where more than `DISTINCT` beliefs are possible, it is estimated from a fixed sample."""
    if len(process.factors) > 1 and not process.noise and all(each.variants == 1 for each in process.factors):
        parts = [_floors(Process([each]), length) for each in process.factors]  # of independent tokens
    else:
        parts = [_floors(process, length)]
    return np.sum([each for each, _ in parts], axis=0), all(exact for _, exact in parts)


def _floors(process: Process, length: int) -> tuple[np.ndarray, bool]:
    by_length: list[float] = []
    try:
        for level in announced(levels(process, length - 1, DISTINCT), "tokens of the floor", length):
            by_length.append(level.entropy)
        return np.array(by_length), True
    except TooMany:  # from here on estimated
        n = max(16, min(SAMPLED, ROWS_AT_ONCE // length))
        words = process.draw(np.random.default_rng([4, length]), n, length)
        now = np.tile(process.start, (n, 1))
        for place in announced(range(length), "tokens of the floor", length):
            if place >= len(by_length):
                by_length.append(float(entropies(process.probabilities(now)).mean()))
            now, _ = process.update(now, words[:, place])
        return np.array(by_length), False


def entropy_rate(process: Process) -> EntropyRate:
    """The limit of `floors`.

    Of a stationary process, the entropy of a token given the t before it falls towards the rate, and given also the
    hidden state before these it rises towards it (Cover and Thomas 2006, theorem 4.5.1). Both are computed for t = 0,
    1, ... until they meet, or more than `MOST_BELIEFS` beliefs are possible; `value` is then the middle. A process that
    starts elsewhere has the rate of the stationary distribution that it approaches.
    """
    if len(process.factors) > 1 and not process.noise and all(each.variants == 1 for each in process.factors):
        parts = [entropy_rate(Process([each])) for each in process.factors]
        known = [part.within for part in parts if part.within is not None]
        return EntropyRate(sum(part.value for part in parts), sum(known) if len(known) == len(parts) else None)
    begin = _stationary(process)
    upper = _entropies(process, (begin[None], np.ones(1)))
    if not process.is_hidden_markov:
        value = inf
        for reached in upper:
            if value - reached < TOLERANCE:
                break
            value = reached
        return EntropyRate(min(value, reached), None)
    visited = begin > 0
    low, high = 0.0, inf
    for above, below in zip(upper, _entropies(process, (np.eye(process.states)[visited], begin[visited]))):
        high, low = min(high, above), max(low, below)
        if high - low < TOLERANCE:
            break
    return EntropyRate((high + low) / 2, max(0.0, high - low) / 2)


def _entropies(process: Process, begin: tuple[np.ndarray, np.ndarray]) -> Iterator[float]:
    """The mean entropy of the next token after 0, 1, ... tokens, as long as the beliefs can be listed."""
    listed = 0
    try:
        for level in levels(process, LONGEST, MOST_BELIEFS, begin):
            yield level.entropy
            listed += level.beliefs.size
            if listed > MOST_LISTED:
                return
    except TooMany:
        return


def _stationary(process: Process) -> np.ndarray:
    """(S,): the mean distribution of the hidden state in the long run. Steps are taken by halves, so that a period
    makes no difference."""
    now = process.start[None]
    for _ in range(MOST_STEPS):
        after = (now + process.drift(now)) / 2
        if np.abs(after - now).sum() < STEADY:
            break
        now = after
    steady: np.ndarray = now[0]
    return np.where(np.abs(steady) < STEADY, 0.0, steady)
