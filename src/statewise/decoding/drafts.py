"""What a speculative decoder drafts: from guesses of the model itself or from what was read before, and how many tokens
in each cycle.
"""

from __future__ import annotations

import statistics
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from math import exp
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from statewise.decoding.predictor import Drafter
from statewise.runtime.devices import in_float64

Choose = Callable[[Tensor, int, Tensor | None], Tensor]
"""`choose(logits, place, among)`: the tokens (B,) that the decoder would choose at a drafted place, from its logits (B,
V) and its number, counted from 0. With tokens `among` (K,) the logits are those of these tokens, (B, K)."""

MEMORY = 500.0
"""Cycles after which the probabilities of `FrequentTokens` count 1 / e."""
RENEWAL = 64
"""Cycles between two lists of `FrequentTokens`, after the first ones."""


class Draft(NamedTuple):
    """Tokens that may follow, for each row."""

    tokens: Tensor
    """(B, 1 + m) int64: the token of each row that is not read yet, and those drafted after it."""
    counts: list[int]
    """How many tokens are drafted for each row; those behind are meaningless."""

    def drafted(self) -> list[list[int]]:
        """The drafted tokens of each row."""
        return [row[1 : 1 + count] for row, count in zip(self.tokens.tolist(), self.counts)]


class DraftSource(ABC):
    """Drafts tokens for rows of a batch."""

    @abstractmethod
    def draft(self, cursor: Any, rows: list[int], pending: Tensor, most: list[int], choose: Choose) -> Draft:
        """Drafts at most `most[b]` tokens after the token `pending[b]`, (B,) on the host, which follows what the
        cursor's row b has read. `rows`: the numbers of the rows in the request."""

    def follow(self, row: int, tokens: list[int]) -> None:  # noqa: B027 -- a model follows by its cursor
        """Receives all tokens of a row in order: those of the prompt, then those of each step."""

    def learn(self, log_probabilities: Tensor) -> None:  # noqa: B027 -- only a short list of tokens changes
        """Receives the model's log-probabilities (B, n, V) at the places of each row in every cycle."""


class ModelDrafts(DraftSource):
    """The model's guesses, with the decoder's own choice at each place. With noise that depends on the place alone, a
    guess equals the token that will be chosen there more often than an independent draw would: with probability at
    least (1 - d) / (1 + d), d the total variation distance of the two distributions."""

    def __init__(self, drafter: Drafter, confidence: float = 0.0, frequent: FrequentTokens | None = None) -> None:
        """`confidence`: a row's draft ends before the product of its tokens' probabilities falls below it. `frequent`:
        only these tokens are drafted, and the probabilities are among them; None: all."""
        self.drafter, self.confidence, self.frequent = drafter, confidence, frequent

    @override
    def draft(self, cursor: Any, rows: list[int], pending: Tensor, most: list[int], choose: Choose) -> Draft:
        longest = max(most)
        if longest == 0:
            return Draft(pending[:, None], [0] * len(rows))
        among = None if self.frequent is None else self.frequent.tokens
        guesses = self.drafter.guesses(cursor, pending, among)
        tokens: list[Tensor] = []
        if self.confidence:
            confident, sure = np.zeros(len(rows), np.int64), np.ones(len(rows))
        for place in range(longest):
            try:
                logits = guesses.send(tokens[-1]) if tokens else next(guesses)
            except StopIteration:
                break
            token = choose(logits, place, among)
            if self.confidence:
                sure *= _probability(token, logits, among)
                continues = (sure >= self.confidence) & (confident == place) & (place < np.array(most))
                if not continues.any():
                    break
                confident += continues
            tokens.append(token)
        guesses.close()
        counts = confident.tolist() if self.confidence else [min(each, len(tokens)) for each in most]
        device = tokens[-1].device if tokens else pending.device
        return Draft(torch.stack([pending.to(device), *tokens]).T.contiguous(), counts)

    def learn(self, log_probabilities: Tensor) -> None:
        """See `DraftSource.learn`; one place of each row is enough."""
        if self.frequent is not None:
            self.frequent.record(log_probabilities[:, 0])


def _probability(token: Tensor, logits: Tensor, among: Tensor | None) -> np.ndarray:
    """(B,): the probability of `token` (B,), drafted from `logits` (B, V), or (B, K) for the tokens `among` (K,)."""
    chosen = token.to(logits.device)
    column = chosen if among is None else (chosen[:, None] == among.to(logits.device)).int().argmax(1)
    probabilities: np.ndarray = logits.softmax(-1).gather(1, column[:, None])[:, 0].cpu().double().numpy()
    return probabilities


