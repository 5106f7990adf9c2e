"""Moving averages: each layer sees the past through an exponential average of every feature."""

from dataclasses import dataclass

import torch
from statewise.backbones.base import Backbone, check_context
from statewise.backbones.nn.cache import PlaceStore
from statewise.backbones.nn.layers import TokenEmbedding, init_weights
from statewise.data_types import Hidden
from torch import nn


@dataclass(frozen=True)
class MovingAveragesConfig:
    """Fields of `backbone: moving_averages`."""

    width: int = 128
    """Width D of embeddings and averages."""
    layers: int = 2
    """Number of layers L."""
    tied: bool = True
    """Whether the vocabulary head shares the token embedding's matrix."""


class Layer(nn.Module):
    """m_t = a m_(t-1) + (1 - a) x_t in every feature; its output is x_t + MLP(m_t)."""

    def __init__(self, width):
        super().__init__()
        self.rate = nn.Parameter(torch.linspace(-3.0, 3.0, width))
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x, average, starts):
        """`x` (B, n, D), the averages before it (B, D), and where a document starts (B, n) -> output and averages."""
        rate, found = self.rate.sigmoid(), []
        for t in range(x.shape[1]):
            average = rate * average.masked_fill(starts[:, t, None], 0.0) + (1 - rate) * x[:, t]
            found.append(average)
        averages = torch.stack(found, dim=1)
        return x + self.mlp(averages), averages


class MovingAverages(Backbone):
    """`readout` is the last layer's output, normalised; `state` adds the averages of all layers, the whole memory."""

    Config = MovingAveragesConfig

    def __init__(self, config, *, vocabulary, context, embedding_of=None):
        super().__init__()
        self.config, self.width, self.vocabulary, self.context = config, config.width, vocabulary, context
        shared = None if embedding_of is None else embedding_of.embedding
        self.embedding = TokenEmbedding(vocabulary, config.width, shared)
        self.layers = nn.ModuleList(Layer(config.width) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.head = None if config.tied else nn.Linear(config.width, vocabulary, bias=False)
        init_weights(self, "fan_in")

    @property
    def state_width(self):
        return (1 + self.config.layers) * self.width

    def encode(self, batch):
        self.check_length(batch)
        starts = torch.zeros_like(batch.tokens, dtype=torch.bool)
        if batch.documents is not None:
            starts[:, 1:] = batch.documents[:, 1:] != batch.documents[:, :-1]
        return self.read(batch.tokens, None, starts)[0]

    def extend(self, tokens, cache, counts=None):
        check_context(cache, tokens.shape[1], counts, self.context)
        last = cache.last(0)  # None, or (1, B, 1, L D)
        hidden, averages = self.read(tokens, last, torch.zeros_like(tokens, dtype=torch.bool))
        cache.begin(tokens.shape[1], counts)
        cache.append(0, (averages[:, None],))
        cache.advance()
        return hidden

    def read(self, tokens, last, starts):
        """`Hidden`, and the averages of all layers (B, n, L D)."""
        x, averages = self.embed(tokens), []
        if last is None:
            last = x.new_zeros(len(tokens), self.config.layers * self.width)
        for layer, average in zip(self.layers, last.reshape(len(tokens), -1).split(self.width, dim=1)):
            x, found = layer(x, average, starts)
            averages.append(found)
        readout = self.norm(x)
        return Hidden(torch.cat([readout, *averages], dim=-1), readout), torch.cat(averages, dim=-1)

    def embed(self, tokens):
        return self.embedding(tokens)

    def head_weight(self):
        return self.embedding.matrix if self.head is None else self.head.weight

    def make_cache(self, rows):
        return PlaceStore(rows, layers=1, span=1)  # of each row the last averages, and enough earlier ones to rewind
