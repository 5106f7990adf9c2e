"""The backbone interface: from a batch to a state and a readout at every position.

Every backbone reads a batch, embeds tokens, has a vocabulary head and makes a cache. What only some can do is a type in
`capabilities.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from statewise.backbones.nn.masks import mirrored_columns
from statewise.batch import Hidden

if TYPE_CHECKING:
    from statewise.backbones.nn.cache import Cache
    from statewise.backbones.nn.layers import Init
    from statewise.batch import Batch

PROMPT_POSITIONS = 4096
"""Positions of prompts read at a time, counted over rows and streams. This bounds a pass's memory besides keys and
values; fewer at a time are slower."""


class Backbone(nn.Module, ABC):
    """A sequence model without a loss, independent of tasks, objectives and distributed training.

    It is constructed as `cls(config, *, vocabulary, context, embedding_of)`: `config`, an instance of `Config`;
    `vocabulary`, the number V of token ids, those that an objective adds included; `context`, the longest sequence;
    `embedding_of`, a backbone of the same class whose embedding matrix it shares, or None. `Config` must have
    the fields `layers` and `tied` (whether the vocabulary head is the embedding matrix), which objectives with a second
    backbone set.
    """

    Config: ClassVar[type]
    """Dataclass of its recipe fields."""

    width: int
    """Width D of embeddings and of `Hidden.readout`."""
    context: int
    """Longest sequence it can read."""
    vocabulary: int
    """Number V of token ids."""
    state_predicts: bool = True
    """Whether the vocabulary head predicts from the state, by `state_for_head`; False: from a readout of its own."""
    head_init: Init | None = None
    """Initialisation of heads that objectives add, unless they set their own; None: each head's default."""
    norm_eps: float = 1e-5
    """Epsilon of the norms of such heads."""

    @property
    def device(self) -> torch.device:
        """The device of the weights, where inputs must be."""
        return next(self.parameters()).device

    @property
    def state_width(self) -> int:
        """Width E of `Hidden.state`. If it is more than D, heads read the first D features."""
        return self.width

    def state_for_head(self, state: Tensor) -> Tensor:
        """(..., E) -> (..., D): the features of a state that heads of width D read."""
        return state[..., : self.width]

    @abstractmethod
    def encode(self, batch: Batch) -> Hidden:
        """`Hidden` at every position of a batch. Handles documents and padding itself. Raises `ValueError` if the rows
        exceed the context."""

    @abstractmethod
    def extend(self, tokens: Tensor, cache: Any, counts: np.ndarray | None = None) -> Hidden:
        """Reads `tokens` (B, n) after those in the cache, the first `counts[b]` of row b; None: all. `Hidden` at unread
        tokens is meaningless. Raises `ValueError` if a row exceeds the context."""

    def readouts(self, batch: Batch) -> Tensor:
        """`Hidden.readout` of `encode`, (B, T, D), for callers that do not need the state, which may save work."""
        return self.encode(batch).readout

    def read_prompt(self, tokens: Tensor, cache: Any, counts: np.ndarray | None = None) -> Hidden:
        """Reads `tokens` (B, T) into the cache, the first `counts[b]` >= 1 of row b; None: all. Returns `Hidden` of
        each row's last position only, (B, 1, ...), which may save work."""
        return read_in_parts(lambda part, new: self.extend(part, cache, new), tokens, counts)

    @abstractmethod
    def embed(self, tokens: Tensor) -> Tensor:
        """(...) token ids -> (..., D), without positions."""

    @abstractmethod
    def head_weight(self) -> Tensor:
        """(V, D): the matrix of the vocabulary head, a linear map without bias."""

    @abstractmethod
    def make_cache(self, rows: int) -> Cache:
        """An empty cache for this many rows."""

    def check_length(self, batch: Batch) -> None:
        """Raises `ValueError` if the rows of a batch exceed the context."""
        _check_length(batch.tokens.shape[1], self.context)

    def logits(self, readout: Tensor, *, frozen: bool = False) -> Tensor:
        """(..., D) -> (..., V). `frozen`: no gradient reaches the head's own parameters."""
        weight = self.head_weight()
        return F.linear(readout, weight.detach() if frozen else weight)


class BackboneFactory(Protocol):
    """Makes a new backbone at each call; an objective may call it twice."""

    def __call__(self, *, extra_tokens: int = 0, embedding_of: Backbone | None = None, **fields: Any) -> Backbone:
        """`extra_tokens` ids for the objective follow those of the task. With `embedding_of`, shares that backbone's
        embedding matrix. `fields` replace fields of the backbone's config; every backbone has `layers` and `tied`,
        whether the vocabulary head is the embedding matrix."""


def encode_backwards(encoder: Backbone, batch: Batch) -> Hidden:
    """`Hidden` at each position after the tokens from the end of its document back to it, that position included."""
    mirror = mirrored_columns(batch.real)
    documents = None if batch.documents is None else batch.documents.gather(1, mirror)
    # A reversed row does not continue the previous one.
    mirrored = batch._replace(tokens=batch.tokens.gather(1, mirror), documents=documents, continuation=None)
    hidden = encoder.encode(mirrored)
    return Hidden(*(part.gather(1, mirror[:, :, None].expand_as(part)) for part in hidden))


def check_context(cache: Cache, new: int, counts: np.ndarray | None, context: int) -> None:
    """Raises `ValueError` if a row exceeds the context by reading `new` tokens, or `counts[b]`."""
    _check_length(int((cache.lengths + (new if counts is None else counts)).max(initial=0)), context)


def _check_length(longest: int, context: int) -> None:
    if longest > context:
        raise ValueError(f"a sequence of {longest} tokens does not fit the context of {context}")


def prompt_parts(length: int, rows: int, streams: int = 1) -> list[slice]:
    """The slices of prompt columns to read in turn."""
    size = max(32, PROMPT_POSITIONS // max(1, streams * rows))
    return [slice(first, min(first + size, length)) for first in range(0, length, size)]


def read_in_parts(
    extend: Callable[[Tensor, np.ndarray | None], Hidden],
    tokens: Tensor,
    counts: np.ndarray | None = None,
    streams: int = 1,
) -> Hidden:
    """`Backbone.read_prompt` by `extend`, which reads further tokens (B, n), the first `counts[b]` of row b or all, as
    `Backbone.extend` does."""
    hidden: Hidden | None = None
    for columns in prompt_parts(tokens.shape[1], len(tokens), streams):
        part = tokens[:, columns]
        if counts is None:
            hidden = Hidden(*(each[:, -1:] for each in extend(part, None)))
            continue
        new = np.clip(counts - columns.start, 0, part.shape[1])
        last = Hidden(*(last_columns(each, new) for each in extend(part, new)))
        read = torch.from_numpy(new > 0).to(tokens.device)[:, None, None]
        hidden = last if hidden is None else Hidden(*(torch.where(read, *pair) for pair in zip(last, hidden)))
    assert hidden is not None
    return hidden


def last_columns(x: Tensor, counts: np.ndarray) -> Tensor:
    """Column `counts[b] - 1` of each row b of `x` (B, n, ...), or the first if the count is 0: (B, 1, ...)."""
    column = torch.from_numpy(np.maximum(counts, 1) - 1).to(x.device)
    return x[torch.arange(len(column), device=column.device), column][:, None]
