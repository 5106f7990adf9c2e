"""The two-stream transformer: one slot of a place keeps the state, the other predicts (State-Prediction Separation).

Behind each input token comes a `<predict>` token of the same position (equation 3 of the paper); all parameters are
shared. The variants differ in how long the keys of each slot are read, and in which slot the next token is read off.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from statewise.backbones.base import Backbone, Limitable, prompt_parts
from statewise.backbones.gpt import GPTConfig
from statewise.nn.attention import attend
from statewise.nn.block import FeedForward, init_weights, rotary_angles, rotate
from statewise.nn.cache import KeyValueCache
from statewise.nn.masks import positions_within_documents
from statewise.nn.norm import make_norm
from statewise.nn.stream_attention import attend_streams
from statewise.nn.stream_cache import StreamCache
from statewise.nn.streams import INPUT, PREDICTION, Reach, may_read
from statewise.types import Hidden


class Variant(NamedTuple):
    """What one of the paper's models is made of."""

    streams: tuple[int, ...]
    """Slots of a place."""
    keep: tuple[bool, bool]
    """Whether the keys of inputs, of predictions, are read for ever; otherwise for the length of the window."""
    state: int
    """The stream whose vectors later places may rest on for ever."""
    readout: int
    """The stream that the next token is read off."""


VARIANTS = {
    "standard": Variant((INPUT,), (True, False), INPUT, INPUT),
    "sps": Variant((INPUT, PREDICTION), (True, False), INPUT, PREDICTION),
    "double_memory": Variant((INPUT, PREDICTION), (True, True), INPUT, PREDICTION),
    "delayed_state": Variant((INPUT, PREDICTION), (False, True), PREDICTION, PREDICTION),
    "reverse_sps": Variant((INPUT, PREDICTION), (False, True), PREDICTION, INPUT),
    "strict": Variant((INPUT, PREDICTION), (True, False), INPUT, PREDICTION),
}