class FrequentTokens:
    """The tokens of the highest mean probability under the model, over what it has decoded; later text weighs more. A
    vocabulary head of these rows alone drafts at a lower cost (Zhao et al. 2025, with the frequencies of a corpus)."""

    def __init__(self, size: int) -> None:
        """`size`: the number K of tokens."""
        self.size = size
        self.tokens: Tensor | None = None
        """(K,) int64, on the host; None: all, before anything is known and of a vocabulary of at most K tokens."""
        self._total: Tensor | None = None  # (V,) of probabilities
        self._recorded, self._due = 0, 1

    def record(self, log_probabilities: Tensor) -> None:
        """Takes the distributions (B, V) of further places. The list changes after 1, 2, 4, 8, ... calls, then after
        each `RENEWAL`."""
        if log_probabilities.shape[-1] <= self.size:
            return
        total = in_float64(log_probabilities).exp().sum(0)
        self._total = total if self._total is None else total.add_(self._total, alpha=float(np.exp(-1 / MEMORY)))
        self._recorded += 1
        if self._recorded == self._due:
            self._due += min(self._recorded, RENEWAL)
            self.tokens = self._total.topk(self.size).indices.cpu()


class PromptLookup(DraftSource):
    """Drafts what followed a row's last tokens when they occurred before (Saxena 2023): at the latest occurrence of the
    longest run of last tokens, at most `longest`, that the row already had."""

    def __init__(self, rows: int, longest: int) -> None:
        self.longest = longest
        self.read: list[list[int]] = [[] for _ in range(rows)]
        self._after: list[dict[tuple[int, ...], int]] = [{} for _ in range(rows)]  # where the token after a run stands

    @override
    def follow(self, row: int, tokens: list[int]) -> None:
        read, after = self.read[row], self._after[row]
        for token in tokens:
            place = len(read)
            for length in range(1, min(self.longest, place) + 1):
                after[tuple(read[place - length :])] = place
            read.append(token)

    @override
    def draft(self, cursor: Any, rows: list[int], pending: Tensor, most: list[int], choose: Choose) -> Draft:
        continuations = [self.continuation(row, count) for row, count in zip(rows, most)]
        counts = [len(tokens) for tokens in continuations]
        longest = max(counts)
        read = [
            [last, *tokens, *[0] * (longest - len(tokens))] for last, tokens in zip(pending.tolist(), continuations)
        ]
        return Draft(torch.tensor(read), counts)

    def continuation(self, row: int, count: int) -> list[int]:
        """At most `count` tokens that may follow a row; a repetition continues beyond the row's end."""
        read, after = self.read[row], self._after[row]
        for length in range(min(self.longest, len(read)), 0, -1):
            place = after.get(tuple(read[-length:]))
            if place is not None:
                period = len(read) - place
                return [read[place + step % period] for step in range(count)]
        return []


LENGTHS = (0, 1, 3, 7, 15)
"""The draft lengths that `MeasuredLength` compares. A pass of one token more than these fills the rows of matrix
products."""
TRIALS = 3
"""Cycles of the lengths that are tried first."""
STRETCH = 8
"""Cycles of the fastest length before lengths are compared again."""
PAUSES = (64, 128)
"""Cycles before the first trial of another length, and between later ones."""
MEASUREMENT_MEMORY = 200.0
"""Cycles after which an observed acceptance counts 1 / e."""
EXPECTED, DOUBT = 0.8, 3.0
"""The share of accepted tokens that is expected before any are observed, and how many observations that counts for."""


class DraftLength(ABC):
    """Chooses the draft length of each cycle."""

    @abstractmethod
    def next(self) -> int:
        """The most tokens to draft in the next cycle."""

    def record(  # noqa: B027 -- a fixed length needs none
        self, length: int, most: Sequence[int], accepted: Sequence[int], seconds: float
    ) -> None:
        """Records a cycle: the `length` that was drafted, how much of it the limit of each of the B rows allowed, the
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

    def record(self, length: int, most: Sequence[int], accepted: Sequence[int], seconds: float) -> None:
        """See `DraftLength.record`. Short answers allow no whole drafts, so the time of cut ones counts, too, unless
        nothing of a draft was allowed."""
        longest = max(most, default=0)
        if length and not longest:
            return
        self.seconds[length].append(seconds)
        if not longest:
            return
        keep = exp(-1 / MEASUREMENT_MEMORY)
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
