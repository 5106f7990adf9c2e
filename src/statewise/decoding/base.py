"""How a trained model is asked: the predictor, the powers it may have beyond that, and the decoder.

A decoder is handed a predictor and sees no network. Powers that only some models have are types of
their own, so that a decoder can say which models it needs instead of trying.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from statewise.types import Batch, Completion, Hidden

if TYPE_CHECKING:
    from torch import Tensor


class Predictor(ABC):
    """Predicts the next token of B sequences at once, read so far by a cursor that only it understands."""

    vocabulary: int
    """Number V of token ids."""
    context: int
    """Longest sequence it can read."""

    @abstractmethod
    def start(self, prompts: Tensor) -> tuple[Any, Tensor]:
        """Reads `prompts` (B, T), T >= 1. Returns a cursor and the next token's logits (B, V)."""

    @abstractmethod
    def extend(self, cursor: Any, tokens: Tensor) -> Tensor:
        """Reads `tokens` (B, n) behind what the cursor has read. Returns logits (B, n, V) after each."""

    @abstractmethod
    def rewind(self, cursor: Any, positions: int) -> None:
        """Forgets the last `positions` tokens."""

    @abstractmethod
    def reorder(self, cursor: Any, rows: Tensor) -> None:
        """Row b becomes what row `rows[b]` was; `rows` (B',) int64."""

    @abstractmethod
    def states(self, batch: Batch) -> Hidden:
        """Belief states of every position, (B, T, D)."""

    @abstractmethod
    def logits(self, batch: Batch) -> Tensor:
        """(B, T, V): the next token's logits after every position, teacher-forced."""


class Drafter(ABC):
    """A predictor that can guess several tokens ahead without running its backbone."""

    @abstractmethod
    def draft(self, cursor: Any, token: Tensor, steps: int) -> tuple[Tensor, Tensor]:
        """Guesses what follows `token` (B,), which itself comes next after what the cursor has read.

        Returns the most likely tokens (B, steps) and the logits they were taken from (B, steps, V).
        """


class GoalScorer(ABC):
    """A predictor that can say how well a sequence leads to a goal."""

    @abstractmethod
    def score_goal(self, sequences: Tensor, goal: Tensor) -> Tensor:
        """Log-likelihood (B,) of `goal` (G,) behind each of `sequences` (B, T)."""


class Decoder(ABC):
    """Turns prompts into completions."""

    Config: ClassVar[type]
    """Dataclass of its fields."""

    @abstractmethod
    def decode(self, predictor: Predictor, prompts: np.ndarray, *, limit: int, end: int | None) -> list[Completion]:
        """Completes `prompts` (B, T), all of one length, by at most `limit` tokens, or up to the token `end`.

        Raises `ValueError` if the predictor lacks a power that this decoder needs.
        """