@dataclass(frozen=True)
class TwoStreamConfig(GPTConfig):
    """Fields of `backbone: two_stream`."""

    expansion: float = 3
    """Hidden width of the feed-forward part, as a multiple of the width (rounded up to a multiple of 8)."""
    variant: Literal["standard", "sps", "double_memory", "delayed_state", "reverse_sps", "strict"] = "sps"
    """sps: inputs are read for ever, predictions for `window` places; double_memory: both for ever; delayed_state:
    predictions for ever, inputs for `window`; reverse_sps: the same, but read off the inputs; strict: as sps, but
    predictions are read by nobody, not even themselves; standard: inputs alone."""
    window: int = 64
    """For how many places onwards the keys of the slot that is not kept are read; 0: at their own place alone."""
    separate_from: float = 0.0
    """Share of training after which the streams part; until then the model is trained as `standard`."""
    vocabulary_multiple: int = 1
    """The embedding has a multiple of so many rows; the first one behind the vocabulary is `<predict>`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.window < 0:
            raise ValueError(f"backbone.window must be at least 0, not {self.window}")
        if not 0 <= self.separate_from < 1:
            raise ValueError(f"backbone.separate_from must be at least 0 and below 1, not {self.separate_from}")
        if self.separate_from and VARIANTS[self.variant].readout == INPUT:
            raise ValueError(
                f"backbone.separate_from goes with a variant that has a prediction slot to read off, not {self.variant}"
            )
        if self.vocabulary_multiple < 1:
            raise ValueError(f"backbone.vocabulary_multiple must be at least 1, not {self.vocabulary_multiple}")

    @property
    def reach(self) -> Reach:
        """How long the keys of each stream are read."""
        if self.variant in ("standard", "strict"):
            return Reach(None, -1)
        return Reach(*(None if kept else self.window for kept in VARIANTS[self.variant].keep))


class Around(NamedTuple):
    """What every block of one forward pass shares."""

    streams: tuple[int, ...]
    """Those in the residual stream, in order."""
    reach: Reach
    rotation: tuple[Tensor, Tensor] | None
    """As `rotary_angles` gives it, broadcastable to (B, H, S, T, W)."""
    documents: Tensor | None
    cache: StreamCache | None
    mask: Tensor | None
    """(S * T, K) over what the cache returns; None: there is nothing in it yet, or there is no cache."""
    whole: bool
    """Whether all slots are mapped to all of queries, keys and values, used or not."""


class StreamAttention(nn.Module):
    """Multi-head self-attention of two streams with one matrix for queries, keys and values."""

    def __init__(self, config: TwoStreamConfig, layer: int) -> None:
        super().__init__()
        self.heads, self.layer, self.dropout = config.heads, layer, config.dropout
        self.inward = nn.Linear(config.width, 3 * config.width, bias=config.bias)
        self.outward = nn.Linear(config.width, config.width, bias=config.bias)

    def forward(self, x: Tensor, around: Around, asking: tuple[int, ...]) -> Tensor:
        """(B, S, T, D) -> (B, len(asking), T, D): what the slots of `asking` see."""
        query, keys = self._project(x, around, asking)
        B, H, S, T, W = query.shape
        read = None if around.cache is None else around.cache.append_streams(self.layer, keys)
        if read is None or around.mask is None:
            key, value = (torch.stack([pair[which] for _, pair in sorted(keys.items())], dim=2) for which in (0, 1))
            dropout = self.dropout if self.training else 0.0
            found = attend_streams(
                query, key, value, streams=asking, reach=around.reach, documents=around.documents, dropout=dropout
            )
        else:
            rows = [around.streams.index(stream) for stream in asking]
            mask = around.mask.view(len(around.streams), T, -1)[rows].reshape(S * T, -1)
            found = attend(query.reshape(B, H, S * T, W), *read, mask=mask).view(B, H, S, T, W)
        return self.outward(found.permute(0, 2, 3, 1, 4).reshape(B, S, T, H * W))

    def _project(
        self, x: Tensor, around: Around, asking: tuple[int, ...]
    ) -> tuple[Tensor, dict[int, tuple[Tensor, Tensor]]]:
        """Queries (B, H, S, T, W) of the slots that ask, keys and values (B, H, T, W) of those that are ever read."""
        width, streams = x.shape[-1], around.streams
        read = tuple(stream for stream in streams if around.reach[stream] != -1)
        if around.whole or asking == streams == read:
            query, key, value = self._heads(self.inward(x), 3)
        else:  # what is not asked or not read is not computed
            weight, bias = self.inward.weight, self.inward.bias
            parts = slice(None, width), slice(width, None)
            given = [
                x[:, [streams.index(stream) for stream in those]] if those != streams else x for those in (asking, read)
            ]
            (query,), (key, value) = (
                self._heads(F.linear(what, weight[part], None if bias is None else bias[part]), count)
                for what, part, count in zip(given, parts, (1, 2))
            )
        if around.rotation is not None:
            query, key = rotate(query, around.rotation), rotate(key, around.rotation)
        kept = streams if around.whole else read
        return query, {stream: (key[:, :, kept.index(stream)], value[:, :, kept.index(stream)]) for stream in read}

    def _heads(self, mixed: Tensor, count: int) -> tuple[Tensor, ...]:
        """(B, S, T, count * D) -> `count` times (B, H, S, T, W)."""
        B, S, T, _ = mixed.shape
        return mixed.view(B, S, T, count, self.heads, -1).permute(3, 0, 4, 1, 2, 5).contiguous().unbind()


class StreamBlock(nn.Module):
    """Pre-norm transformer block over streams; its parameters are named as those of `nn.block.Block`."""

    def __init__(self, config: TwoStreamConfig, layer: int) -> None:
        super().__init__()
        self.attention_norm = make_norm(config.norm, config.width, config.bias)
        self.attention = StreamAttention(config, layer)
        self.mlp_norm = make_norm(config.norm, config.width, config.bias)
        self.mlp = FeedForward(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, around: Around, asking: tuple[int, ...]) -> Tensor:
        """(B, S, T, D) -> (B, len(asking), T, D)."""
        seen = self.attention(self.attention_norm(x), around, asking)
        if asking != around.streams:
            x = x[:, [around.streams.index(stream) for stream in asking]]
        x = x + self.dropout(seen)
        return x + self.dropout(self.mlp(self.mlp_norm(x)))


class TwoStream(Limitable):
    """`state` is the stream that is kept, `readout` the one that predicts; `double_memory` keeps both, and its state is
    the input's."""

    Config = TwoStreamConfig
    separated: Tensor
    """() bool: whether the streams have parted yet; kept with the weights."""

    def __init__(
        self, config: TwoStreamConfig, *, vocabulary: int, context: int, embedding_of: Backbone | None = None
    ) -> None:
        super().__init__()
        # The last of `context` places is read `context - 1` places behind the first.
        if config.window >= context - 1 and config.window in config.reach:
            raise ValueError(
                f"backbone.window {config.window} is no window in a context of {context} tokens: the keys of both "
                f"slots would be read for ever. Set --backbone.window to at most {context - 2}, or --backbone.variant "
                "to double_memory"
            )
        self.config, self.variant = config, VARIANTS[config.variant]
        self.width, self.context, self.vocabulary = config.width, context, vocabulary
        self.head_width, self.layers = config.width // config.heads, config.layers
        self.longest: int | None = None
        """For how many places onwards kept keys are read; None: for ever."""
        self.state_predicts = self.variant.state == self.variant.readout
        # The owner is kept out of our parameters, which would otherwise hold its matrix a second time.
        self.lender = (embedding_of,)
        rows = -(-(vocabulary + 1) // config.vocabulary_multiple) * config.vocabulary_multiple
        self.embedding = nn.Embedding(rows, config.width) if embedding_of is None else None
        self.positions = nn.Embedding(context, config.width) if config.positions == "learned" else None
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(StreamBlock(config, layer) for layer in range(config.layers))
        self.norm = make_norm(config.norm, config.width, config.bias)
        self.head = None if config.tied else nn.Linear(config.width, vocabulary, bias=False)
        self.register_buffer("separated", torch.tensor(config.separate_from == 0))
        init_weights(self, config.layers)

    @property
    def slots(self) -> tuple[str, ...]:
        """See `Backbone.slots`."""
        return tuple(("input", "prediction")[stream] for stream in self._now()[0].streams)

    def at(self, share: float) -> None:
        """Told how much of training is done: parts the streams when it is time."""
        self.separated.fill_(share >= self.config.separate_from)

    def _now(self) -> tuple[Variant, Reach]:
        variant, reach = self.variant, self.config.reach
        if not self.separated:
            variant, reach = VARIANTS["standard"], Reach(None, -1)
        return variant, Reach(*(self.longest if span is None else span for span in reach))

    def forward(self, tokens: Tensor, *, documents: Tensor | None = None, cache: KeyValueCache | None = None) -> Hidden:
        """(B, T) -> Hidden of (B, T, D). Raises `ValueError` if the sequence outgrows the context."""
        variant, reach = self._now()
        asking = tuple(stream for stream in variant.streams if stream in (variant.state, variant.readout))
        x = self._run(self._slots(tokens, variant.streams), variant.streams, asking, reach, documents, cache)
        return Hidden(state=x[:, asking.index(variant.state)], readout=x[:, asking.index(variant.readout)])

    def readouts(self, tokens: Tensor, *, documents: Tensor | None = None) -> Tensor:
        """(B, T) -> (B, T, D): the last block gives queries and feed-forward part to the predicting stream alone."""
        variant, reach = self._now()
        x = self._run(self._slots(tokens, variant.streams), variant.streams, (variant.readout,), reach, documents, None)
        return x[:, 0]

    def read_prompt(self, tokens: Tensor, cache: KeyValueCache) -> Hidden:
        """See `Backbone.read_prompt`. Where inputs never read predictions the whole prompt is read as inputs alone,
        and one prediction slot at its end."""
        variant, reach = self._now()
        if reach.inputs is not None or reach.predictions is None or reach.predictions > 0 or len(variant.streams) == 1:
            return super().read_prompt(tokens, cache)
        assert isinstance(cache, StreamCache)
        for part in prompt_parts(tokens[:, :-1], 1) if tokens.shape[1] > 1 else ():
            self._run(self._slots(part, (INPUT,)), (INPUT,), (INPUT,), reach, None, cache)
        return self(tokens[:, -1:], cache=cache)

    def all_slots(self, tokens: Tensor, *, cache: KeyValueCache | None = None) -> tuple[Tensor, int]:
        """See `Backbone.all_slots`."""
        variant, reach = self._now()
        streams = variant.streams
        x = self._run(self._slots(tokens, streams), streams, streams, reach, None, cache, whole=True)
        return x, streams.index(variant.readout)

    def limited(self, places: int) -> TwoStream:
        """See `Limitable.limited`: what would be read for ever is read for `places` places."""
        other = copy.copy(self)
        other.longest = places - 1
        return other

    def _slots(self, tokens: Tensor, streams: tuple[int, ...]) -> Tensor:
        """(B, T) -> (B, S, T, D): embedded inputs and, where there are prediction slots, `<predict>`."""
        every = [tokens if stream == INPUT else torch.full_like(tokens, self.vocabulary) for stream in streams]
        return self.embed(torch.stack(every, dim=1))

    def _run(
        self, x: Tensor, streams: tuple[int, ...], asking: tuple[int, ...], reach: Reach, documents: Tensor | None,
        cache: KeyValueCache | None, *, whole: bool = False,
    ) -> Tensor:  # fmt: skip
        """(B, S, T, D) -> (B, len(asking), T, D): all blocks and the norm; `asking`: slots wanted of the last."""
        assert cache is None or isinstance(cache, StreamCache)
        start = cache.length if cache is not None else 0
        end = start + x.shape[2]
        if end > self.context:
            raise ValueError(f"a sequence of {end} tokens does not fit the context of {self.context}")
        place = torch.arange(start, end, device=x.device)
        if documents is not None:
            place = positions_within_documents(documents)
        rotation = None
        if self.positions is None:
            rotation = rotary_angles(place, self.head_width)
            if documents is not None:  # (B, 1, T, W): one more axis for the streams
                rotation = (rotation[0][:, :, None], rotation[1][:, :, None])
        else:
            if documents is not None:
                place = place[:, None]
            x = x + self.positions(place.expand(x.shape[:-1]) if whole else place)
        x = self.dropout(x)
        mask = None
        if cache is not None and start:
            new = {stream: end - start for stream in streams if reach[stream] != -1}
            key_stream, key_place = cache.readable(new, x.device)
            query_stream = torch.tensor(streams, device=x.device).repeat_interleave(end - start)[:, None]
            mask = may_read(query_stream, place.repeat(len(streams))[:, None], key_stream, key_place, reach)
        around = Around(streams, reach, rotation, documents, cache, mask, whole)
        for block in self.blocks[:-1]:
            x = block(x, around, streams)
        x = self.norm(self.blocks[-1](x, around, asking))
        if cache is not None:
            cache.advance(end - start)
        return x

    def embed(self, tokens: Tensor) -> Tensor:
        """(...) -> (..., D)."""
        return F.embedding(tokens, self._matrix())

    def _matrix(self) -> Tensor:
        """(rows, D): what tokens are embedded by, here or at the lender."""
        if self.embedding is not None:
            return self.embedding.weight
        (lender,) = self.lender
        assert isinstance(lender, TwoStream)
        return lender._matrix()

    def head_weight(self) -> Tensor:
        """(V, D)."""
        return self._matrix()[: self.vocabulary] if self.head is None else self.head.weight

    def flops(self, length: int) -> float:
        """See `Backbone.flops`: of the last block, the slots that are not read off give keys and values alone."""
        variant, reach = self._now()
        streams, D = variant.streams, self.width
        read = [stream for stream in streams if reach[stream] != -1]
        feed = (3 if self.config.mlp == "swiglu" else 2) * D * self.config.hidden_width
        total = 0.0
        for layers, asking in ((self.layers - 1, streams), (1, (variant.readout,))):
            weights = len(asking) * (2 * D * D + feed) + len(read) * 2 * D * D
            pairs = sum(_pairs(query, key, length, reach[key]) for query in asking for key in read)
            total += layers * (length * weights + 2 * D * pairs)
        return 2.0 * total

    def make_cache(self) -> StreamCache:
        """An empty cache, a layer a block."""
        return StreamCache(self.layers, self._now()[1], self.context)


def _pairs(query: int, key: int, length: int, span: int | None) -> int:
    """How many keys of one stream all queries of another read in a document of so many places: `length - d` of them lie
    d places before their query."""
    first = 1 if (query, key) == (INPUT, PREDICTION) else 0
    last = length - 1 if span is None else min(span, length - 1)
    distances = max(0, last - first + 1)
    return distances * length - distances * (first + last) // 2
