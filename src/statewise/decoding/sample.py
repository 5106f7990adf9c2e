"""Greedy decoding and sampling, one token at a time."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from statewise.decoding.base import Decoder, Request, Step
from statewise.decoding.noise import NoiseAhead, gumbel
from statewise.decoding.predictor import Predictor, start_conditioned
from statewise.runtime.bounds import bounded
from statewise.runtime.progress import announced

LEAST_TEMPERATURE = 1e-100
"""Lowest temperature: any logit can be divided by it in float64."""


class StepByStep(Decoder):
    """Reads the prompts once, then generates a token at a time until every row has ended."""

    draws: ClassVar[bool] = False
    """Whether choices depend on `noise`."""

    def noise(self, rows: np.ndarray, positions: np.ndarray, vocabulary: int) -> np.ndarray:
        """(B, V): the noise on which choices depend, if `draws`. `rows` (B,): the rows' numbers; `positions`
        (B,): the numbers of tokens before the chosen ones, in the whole sequence."""
        raise NotImplementedError

    @abstractmethod
    def choose(self, logits: Tensor, noise: np.ndarray | None) -> Tensor:
        """(B, V) logits, and if `draws` the `noise` of the same shape -> (B,) tokens."""

    @abstractmethod
    def close(self, logits: Tensor, noise: np.ndarray | None, tokens: Tensor, error: float) -> Tensor:
        """(B,) bool: whether a choice `tokens` (B,) by `choose` may be another one if each of the logits is changed by
        at most `error`. Never false where it may; true also in some cases where it cannot."""

    @torch.no_grad()
    def steps(self, predictor: Predictor, request: Request) -> Iterator[Step]:
        """See `Decoder.steps`. With a goal the predictor must be a `GoalScorer`. Rows that have ended leave the batch
        when they are half of it."""
        limits, (prompts, lengths) = request.limits(predictor.context), request.padded()
        tokens_read = torch.from_numpy(prompts)
        goal = None if request.goal is None else torch.from_numpy(request.goal)
        cursor, logits = start_conditioned(predictor, tokens_read, goal, lengths, may_close=request.closing is not None)
        B, banned = len(prompts), request.banned
        rows = np.arange(B)  # in the batch
        live = np.ones(B, bool)  # which of `rows` have not ended
        ahead, most = NoiseAhead(self.noise, logits.shape[-1]), int(limits.max(initial=0))
        for place in announced(range(most), "tokens", most):
            allowed = logits
            if banned is not None:
                allowed = logits.index_fill(-1, torch.tensor(banned, device=logits.device), -torch.inf)
            noise = None
            if self.draws:
                positions = request.offset + lengths[rows] + place
                noise = ahead.at(request.numbers[rows].tolist(), positions.tolist(), 1, most - place)[:, 0]
            token = self.choose(allowed, noise)
            gained = logits.log_softmax(-1).gather(1, token[:, None].to(logits.device))[:, 0]
            chosen = token.cpu().numpy()
            tokens, scores = np.full((B, 1), -1, np.int64), np.zeros((B, 1))
            tokens[rows[live], 0], scores[rows[live], 0] = chosen[live], gained.cpu().double().numpy()[live]
            yield Step(tokens, scores, np.zeros(B, np.int64))
            live &= place + 1 < limits[rows]
            if request.stop is not None:
                live &= chosen != request.stop
            if not live.any():
                return
            if 2 * live.sum() <= len(rows):
                stay = np.flatnonzero(live)
                predictor.reorder(cursor, torch.from_numpy(stay))
                rows, live, token = rows[stay], live[stay], token[torch.from_numpy(stay).to(token.device)]
            # Rows that have ended keep reading while they fit: a pass is faster if all rows read the same number.
            fits = lengths[rows] + place < predictor.context
            logits = predictor.extend(cursor, token[:, None], None if fits.all() else fits.astype(np.int64))[:, -1]


@dataclass(frozen=True)
class GreedyConfig:
    """Greedy decoding has no fields."""


class Greedy(StepByStep):
    """The most likely token at every step."""

    Config = GreedyConfig

    @override
    def choose(self, logits: Tensor, noise: np.ndarray | None) -> Tensor:
        return logits.argmax(-1)

    @override
    def close(self, logits: Tensor, noise: np.ndarray | None, tokens: Tensor, error: float) -> Tensor:
        best = logits.topk(min(2, logits.shape[-1])).values
        return best[:, 0] - best[:, -1] <= 2 * error


@dataclass(frozen=True)
class SampleConfig:
    """Fields of `--decoder sample`."""

    temperature: float = 1.0
    """Divides the logits."""
    top_k: int | None = None
    """Draw from this many most likely tokens; null: all."""
    top_p: float = 1.0
    """Draw from the smallest set of most likely tokens whose total probability reaches this."""
    floor: float = 0.0
    """Never draw tokens less probable than this, except the most likely one."""
    seed: int = 0
    """Seed of the draws. Each depends on it, on the row's number and on the position, not on the rest of the batch."""

    def __post_init__(self) -> None:
        bounded(self, "temperature", above=0, reason="use `decoder` greedy for 0")
        bounded(self, "temperature", at_least=LEAST_TEMPERATURE, reason="use `decoder` greedy")
        bounded(self, "top_p", above=0, at_most=1)
        bounded(self, "floor", at_least=0, below=1)
        bounded(self, "top_k", at_least=1)
        bounded(self, "seed", at_least=0)


