"""Greedy decoding and sampling, one token at a time."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from statewise.bounds import bounded
from statewise.decoding.base import Decoder, Request, Step
from statewise.decoding.noise import gumbel
from statewise.decoding.predictor import Predictor, start_towards


class StepByStep(Decoder):
    """Reads the prompts once, then generates a token at a time until every row has ended."""

    def noise(self, rows: np.ndarray, positions: np.ndarray, vocabulary: int) -> Tensor | None:
        """(B, V), on the host: what choices depend on besides the logits; None: nothing. `rows` (B,): the rows'
        numbers; `positions` (B,): the numbers of tokens before the chosen ones, in the whole sequence."""
        return None

    @abstractmethod
    def choose(self, logits: Tensor, noise: Tensor | None) -> Tensor:
        """(B, V) logits and `noise` of the same shape -> (B,) tokens."""

    @torch.no_grad()
    def steps(self, predictor: Predictor, request: Request) -> Iterator[Step]:
        """See `Decoder.steps`. With a goal the predictor must be a `GoalScorer`. Rows that have ended leave the batch
        when they are half of it."""
        limits, (prompts, lengths) = request.limits(predictor.context), request.padded()
        given = torch.from_numpy(prompts)
        goal = None if request.goal is None else torch.from_numpy(request.goal)
        cursor, logits = start_towards(predictor, given, goal, lengths, may_close=request.closing is not None)
        B, banned = len(prompts), request.banned
        rows = np.arange(B)  # in the batch
        live = np.ones(B, bool)  # which of `rows` have not ended
        for place in range(int(limits.max(initial=0))):
            if banned is not None:
                logits = logits.index_fill(-1, torch.tensor(banned, device=logits.device), -torch.inf)
            noise = self.noise(request.numbers[rows], request.offset + lengths[rows] + place, logits.shape[-1])
            token = self.choose(logits, noise)
            gained = logits.log_softmax(-1).gather(1, token[:, None].to(logits.device))[:, 0]
            chosen = token.cpu().numpy()
            tokens, scores = np.full((B, 1), -1, np.int64), np.zeros((B, 1))
            tokens[rows[live], 0], scores[rows[live], 0] = chosen[live], gained.double().cpu().numpy()[live]
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

    def __init__(self, config: GreedyConfig) -> None:
        self.config = config

    def choose(self, logits: Tensor, noise: Tensor | None) -> Tensor:
        """See `StepByStep.choose`."""
        return logits.argmax(-1)


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
        bounded(self, "temperature", above=0, reason="use --decoder greedy for 0")
        bounded(self, "top_p", above=0, at_most=1)
        bounded(self, "floor", at_least=0, below=1)
        bounded(self, "top_k", at_least=1)
        bounded(self, "seed", at_least=0)


class Sample(StepByStep):
    """Draws each token from the model's distribution, with temperature and truncation as configured."""

    Config = SampleConfig

    def __init__(self, config: SampleConfig) -> None:
        self.config = config

    def noise(self, rows: np.ndarray, positions: np.ndarray, vocabulary: int) -> Tensor:
        """See `StepByStep.noise`."""
        return gumbel(self.config.seed, rows, positions, vocabulary)

    def choose(self, logits: Tensor, noise: Tensor | None) -> Tensor:
        """See `StepByStep.choose`. Draws on the host, so that a seed gives the same on every device."""
        assert noise is not None
        return self.cut(logits.cpu().double()).add_(noise).argmax(-1)

    def cut(self, logits: Tensor) -> Tensor:
        """(B, V) logits divided by the temperature, -inf for tokens that must not be drawn."""
        config, logits = self.config, logits / self.config.temperature
        if config.top_k is None and config.top_p == 1 and config.floor == 0:
            return logits
        ordered, places = logits.sort(dim=-1, descending=True, stable=True)
        weights = ordered.softmax(-1)
        # Drop a token if those before it already reach top_p; the first always stays.
        kept = weights.cumsum(-1) - weights < config.top_p
        kept[:, 1:] &= weights[:, 1:] >= config.floor
        if config.top_k is not None:
            kept[:, config.top_k :] = False
        return torch.full_like(logits, -torch.inf).scatter(-1, places, ordered.masked_fill(~kept, -torch.inf))
