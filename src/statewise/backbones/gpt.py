"""The plain decoder-only transformer: one tensor serves as state and as readout."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from statewise.backbones.base import Backbone, Branching
from statewise.nn.block import Block, BlockConfig, Surroundings, init_weights, rotary_angles
from statewise.nn.cache import KeyValueCache
from statewise.nn.masks import positions_within_documents
from statewise.nn.norm import make_norm
from statewise.types import Hidden


@dataclass(frozen=True)
class GPTConfig(BlockConfig):
    """Fields of `backbone: gpt`."""

    tied: bool = True
    """Whether the vocabulary head shares the token embedding's matrix."""


class GPT(Branching):
    """Pre-norm decoder; `state` and `readout` are the same tensor, after the final norm."""

    Config = GPTConfig

    def __init__(
        self, config: GPTConfig, *, vocabulary: int, context: int, embedding_of: Backbone | None = None
    ) -> None:
        super().__init__()
        self.config = config
        self.width, self.context, self.vocabulary = config.width, context, vocabulary
        self.head_width, self.layers = config.width // config.heads, config.layers
        # The owner is kept out of our parameters, which would otherwise hold its matrix a second time.
        self.lender = (embedding_of,)
        self.embedding = nn.Embedding(vocabulary, config.width) if embedding_of is None else None
        self.positions = nn.Embedding(context, config.width) if config.positions == "learned" else None
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.layers))
        self.norm = make_norm(config.norm, config.width, config.bias)
        self.head = None if config.tied else nn.Linear(config.width, vocabulary, bias=False)
        init_weights(self, config.layers)
        linears = [part for part in self.blocks.modules() if isinstance(part, nn.Linear)]
        self.block_weights = sum(linear.weight.numel() for linear in linears)

    def forward(self, tokens: Tensor, *, documents: Tensor | None = None, cache: KeyValueCache | None = None) -> Hidden:
        """(B, T) -> Hidden of (B, T, D). Raises `ValueError` if the sequence outgrows the context."""
        return self.last(self.trunk(tokens, documents=documents, cache=cache))

    def trunk(
        self,
        tokens: Tensor,
        *,
        documents: Tensor | None = None,
        cache: KeyValueCache | None = None,
        by_row: bool = False,
    ) -> tuple[Tensor, Surroundings]:
        """(B, T) -> the residual stream (B, T, D) that the last block reads, and what goes with it. `by_row`: learned
        positions are looked up for each row, which they need not be."""
        start = cache.length if cache is not None else 0
        end = start + tokens.shape[1]
        if end > self.context:
            raise ValueError(f"a sequence of {end} tokens does not fit the context of {self.context}")
        x, around = self.enter(tokens, start, documents, cache, by_row)
        for block in self.blocks[:-1]:
            x = block(x, around)
        return x, around

    def enter(
        self,
        tokens: Tensor,
        start: int,
        documents: Tensor | None,
        cache: KeyValueCache | None,
        by_row: bool = False,
    ) -> tuple[Tensor, Surroundings]:
        """What the first block reads of `tokens` (B, T), the first of which is at the place `start`: (B, T, D), and
        what goes with it."""
        place = torch.arange(start, start + tokens.shape[1], device=tokens.device)
        if documents is not None:
            place = positions_within_documents(documents)
        x = self.embed(tokens)
        rotation = None
        if self.positions is None:
            rotation = rotary_angles(place, self.head_width)
        else:
            x = x + self.positions(place.expand_as(tokens) if by_row else place)
        return self.dropout(x), Surroundings(rotation, documents, cache)

    def last(self, trunk: tuple[Tensor, Surroundings]) -> Hidden:
        """The last block and the norm."""
        x, around = trunk
        x = self.norm(self.blocks[-1](x, around))
        if around.cache is not None:
            around.cache.advance(x.shape[1])
        return Hidden(state=x, readout=x)

    def all_slots(self, tokens: Tensor, *, cache: KeyValueCache | None = None) -> tuple[Tensor, int]:
        """See `Backbone.all_slots`."""
        return self.last(self.trunk(tokens, cache=cache, by_row=True)).readout[:, None], 0

    def make_branch(self) -> Branch:
        """A new last block with its norm."""
        return Branch(self.config)

    def embed(self, tokens: Tensor) -> Tensor:
        """(...) -> (..., D)."""
        return F.embedding(tokens, self._matrix())

    def _matrix(self) -> Tensor:
        """(V, D): what tokens are embedded by, here or at the lender."""
        if self.embedding is not None:
            return self.embedding.weight
        (lender,) = self.lender
        assert isinstance(lender, GPT)
        return lender._matrix()

    def head_weight(self) -> Tensor:
        """(V, D)."""
        return self._matrix() if self.head is None else self.head.weight

    def make_cache(self) -> KeyValueCache:
        """An empty cache, a layer a block."""
        return KeyValueCache(self.layers, self.context)

    def flops(self, length: int) -> float:
        """See `Backbone.flops`. Position t (from 0) scores t + 1 keys and sums as many values, of width D in all."""
        pairs = length * (length + 1) // 2
        return 2.0 * (length * self.block_weights + self.layers * pairs * 2 * self.width)


class Branch(nn.Module):
    """One more last block and norm for a GPT's trunk."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.block = Block(config, config.layers - 1)
        self.norm = make_norm(config.norm, config.width, config.bias)
        init_weights(self, config.layers)

    def forward(self, trunk: tuple[Tensor, Surroundings]) -> Tensor:
        """What `GPT.trunk` gives -> (B, T, D)."""
        x, around = trunk
        return self.norm(self.block(x, around))
