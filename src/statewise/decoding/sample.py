"""One token after another: the most likely one, or one drawn."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from statewise.decoding.base import Decoder, Predictor, goal_scorer, room_for
from statewise.types import Completion


class StepByStep(Decoder):
    """Reads the prompts once and then a token at a time, until every row has ended."""

    @abstractmethod
    def choose(self, logits: Tensor) -> Tensor:
        """(B, V) -> (B,) tokens."""

    @torch.no_grad()
    def decode(
        self,
        predictor: Predictor,
        prompts: np.ndarray,
        *,
        limit: int,
        end: int | None,
        goal: np.ndarray | None = None,
        exact: bool = False,
    ) -> list[Completion]:
        """See `Decoder.decode`. With a goal the predictor must be a `GoalScorer`. Raises `ValueError` if a prompt is
        empty or leaves no room for an answer, or if `limit` is not positive."""
        limit = room_for(prompts, limit, predictor.context, goal)
        self.begin()
        if goal is None:
            cursor, logits = predictor.start(torch.from_numpy(prompts))
        else:
            cursor, logits = goal_scorer(predictor).start_towards(torch.from_numpy(prompts), torch.from_numpy(goal))
        B = len(prompts)
        chosen: list[Tensor] = []
        scores = torch.zeros(B, device=logits.device)
        ended = torch.zeros(B, dtype=torch.bool, device=logits.device)
        lengths = torch.zeros(B, dtype=torch.int64, device=logits.device)
        banned, end = (end, None) if exact or goal is not None else (None, end)
        for place in range(limit):
            token = self.choose(logits if banned is None else logits.index_fill(-1, torch.tensor(banned), -torch.inf))
            gained = logits.log_softmax(-1).gather(1, token[:, None])[:, 0]
            scores += torch.where(ended, 0.0, gained)
            lengths += ~ended
            chosen.append(token)
            if end is not None:
                ended |= token == end
                if bool(ended.all()):
                    break
            if place + 1 < limit:
                logits = predictor.extend(cursor, token[:, None])[:, -1]
        tokens = torch.stack(chosen, 1).cpu().numpy()
        return [
            Completion(tokens[row, :length], score)
            for row, (length, score) in enumerate(zip(lengths.tolist(), scores.tolist()))
        ]

    def begin(self) -> None:
        """Called before each call's first choice."""


@dataclass(frozen=True)
class GreedyConfig:
    """Greedy decoding has nothing to choose."""


class Greedy(StepByStep):
    """The most likely token at every step."""

    Config = GreedyConfig

    def __init__(self, config: GreedyConfig) -> None:
        self.config = config

    def choose(self, logits: Tensor) -> Tensor:
        """See `StepByStep.choose`."""
        return logits.argmax(-1)


@dataclass(frozen=True)
class SampleConfig:
    """Fields of `--decoder sample`."""

    temperature: float = 1.0
    """Logits are divided by it."""
    top_k: int | None = None
    """Draw among so many most likely tokens; null: all."""
    top_p: float = 1.0
    """Draw among the fewest most likely tokens that together have this probability."""
    floor: float = 0.0
    """Tokens less probable than this are never drawn, but for the most likely one."""
    seed: int = 0
    """Seed of the draws; the same call gives the same completions."""

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise ValueError(f"temperature must be positive, not {self.temperature}; use --decoder greedy for 0")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must lie in (0, 1], not {self.top_p}")
        if not 0 <= self.floor < 1:
            raise ValueError(f"floor must lie in [0, 1), not {self.floor}")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k must be at least 1, not {self.top_k}")


class Sample(StepByStep):
    """Draws each token from the model's distribution, sharpened and cut as configured."""

    Config = SampleConfig

    def __init__(self, config: SampleConfig) -> None:
        self.config = config
        self.generator = torch.Generator()

    def begin(self) -> None:
        """Starts the draws over."""
        self.generator.manual_seed(self.config.seed)

    def choose(self, logits: Tensor) -> Tensor:
        """See `StepByStep.choose`. Draws happen on the CPU, so that a seed means the same everywhere."""
        logits = logits.cpu() / self.config.temperature
        ordered, places = logits.sort(dim=-1, descending=True)
        weights = ordered.softmax(-1)
        # A token goes when those before it have the whole of top_p already; the first always stays.
        kept = weights.cumsum(-1) - weights < self.config.top_p
        kept[:, 1:] &= weights[:, 1:] >= self.config.floor
        weights = torch.where(kept, weights, 0.0)
        if self.config.top_k is not None:
            weights[:, self.config.top_k :] = 0.0
        drawn = torch.multinomial(weights, 1, generator=self.generator)
        return places.gather(1, drawn)[:, 0].to(logits.device)
