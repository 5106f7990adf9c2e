"""Recurrent networks: GRU and LSTM. Their hidden state is their only memory of the past.

A stack of PyTorch's own layers. Each step depends only on the token and the state, so rows of any length are read with
a state of constant size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from statewise.backbones.base import Backbone, check_context
from statewise.backbones.powers import Branching, Counted
from statewise.bounds import bounded
from statewise.nn.cache import SLACK, PlaceStore
from statewise.nn.embedding import TokenEmbedding
from statewise.nn.hooks import Hookable, HookPoint
from statewise.nn.initialisation import Init, check_init, init_weights
from statewise.types import Batch, Hidden


@dataclass(frozen=True)
class RecurrentConfig:
    """Fields of `backbone: recurrent`."""

    cell: Literal["gru", "lstm"] = "gru"
    """The recurrent unit: GRU (Cho et al. 2014) or LSTM (Hochreiter & Schmidhuber 1997)."""
    width: int = 128
    """Width D of embeddings and of each layer's hidden state."""
    layers: int = 1
    """Number of layers L; each reads the hidden states of the one below."""
    dropout: float = 0.0
    """Dropout on the embeddings and between layers."""
    tied: bool = False
    """Whether the vocabulary head shares the token embedding's matrix."""
    init: Init = "pytorch"
    """Initialisation of weights. `pytorch`: layers and an untied head uniform in +-1 / sqrt(D); `fan_in`: normal with
    std 1 / sqrt(D), biases 0. In both, embeddings have std 0.5, or 1 / sqrt(D) if tied. A number: the std of all
    matrices, including embeddings; biases 0. Heads that objectives add follow the latter two, unless `objective.init`
    is set."""

    def __post_init__(self) -> None:
        bounded(self, "width", "layers", prefix="backbone.", at_least=1)
        bounded(self, "dropout", prefix="backbone.", at_least=0, below=1)
        check_init(self, "backbone.", "pytorch", "fan_in")


