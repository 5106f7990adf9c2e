"""Where a speculative decoder's drafts come from: the model's own guesses, or what was read before."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from statewise.decoding.predictor import Drafter
from statewise.runtime.devices import in_float64

Choose = Callable[[Tensor, int, Tensor | None], Tensor]
"""From the logits (B, V) of a drafted place and its number, from 0, to tokens (B,), as the decoder would choose them at
that place. With tokens (K,) as the third, the logits are (B, K), of these tokens."""

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
    """(B,): the probability of `token` (B,), drafted from `logits` (B, V), or (B, K) if these are of `among` (K,)."""
    chosen = token.to(logits.device)
    column = chosen if among is None else (chosen[:, None] == among.to(logits.device)).int().argmax(1)
    found: np.ndarray = logits.softmax(-1).gather(1, column[:, None])[:, 0].cpu().double().numpy()
    return found


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
        found = in_float64(log_probabilities).exp().sum(0)
        self._total = found if self._total is None else found.add_(self._total, alpha=float(np.exp(-1 / MEMORY)))
        self._recorded += 1
        if self._recorded == self._due:
            self._due += min(self._recorded, RENEWAL)
            self.tokens = self._total.topk(self.size).indices.cpu()


class PromptLookup(DraftSource):
    """What followed the last time that a row's last tokens occurred in it (Saxena 2023): the latest occurrence of the
    longest run, of at most `longest` tokens, that occurred before."""

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
        found = [self.continuation(row, count) for row, count in zip(rows, most)]
        counts = [len(tokens) for tokens in found]
        longest = max(counts)
        read = [[last, *tokens, *[0] * (longest - len(tokens))] for last, tokens in zip(pending.tolist(), found)]
        return Draft(torch.tensor(read), counts)

    def continuation(self, row: int, count: int) -> list[int]:
        """At most `count` tokens that may follow a row; a repetition goes on beyond the row's end."""
        read, after = self.read[row], self._after[row]
        for length in range(min(self.longest, len(read)), 0, -1):
            place = after.get(tuple(read[-length:]))
            if place is not None:
                period = len(read) - place
                return [read[place + step % period] for step in range(count)]
        return []
