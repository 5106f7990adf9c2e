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
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence
from typing_extensions import override

from statewise.backbones.base import Backbone, check_context
from statewise.backbones.capabilities import Branch, Branching, Counted
from statewise.backbones.nn.cache import SLACK, PlaceStore
from statewise.backbones.nn.hooks import Hookable, HookPoint
from statewise.backbones.nn.layers import Init, Matrix, TokenEmbedding, check_init, draw_normal, init_weights
from statewise.batch import Batch, Hidden
from statewise.runtime.bounds import bounded


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
        bounded(self, "width", prefix="backbone.", at_least=1)
        bounded(self, "layers", prefix="backbone.", at_least=1, at_most=10_000)
        bounded(self, "dropout", prefix="backbone.", at_least=0, below=1)
        check_init(self, "backbone.", "pytorch", "fan_in")


class Packing(NamedTuple):
    """Sequences inside the rows of a batch, in the order in which PyTorch's layers read packed sequences: the first
    tokens of all sequences, the longest sequence first, then all second tokens, and so on."""

    order: Tensor
    """(M,) the place of each token among the B T places of the batch, M <= B T."""
    sizes: Tensor
    """(t,) on the host: how many sequences have a first token, a second one, and so on."""
    rows: Tensor
    """(N,) the row of each sequence, the longest sequence first."""

    @classmethod
    def of(cls, first: np.ndarray, lengths: np.ndarray, width: int, device: torch.device) -> Packing:
        """The packing of N >= 1 sequences of `lengths` >= 1, from the places `first` on, in rows of `width` tokens."""
        longest_first = np.argsort(-lengths, kind="stable")
        first, lengths = first[longest_first], lengths[longest_first]
        sizes = len(lengths) - np.cumsum(np.bincount(lengths))[:-1]
        step = np.repeat(np.arange(len(sizes)), sizes)
        sequence = np.arange(len(step)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        order, rows = (torch.from_numpy(each).to(device) for each in (first[sequence] + step, first // width))
        return cls(order, torch.from_numpy(sizes), rows)

    @classmethod
    def of_documents(cls, documents: Tensor) -> Packing:
        """The packing of `documents` (B, T); padding counts as another document, whose states are never used."""
        numbers = documents.cpu().numpy()
        first = np.flatnonzero(np.diff(numbers, axis=1, prepend=-1) != 0)
        return cls.of(first, np.diff(first, append=numbers.size), numbers.shape[1], documents.device)

    @classmethod
    def of_rows(cls, counts: np.ndarray, width: int, device: torch.device) -> Packing:
        """The packing of the first `counts[b]` tokens of each row; at least one row must have one."""
        some = np.flatnonzero(counts)
        return cls.of(some * width, counts[some], width, device)

    def pack(self, x: Tensor) -> PackedSequence:
        """(B, T, D) -> the sequences, packed."""
        return PackedSequence(x.flatten(0, 1)[self.order], self.sizes)

    def unpack(self, packed: PackedSequence, shape: torch.Size) -> Tensor:
        """The packed sequences -> (B, T, D); zeros elsewhere."""
        flat = packed.data.new_zeros(shape[0] * shape[1], packed.data.shape[1])
        return flat.index_copy(0, self.order, packed.data).view(*shape[:2], -1)


class Layer(nn.Module):
    """One recurrent layer. It computes in float32 or better: rounding the state at every token would make it drift."""

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        kind = nn.GRU if config.cell == "gru" else nn.LSTM
        self.parts = 1 if config.cell == "gru" else 2
        """Number of vectors in the state: h, and for an LSTM c."""
        self.dropout = nn.Dropout(config.dropout)
        self.cell = kind(config.width, config.width, batch_first=True)
        # Input and output pass through these modules, so that they can be hooked for whole rows and for single steps.
        self.read, self.hidden = nn.Identity(), nn.Identity()

    def forward(self, x: Tensor, packing: Packing | None) -> Tensor:
        """(B, T, D) -> hidden states (B, T, D); every document of `packing` starts with a zero state."""
        with torch.autocast(x.device.type, enabled=False):
            output, _ = self._run(self._entered(self.read(x)), None, packing)
        hidden: Tensor = self.hidden(output)
        return hidden

    def extend(
        self, x: Tensor, state: tuple[Tensor, ...], packing: Packing | None, first: int
    ) -> tuple[Tensor, Tensor]:
        """(B, n, D), after `state`: h, and for an LSTM c, (B, D) each -> hidden states (B, n, D), and the states after
        each token from `first` on, (B, n - first, D), or (B, n - first, 2D) with the LSTM's c. `packing`: of what the
        rows read from there on; None: all."""
        with torch.autocast(x.device.type, enabled=False):
            x, parts = self._entered(self.read(x)), []
            if first:
                output, state = self._run(x[:, :first], state, None)
                parts.append(output)
            rest = x[:, first:]
            output, after = self._run(rest, state, packing)
            hidden: Tensor = self.hidden(torch.cat([*parts, output], dim=1))
            if len(state) == 1:
                return hidden, output
            cells = after[1][:, None] if packing is None and rest.shape[1] == 1 else self._cells(rest, output, *state)
            return hidden, torch.cat([output, cells], dim=-1)

    def _entered(self, x: Tensor) -> Tensor:
        entered: Tensor = self.dropout(x).to(self.cell.weight_ih_l0.dtype)
        return entered

    def _run(
        self, x: Tensor, state: tuple[Tensor, ...] | None, packing: Packing | None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Hidden states (B, n, D), and the state after the last token of each row, or of each sequence of `packing`."""
        if packing is not None and not len(packing.rows):  # nothing is read
            return torch.zeros_like(x), ()
        if self.parts == 2 and state is not None and packing is None and x.shape[1] == 1 and x.device.type == "cpu":
            # `nn.LSTM` rearranges its weights in each call on a CPU, which for one token takes longer than the rest.
            h, c = torch.lstm_cell(x[:, 0], state, *self.cell.parameters())
            return h[:, None], (h, c)
        initial = None
        if state is not None:
            rows = (part if packing is None else part[packing.rows] for part in state)
            initial = tuple(part[None].contiguous() for part in rows)
        start = initial if initial is None or len(initial) > 1 else initial[0]
        if packing is None:
            hidden, after = self.cell(x, start)
        else:
            packed, after = self.cell(packing.pack(x), start)
            hidden = packing.unpack(packed, x.shape)
        return hidden, tuple(part[0] for part in (after if isinstance(after, tuple) else (after,)))

    def _cells(self, x: Tensor, hidden: Tensor, h: Tensor, c: Tensor) -> Tensor:
        """(B, n, D): the cell states of an LSTM after each token, of which PyTorch returns the last alone. Its gates
        follow from the inputs and hidden states, and the rest, c_t = f_t c_(t-1) + i_t g_t, is elementwise."""
        of_input, of_state, input_bias, state_bias = self.cell.parameters()
        before = torch.cat([h[:, None], hidden[:, :-1]], dim=1)
        gates = F.linear(x, of_input, input_bias) + F.linear(before, of_state, state_bias)
        i, f, g, _ = gates.chunk(4, dim=-1)
        new, kept, outputs = i.sigmoid() * g.tanh(), f.sigmoid(), []
        for column in range(x.shape[1]):
            c = torch.addcmul(new[:, column], kept[:, column], c)
            outputs.append(c)
        return torch.stack(outputs, dim=1)


class Trunk(NamedTuple):
    """The input of the top layer."""

    below: tuple[Tensor, ...]
    """(B, T, D): embedded tokens, and the hidden states of the layers below, the lowest first."""
    packing: Packing | None
    """The packing of the documents; None: one document per row."""


class Recurrent(Branching, Counted, Hookable):
    """`readout` is the top layer's hidden states; `state` is these followed by those of the layers below, from the top
    down, L D wide. For a GRU this is the complete state; an LSTM also has cell states, which PyTorch does not return
    for every position."""

    Config = RecurrentConfig

    def __init__(
        self, config: RecurrentConfig, *, vocabulary: int, context: int, embedding_of: Backbone | None = None
    ) -> None:
        super().__init__()
        # A GPU's recurrent layers would round products to 10 bits, at every token, whatever the precision asked for.
        torch.backends.cudnn.allow_tf32 = False
        assert embedding_of is None or isinstance(embedding_of, Recurrent)
        self.config = config
        self.width, self.context, self.vocabulary = config.width, context, vocabulary
        self.head_init = None if config.init == "pytorch" else config.init
        shared = None if embedding_of is None else embedding_of.embedding
        self.embedding: TokenEmbedding = TokenEmbedding(vocabulary, config.width, shared)
        self.blocks: Sequence[Layer] = nn.ModuleList(Layer(config) for _ in range(config.layers))  # type: ignore[assignment]
        self.head = None if config.tied else Matrix(config.width, vocabulary, bias=False)
        if config.init != "pytorch":
            init_weights(self, config.init)
        # Hidden states lie within (-1, 1), so inputs should be of similar size.
        if self.embedding.weight is not None and isinstance(config.init, str):
            draw_normal(self.embedding.weight, std=0.5 if self.head is not None else config.width**-0.5)

    @property
    @override
    def state_width(self) -> int:
        return self.config.layers * self.width

    def encode(self, batch: Batch) -> Hidden:
        """See `Backbone.encode`; every document starts with a zero state."""
        return self.last(self.trunk(batch))

    def trunk(self, batch: Batch) -> Trunk:
        """See `Branching.trunk`: all layers except the top one."""
        self.check_length(batch)
        packing = None if batch.documents is None else Packing.of_documents(batch.documents)
        below = [self.embed(batch.tokens)]
        for layer in self.blocks[:-1]:
            below.append(layer(below[-1], packing))
        return Trunk(tuple(below), packing)

    @override
    def last(self, trunk: Trunk) -> Hidden:
        readout = self.blocks[-1](trunk.below[-1], trunk.packing)
        return Hidden(torch.cat([readout, *trunk.below[:0:-1]], dim=-1), readout)

    @override
    def trunk_state(self, trunk: Trunk) -> Tensor:
        return trunk.below[-1]

    def make_branch(self) -> RecurrentBranch:
        """A new top layer."""
        return RecurrentBranch(self.config)

    def extend(self, tokens: Tensor, cache: PlaceStore, counts: np.ndarray | None = None) -> Hidden:
        """See `Backbone.extend`. The cache holds the states after the last positions, so that it can be rewound."""
        return self.extend_trunk(tokens, cache, counts)[0]

    @override
    def extend_trunk(
        self, tokens: Tensor, cache: PlaceStore, counts: np.ndarray | None = None
    ) -> tuple[Hidden, Tensor]:
        check_context(cache, tokens.shape[1], counts, self.context)
        embedded = self.embed(tokens)
        hidden = extend_layers(self.blocks, embedded, cache, counts)
        state = torch.cat(hidden[::-1], dim=-1)
        return Hidden(state, hidden[-1]), hidden[-2] if len(hidden) > 1 else embedded

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

    def branch_flops(self, length: int) -> float:
        """See `Branching.branch_flops`: all layers are alike."""
        return self.flops(length) / self.config.layers


class RecurrentBranch(Branch):
    """Another top layer for the trunk of a recurrent network."""

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        self.layer = Layer(config)
        if config.init != "pytorch":
            init_weights(self, config.init)

    def forward(self, trunk: Trunk) -> Tensor:
        """Maps the result of `Recurrent.trunk` to (B, T, D)."""
        hidden: Tensor = self.layer(trunk.below[-1], trunk.packing)
        return hidden

    @override
    def make_cache(self, rows: int) -> PlaceStore:
        return PlaceStore(rows, layers=1, span=1)

    @override
    def extend(self, x: Tensor, cache: PlaceStore, counts: np.ndarray | None = None) -> Tensor:
        return extend_layers([self.layer], x, cache, counts)[0]


def extend_layers(layers: Sequence[Layer], x: Tensor, cache: PlaceStore, counts: np.ndarray | None) -> list[Tensor]:
    """Reads `x` (B, n, D), the first `counts[b]` of row b or all, by layers of which each reads the one before. The
    cache holds their states one after the other. Returns the hidden states of each layer, (B, n, D)."""
    n, first, packing = x.shape[1], 0, None
    states, kept = _last_states(layers, cache, x), []
    if len(states[0]) > 1 and cache.held is None:  # no row can be rewound to these tokens: no need for cell states
        first = max(0, (n if counts is None else int(counts.min(initial=n))) - SLACK - 1)
    rest = None if counts is None else counts - first
    if rest is not None and (rest < n - first).any():
        packing = Packing.of_rows(rest, n - first, x.device)
    hidden = []
    for layer, state in zip(layers, states):
        x, after = layer.extend(x, state, packing, first)
        hidden.append(x)
        kept.append(after)
    if first:
        cache.skip(first)
    cache.begin(n - first, rest)
    cache.append(0, (torch.cat(kept, dim=-1)[:, None],))
    cache.advance()
    return hidden


def _last_states(layers: Sequence[Layer], cache: PlaceStore, x: Tensor) -> list[tuple[Tensor, ...]]:
    """The last state in the cache for each layer: h, and for an LSTM c, (B, D) each."""
    last, parts, width = cache.last(0), layers[0].parts, x.shape[-1]
    if last is None:
        weight: Tensor = layers[0].cell.weight_ih_l0  # type: ignore[assignment]
        last = weight.detach().new_zeros(1, len(x), 1, len(layers) * parts * width)
    each = torch.split(last[0, :, 0], width, dim=-1)
    return [each[layer * parts : (layer + 1) * parts] for layer in range(len(layers))]