class Rows(NamedTuple):
    """The documents in the rows of a batch, each a separate sequence for the layers."""

    columns: Tensor
    """(N, t) index, over all rows, of each position of each document; padded with 0."""
    lengths: Tensor
    """(N,) on the host."""
    shape: tuple[int, int]
    """(B, T)."""

    @classmethod
    def of(cls, documents: Tensor) -> Rows:
        """From `documents` (B, T); padding counts as another document, whose states are never used."""
        starts = torch.ones_like(documents, dtype=torch.bool)
        starts[:, 1:] = documents[:, 1:] != documents[:, :-1]
        begin = starts.flatten().nonzero()[:, 0]
        lengths = torch.diff(begin, append=begin.new_tensor([documents.numel()]))
        column = torch.arange(int(lengths.max()), device=documents.device)
        columns = torch.where(column < lengths[:, None], begin[:, None] + column, 0)
        return cls(columns, lengths.cpu(), (documents.shape[0], documents.shape[1]))

    def split(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (N, t, D): one document per row."""
        return x.flatten(0, 1)[self.columns]

    def join(self, x: Tensor) -> Tensor:
        """(N, t, D) -> (B, T, D)."""
        inside = (torch.arange(x.shape[1]) < self.lengths[:, None]).to(x.device)
        found = x.new_zeros(self.shape[0] * self.shape[1], x.shape[2])
        return found.index_copy(0, self.columns[inside], x[inside]).view(*self.shape, -1)


class Layer(nn.Module):
    """One recurrent layer. It computes in float32 or better: rounding the state at every token would make it drift."""

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        kind = nn.GRU if config.cell == "gru" else nn.LSTM
        self.dropout = nn.Dropout(config.dropout)
        self.cell = kind(config.width, config.width, batch_first=True)
        # Input and output pass through these modules, so that they can be hooked for whole rows and for single steps.
        self.read, self.hidden = nn.Identity(), nn.Identity()

    def forward(self, x: Tensor, rows: Rows | None) -> Tensor:
        """(B, T, D) -> hidden states (B, T, D); every document of `rows` starts with a zero state."""
        x = self.read(x)
        found = self.cells(x, None)[0] if rows is None else rows.join(self.cells(rows.split(x), None, rows.lengths)[0])
        hidden: Tensor = self.hidden(found)
        return hidden

    def cells(
        self, x: Tensor, state: tuple[Tensor, ...] | None, lengths: Tensor | None = None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Hidden states (B, n, D), starting from `state`: h, and for an LSTM c, (B, D) each; None: zero. `lengths` (B,)
        of the rows, None: all n. Also returns the final state of each row."""
        with torch.autocast(x.device.type, enabled=False):
            x = self.dropout(x).to(self.cell.weight_ih_l0.dtype)
            given = None if state is None else tuple(part[None].contiguous() for part in state)
            start = given if given is None or len(given) > 1 else given[0]
            if lengths is None:
                found, after = self.cell(x, start)
            else:
                packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
                found, after = self.cell(packed, start)
                found, _ = pad_packed_sequence(found, batch_first=True, total_length=x.shape[1])
        return found, tuple(part[0] for part in (after if isinstance(after, tuple) else (after,)))


class Trunk(NamedTuple):
    """The input of the top layer."""

    below: tuple[Tensor, ...]
    """(B, T, D): embedded tokens, and the hidden states of the layers below, the lowest first."""
    rows: Rows | None
    """None: one document per row."""


class Recurrent(Branching, Counted, Hookable):
    """`readout` is the top layer's hidden states; `state` is these followed by those of the layers below, from the top
    down, L D wide. For a GRU this is the complete state; an LSTM also has cell states, which PyTorch does not return
    for every position."""

    Config = RecurrentConfig

    def __init__(
        self, config: RecurrentConfig, *, vocabulary: int, context: int, embedding_of: Backbone | None = None
    ) -> None:
        super().__init__()
        assert embedding_of is None or isinstance(embedding_of, Recurrent)
        self.config = config
        self.width, self.context, self.vocabulary = config.width, context, vocabulary
        self.head_init = None if config.init == "pytorch" else config.init
        self.parts = 1 if config.cell == "gru" else 2
        """Number of vectors in a layer's state: h, and for an LSTM c."""
        shared = None if embedding_of is None else embedding_of.embedding
        self.embedding: TokenEmbedding = TokenEmbedding(vocabulary, config.width, shared)
        self.blocks: Sequence[Layer] = nn.ModuleList(Layer(config) for _ in range(config.layers))  # type: ignore[assignment]
        self.head = None if config.tied else nn.Linear(config.width, vocabulary, bias=False)
        if config.init != "pytorch":
            init_weights(self, config.init)
        # Hidden states lie within (-1, 1), so inputs should be of similar size.
        if self.embedding.weight is not None and isinstance(config.init, str):
            nn.init.normal_(self.embedding.weight, std=0.5 if self.head is not None else config.width**-0.5)

    @property
    def state_width(self) -> int:
        """See `Backbone.state_width`."""
        return self.config.layers * self.width

    def encode(self, batch: Batch) -> Hidden:
        """See `Backbone.encode`; every document starts with a zero state."""
        return self.last(self.trunk(batch))

    def trunk(self, batch: Batch) -> Trunk:
        """See `Branching.trunk`: all layers except the top one."""
        if batch.tokens.shape[1] > self.context:
            raise ValueError(f"a sequence of {batch.tokens.shape[1]} tokens does not fit the context of {self.context}")
        rows = None if batch.documents is None else Rows.of(batch.documents)
        below = [self.embed(batch.tokens)]
        for layer in self.blocks[:-1]:
            below.append(layer(below[-1], rows))
        return Trunk(tuple(below), rows)

    def last(self, trunk: Trunk) -> Hidden:
        """See `Branching.last`."""
        readout = self.blocks[-1](trunk.below[-1], trunk.rows)
        return Hidden(torch.cat([readout, *trunk.below[:0:-1]], dim=-1), readout)

    def trunk_state(self, trunk: Trunk) -> Tensor:
        """See `Branching.trunk_state`."""
        return trunk.below[-1]

    def make_branch(self) -> Branch:
        """A new top layer."""
        return Branch(self.config)

    def extend(self, tokens: Tensor, cache: PlaceStore, counts: np.ndarray | None = None) -> Hidden:
        """See `Backbone.extend`. The cache holds the states after the last positions, so that it can be rewound."""
        check_context(cache, tokens.shape[1], counts, self.context)
        n, told = tokens.shape[1], np.full(len(tokens), tokens.shape[1]) if counts is None else counts
        x, states, hidden = self.embed(tokens), self._states(cache, tokens), []
        trails = []
        for layer, state in zip(self.blocks, states):
            found, trail = self._trail(layer, layer.read(x), state, told, cache.held is not None)
            x = layer.hidden(found)
            hidden.append(x)
            trails.append(trail)
        trail = torch.cat(trails, dim=-1)
        m = trail.shape[1]
        if m < n:
            cache.skip(n - m)
        cache.begin(m, None if counts is None else counts - (n - m))
        cache.append(0, (trail[:, None],))
        cache.advance()
        return Hidden(torch.cat(hidden[::-1], dim=-1), x)

    def _states(self, cache: PlaceStore, tokens: Tensor) -> list[tuple[Tensor, ...]]:
        """The last state in the cache for each layer: (B, D), two of them for an LSTM."""
        last, parts = cache.last(0), self.parts
        if last is None:
            weight: Tensor = self.blocks[0].cell.weight_ih_l0  # type: ignore[assignment]
            last = weight.detach().new_zeros(1, len(tokens), 1, len(self.blocks) * parts * self.width)
        each = torch.split(last[0, :, 0], self.width, dim=-1)
        return [each[layer * parts : (layer + 1) * parts] for layer in range(len(self.blocks))]

    def _trail(
        self, layer: Layer, x: Tensor, state: tuple[Tensor, ...], counts: np.ndarray, held: bool
    ) -> tuple[Tensor, Tensor]:
        """Hidden states (B, n, D), and the whole states (B, m, D or 2D) after the last m columns, m <= n."""
        n = x.shape[1]
        if self.parts == 1:
            if (counts > 0).all():
                found, _ = layer.cells(x, state, None if (counts == n).all() else torch.from_numpy(counts))
                return found, found
            found = x.new_zeros(x.shape, dtype=state[0].dtype)
            some = torch.from_numpy(np.flatnonzero(counts)).to(x.device)
            if len(some):
                lengths = torch.from_numpy(counts[counts > 0])
                found[some] = layer.cells(x[some], tuple(part[some] for part in state), lengths)[0]
            return found, found
        # An LSTM returns its cell state only at the end, so where a rewind is possible it reads token by token.
        whole = 0 if held or not (counts == n).all() else max(0, n - SLACK - 1)
        hidden, states = [], []
        if whole:
            found, state = layer.cells(x[:, :whole], state)
            hidden.append(found)
        for column in range(whole, n):
            found, state = layer.cells(x[:, column : column + 1], state)
            hidden.append(found)
            states.append(torch.cat(state, dim=-1))
        return torch.cat(hidden, dim=1), torch.stack(states, dim=1)

    def embed(self, tokens: Tensor) -> Tensor:
        """(...) -> (..., D)."""
        embedded: Tensor = self.embedding(tokens)
        return embedded

    def head_weight(self) -> Tensor:
        """(V, D)."""
        return self.embedding.matrix if self.head is None else self.head.weight

    def make_cache(self, rows: int) -> PlaceStore:
        """An empty cache, of constant size except for positions since `hold`."""
        return PlaceStore(rows, layers=1, span=1)

    def hook_points(self) -> dict[str, HookPoint]:
        """See `Hookable`: each layer's input and hidden states. A replaced hidden state does not enter the layer's own
        recurrence."""
        points = {"hook_embed": HookPoint(self.embedding)}
        for layer, block in enumerate(self.blocks):
            points[f"blocks.{layer}.hook_resid_pre"] = HookPoint(block.read)
            points[f"blocks.{layer}.hook_resid_post"] = HookPoint(block.hidden)
        return points

    def flops(self, length: int) -> float:
        """See `Counted.flops`: the 3 gates of a GRU or 4 of an LSTM read input and state, D wide each."""
        gates = 3 if self.config.cell == "gru" else 4
        return 2.0 * length * self.config.layers * gates * 2 * self.width**2


class Branch(nn.Module):
    """Another top layer for the trunk of a recurrent network."""

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        self.layer = Layer(config)
        if config.init != "pytorch":
            init_weights(self, config.init)

    def forward(self, trunk: Trunk) -> Tensor:
        """From the result of `Recurrent.trunk` to (B, T, D)."""
        found: Tensor = self.layer(trunk.below[-1], trunk.rows)
        return found
