"""What a backbone is: a batch in, a state and a readout at every position out.

Every backbone reads a batch, embeds tokens, says its head's matrix and makes a cache. What only some can do besides is
a type of its own in `powers.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from statewise.nn.cache import Cache
from statewise.types import Batch, Hidden


class Backbone(nn.Module, ABC):
    """A sequence model without a loss. Knows nothing of tasks, of objectives or of several devices."""

    Config: ClassVar[type]
    """Dataclass of its recipe fields."""

    width: int
    """Width D of embeddings and of `Hidden.readout`."""
    context: int
    """Longest sequence it can read."""
    vocabulary: int
    """Number V of token ids."""
    state_predicts: bool = True
    """Whether the vocabulary head reads the next token off the state itself."""

    @property
    def state_width(self) -> int:
        """Width E of `Hidden.state`. Where it is more than D, the first D features are what heads read."""
        return self.width

    def state_for_head(self, state: Tensor) -> Tensor:
        """(..., E) -> (..., D): what heads of width D read of a state."""
        return state[..., : self.width]

    @abstractmethod
    def encode(self, batch: Batch) -> Hidden:
        """Reads a batch: `Hidden` of every position. What documents and padding mean to it, it knows itself. Raises
        `ValueError` if the rows outgrow the context."""

    @abstractmethod
    def extend(self, tokens: Tensor, cache: Any, counts: np.ndarray | None = None) -> Hidden:
        """Reads `tokens` (B, n) behind what the cache holds, of row b the first `counts[b]`; None: all. `Hidden` of
        what a row does not read has no meaning. Raises `ValueError` if a row outgrows the context."""

    @abstractmethod
    def embed(self, tokens: Tensor) -> Tensor:
        """(...) token ids -> (..., D), without positions."""

    @abstractmethod
    def head_weight(self) -> Tensor:
        """(V, D): the matrix of the vocabulary head, a linear map without bias."""

    @abstractmethod
    def make_cache(self, rows: int) -> Cache:
        """An empty cache for so many rows."""

    def logits(self, readout: Tensor, *, frozen: bool = False) -> Tensor:
        """(..., D) -> (..., V). `frozen`: no gradient reaches the head's own parameters."""
        weight = self.head_weight()
        return F.linear(readout, weight.detach() if frozen else weight)


class BackboneFactory(Protocol):
    """Makes a new backbone at every call; an objective may call it twice."""

    def __call__(self, *, extra_tokens: int = 0, embedding_of: Backbone | None = None, **fields: Any) -> Backbone:
        """`extra_tokens` ids of the objective's own come behind those of the task. With `embedding_of` tokens are
        embedded by that backbone's matrix. `fields` replace fields of the backbone's config; every backbone has
        `layers` and `tied`, whether the vocabulary head is the embedding's matrix."""


def plain_batch(tokens: Tensor, documents: Tensor | None = None) -> Batch:
    """`tokens` (B, T) as a batch without padding or targets; `documents` (B, T) if several share a row, 0: padding."""
    everything = torch.ones_like(tokens, dtype=torch.bool)
    real = everything if documents is None else documents != 0
    return Batch(tokens, ~everything, real, documents, (0, 0))


def check_context(cache: Cache, new: int, counts: np.ndarray | None, context: int) -> None:
    """Raises `ValueError` if a row outgrows the context by reading `new` tokens, or `counts[b]`."""
    longest = int((cache.lengths + (new if counts is None else counts)).max(initial=0))
    if longest > context:
        raise ValueError(f"a sequence of {longest} tokens does not fit the context of {context}")