class Sample(StepByStep):
    """Draws each token from the model's distribution, with temperature and truncation as configured."""

    Config = SampleConfig
    draws = True

    def __init__(self, config: SampleConfig) -> None:
        self.config = config
        self.cuts = config.top_k is not None or config.top_p < 1 or config.floor > 0
        """Whether some tokens are never drawn."""

    @override
    def noise(self, rows: np.ndarray, positions: np.ndarray, vocabulary: int) -> np.ndarray:
        return gumbel(self.config.seed, rows, positions, vocabulary)

    def choose(self, logits: Tensor, noise: np.ndarray | None) -> Tensor:
        """See `StepByStep.choose`. Draws on the host, so that a seed gives the same on every device."""
        assert noise is not None
        on_host = logits.cpu()
        if self.cuts or self.config.temperature != 1 or on_host.dtype != torch.float32:
            on_host = self.cut(on_host.double())
        # NumPy: its operations on a few numbers cost less than PyTorch's. The sum is in float64.
        return torch.from_numpy((on_host.numpy() + noise).argmax(-1))

    @override
    def close(self, logits: Tensor, noise: np.ndarray | None, tokens: Tensor, error: float) -> Tensor:
        assert noise is not None
        logits, chosen = logits.cpu().double() / self.config.temperature, tokens.cpu()
        reach = 2 * error / self.config.temperature  # by which the difference of two logits may change
        scores = logits + torch.from_numpy(noise)
        near = scores >= scores.gather(1, chosen[:, None]) - reach
        rows, rivals = near.nonzero().T
        every = torch.arange(len(logits))
        if not self.cuts:
            return torch.bincount(rows, minlength=len(logits)) > 1
        weights = logits.softmax(-1)
        kept = (rivals != chosen[rows]) & self._keeps(logits, weights, rows, rivals, reach)
        return (torch.bincount(rows[kept], minlength=len(logits)) > 0) | ~self._keeps(
            logits, weights, every, chosen, -reach
        )

    def _keeps(self, logits: Tensor, weights: Tensor, rows: Tensor, tokens: Tensor, reach: float) -> Tensor:
        """(N,): whether the cut may keep a token of each of `rows` (N,) if differences of the divided `logits` (B, V)
        change by at most `reach`; with a negative one, whether it certainly does. `weights`: their softmax."""
        config, own = self.config, weights[rows, tokens]
        better = logits[rows] > logits[rows, tokens][:, None] + reach  # for a negative reach also the token itself
        count, mass = better.sum(-1), (weights[rows] * better).sum(-1)
        if reach < 0:
            count, mass = count - 1, mass - own
        kept = own >= config.floor * math.exp(-reach)
        if config.top_p < 1:
            kept &= mass < config.top_p + reach
        if config.top_k is not None:
            kept &= count < config.top_k
        return kept | (count == 0)

    def cut(self, logits: Tensor) -> Tensor:
        """(B, V) logits on the host, divided by the temperature, -inf for tokens that must not be drawn."""
        config = self.config
        if config.temperature != 1:
            logits = logits / config.temperature
        if not self.cuts:
            return logits
        # Sorting values alone is many times faster in NumPy than sorting with places in PyTorch.
        values = logits.numpy()
        ordered = torch.from_numpy(-np.sort(-values))
        weights = ordered.softmax(-1)
        kept = weights >= config.floor
        if config.top_p < 1:  # those before a token must not reach it
            kept &= weights.cumsum(-1) - weights < config.top_p
        if config.top_k is not None:
            kept[:, config.top_k :] = False
        counts = kept.sum(-1).clamp(min=1)  # the most likely one always stays
        least = ordered.gather(1, counts[:, None] - 1)
        dropped = logits < least
        for row in (values.shape[1] - dropped.sum(-1) > counts).nonzero()[:, 0].tolist():  # equal ones: the first stay
            equal = (logits[row] == least[row]).nonzero()[:, 0]
            dropped[row, equal[int(counts[row] - (logits[row] > least[row]).sum()) :]] = True
        return logits.masked_fill(dropped, -torch.inf)
