"""Min-p sampling: draws from the tokens that are not much less likely than the most likely one."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from statewise.decoding.noise import gumbel
from statewise.decoding.sample import StepByStep
from statewise.runtime.bounds import bounded
from torch import Tensor


@dataclass(frozen=True)
class MinPConfig:
    """Fields of `--decoder min_p:MinP`."""

    share: float = 0.1
    """A token is drawn only if its probability is at least this share of the most likely token's."""
    seed: int = 0
    """Seed of the draws."""

    def __post_init__(self) -> None:
        bounded(self, "share", above=0, at_most=1)
        bounded(self, "seed", at_least=0)


class MinP(StepByStep):
    """Draws by Gumbel noise, which depends on seed, row and position alone, whatever else is in the batch."""

    Config = MinPConfig
    draws = True

    def noise(self, rows: np.ndarray, positions: np.ndarray, vocabulary: int) -> np.ndarray:
        """(B, V)."""
        return gumbel(self.config.seed, rows, positions, vocabulary)

    def choose(self, logits: Tensor, noise: np.ndarray | None) -> Tensor:
        """The largest sum of logit and noise among the tokens that are kept, (B,)."""
        given = logits.cpu().double()
        kept = given >= given.amax(-1, keepdim=True) + math.log(self.config.share)
        return (given.masked_fill(~kept, -torch.inf) + torch.from_numpy(noise)).argmax(-1)

    def close(self, logits: Tensor, noise: np.ndarray | None, tokens: Tensor, error: float) -> Tensor:
        """Always: then speculative decoding looks at every choice with the exact logits."""
        return torch.ones(len(logits), dtype=torch.bool)
