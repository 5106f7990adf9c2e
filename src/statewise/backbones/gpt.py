"""The plain decoder-only transformer: one tensor serves as state and as readout."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from statewise.backbones.base import Backbone
from statewise.nn.block import Block, BlockConfig, Surroundings, init_weights, rotary_angles
from statewise.nn.cache import KeyValueCache
from statewise.nn.masks import causal_within_documents, positions_within_documents
from statewise.nn.norm import make_norm
from statewise.types import Hidden


@dataclass(frozen=True)
class GPTConfig(BlockConfig):
    """Fields of `backbone: gpt`."""

    tied: bool = True
    """Whether the vocabulary head shares the token embedding's matrix."""


class GPT(Backbone):
    """Pre-norm decoder; `state` and `readout` are the same tensor, after the final norm."""

    Config = GPTConfig

    def __init__(self, config: GPTConfig, *, vocabulary: int, context: int) -> None:
        super().__init__()
        self.width, self.context, self.vocabulary = config.width, context, vocabulary
        self.head_width, self.layers = config.width // config.heads, config.layers
        self.embedding = nn.Embedding(vocabulary, config.width)
        self.positions = nn.Embedding(context, config.width) if config.positions == "learned" else None
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.layers))
        self.norm = make_norm(config.norm, config.width, config.bias)
        self.head = None if config.tied else nn.Linear(config.width, vocabulary, bias=False)
        init_weights(self, config.layers)

    def forward(self, tokens: Tensor, *, documents: Tensor | None = None, cache: KeyValueCache | None = None) -> Hidden:
        """(B, T) -> Hidden of (B, T, D). Raises `ValueError` if the sequence outgrows the context."""
        start = cache.length if cache is not None else 0
        end = start + tokens.shape[1]
        if end > self.context:
            raise ValueError(f"a sequence of {end} tokens does not fit the context of {self.context}")
        mask = None
        place = torch.arange(start, end, device=tokens.device)
        if documents is not None:
            mask, place = causal_within_documents(documents), positions_within_documents(documents)
        x = self.embedding(tokens)
        rotation = None
        if self.positions is None:
            rotation = rotary_angles(place, self.head_width)
        else:
            x = x + self.positions(place)
        x = self.dropout(x)
        around = Surroundings(rotation, mask, cache)
        for block in self.blocks:
            x = block(x, around)
        if cache is not None:
            cache.advance(tokens.shape[1])
        x = self.norm(x)
        return Hidden(state=x, readout=x)

    def embed(self, tokens: Tensor) -> Tensor:
        """(...) -> (..., D)."""
        return self.embedding(tokens)

    def logits(self, readout: Tensor, *, frozen: bool = False) -> Tensor:
        """(..., D) -> (..., V)."""
        weight = self.embedding.weight if self.head is None else self.head.weight
        return F.linear(readout, weight.detach() if frozen else weight)

    def make_cache(self) -> KeyValueCache:
        """An empty cache, a layer a block."""
        return KeyValueCache(self.layers)
