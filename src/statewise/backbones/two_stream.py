"""The two-stream transformer: at each place one stream keeps the state, the other predicts (State-Prediction
Separation).

Each input token is followed by a `<predict>` token at the same position (equation 3 of the paper); all parameters are
shared. The variants differ in how long the keys of each stream are read, and in the stream that the head reads.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import override

from statewise.backbones.base import Backbone, check_context, prompt_parts, read_in_parts
from statewise.backbones.capabilities import Counted, Fetching, Limitable, Noted, Phased
from statewise.backbones.gpt import GPTConfig
from statewise.backbones.nn.attention import attend, attend_streams, rotary_angles, split_heads
from statewise.backbones.nn.block import FeedForward
from statewise.backbones.nn.hooks import Hookable, HookPoint, block_hook_points, stream_hook_points
from statewise.backbones.nn.layers import Matrix, TokenEmbedding, init_weights, make_norm
from statewise.backbones.nn.masks import (
    INPUT,
    PREDICTION,
    Documents,
    Pattern,
    Reach,
    may_read,
    on_device,
    own_columns,
    stream_mask,
)
from statewise.backbones.nn.stream_cache import StreamCache
from statewise.batch import Batch, Hidden
from statewise.runtime.bounds import bounded

SCORES = 2**24
"""Attention scores that are written out at a time where single weights are asked for."""


class Variant(NamedTuple):
    """The definition of one of the paper's models."""

    streams: tuple[int, ...]
    """The streams at each place."""
    keep: tuple[bool, bool]
    """Whether the keys of inputs, and of predictions, are read without limit; otherwise within the window."""
    state: int
    """The stream whose keys later places read without limit."""
    readout: int
    """The stream that the vocabulary head reads."""


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
    """sps: keys of inputs are read without limit, those of predictions for `window` places; double_memory: both without
    limit; delayed_state: predictions without limit, inputs for `window`; reverse_sps: the same, but the head reads the
    inputs; strict: like sps, but predictions are never read, not even by themselves; standard: only inputs."""
    window: int = 64
    """For how many later places the keys of the limited stream are read; 0: at their own place only."""
    prediction_start: Literal["predict", "own"] = "predict"
    """The initial vector of predictions. predict: the embedding of `<predict>`, as in the paper; own: that plus the
    embedding of the position's input, which is not the paper's model."""
    separate_from: float = 0.0
    """Share of training after which the streams separate; before, the model is trained as `standard`."""
    vocabulary_multiple: int = 1
    """The embedding's number of rows is a multiple of this; the first row after the vocabulary is `<predict>`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.attention != "softmax" or self.positions == "none":
            raise ValueError(
                "backbone two_stream has softmax attention and positions rope or learned: take backbone gpt"
            )
        bounded(self, "window", prefix="backbone.", at_least=0)
        bounded(self, "separate_from", prefix="backbone.", at_least=0, below=1)
        bounded(self, "vocabulary_multiple", prefix="backbone.", at_least=1)
        if self.separate_from and VARIANTS[self.variant].readout == INPUT:
            raise ValueError(
                f"backbone.separate_from needs a variant whose head reads the prediction, not {self.variant}"
            )

    def standard(self) -> TwoStreamConfig | None:
        """See `HasStandard`: inputs only, from the start of training."""
        return None if self.variant == "standard" else replace(self, variant="standard", separate_from=0.0)

    @property
    def reach(self) -> Reach:
        """How long the keys of each stream are read."""
        if self.variant in ("standard", "strict"):
            return Reach(None, -1)
        return Reach(*(None if kept else self.window for kept in VARIANTS[self.variant].keep))


class StreamContext(NamedTuple):
    """What all blocks of a forward pass share."""

    streams: tuple[int, ...]
    """The streams in the residual stream, in order."""
    reach: Reach
    rotation: tuple[Tensor, Tensor] | None
    """The result of `attention.rotary_angles`, broadcastable to (B, H, S, T, W)."""
    documents: Documents | None
    cache: StreamCache | None
    mask: Tensor | None
    """(S * T, K) over the keys that the cache returns, or (B, 1, S * T, K) where rows differ; None: no cache, or it was
    empty."""
    whole: bool
    """Whether to compute queries, keys and values of all streams, even unused ones."""


class StreamAttention(nn.Module):
    """Multi-head self-attention of two streams with one matrix for queries, keys and values."""

    def __init__(self, config: TwoStreamConfig, layer: int) -> None:
        super().__init__()
        self.heads, self.layer, self.dropout = config.heads, layer, config.dropout
        self.in_proj = Matrix(config.width, 3 * config.width, bias=config.bias)
        self.out_proj = nn.Linear(config.width, config.width, bias=config.bias)

    def forward(self, x: Tensor, context: StreamContext, asking: tuple[int, ...]) -> Tensor:
        """(B, S, T, D) -> (B, len(asking), T, D): the attention output of the streams `asking`."""
        query, keys = self._project(x, context, asking)
        B, H, S, T, W = query.shape
        read = None if context.cache is None else context.cache.append_streams(self.layer, keys)
        if read is None or context.mask is None:
            key, value = (torch.stack([pair[which] for _, pair in sorted(keys.items())], dim=2) for which in (0, 1))
            dropout = self.dropout if self.training else 0.0
            pattern = Pattern(asking, context.reach, context.documents)
            summed = attend_streams(query, key, value, pattern, dropout=dropout)
        else:
            mask = context.mask
            if asking != context.streams:  # in the last block
                parts = torch.split(mask, T, dim=-2)
                mask = torch.cat([parts[context.streams.index(stream)] for stream in asking], dim=-2)
            summed = attend(query.reshape(B, H, S * T, W), *read, mask=mask).view(B, H, S, T, W)
        return self.out_proj(summed.permute(0, 2, 3, 1, 4).reshape(B, S, T, H * W))

    def own_weights(self, x: Tensor, context: StreamContext, mask: Tensor) -> Tensor:
        """(B, S, T, D) -> (B, T, H): the weight of each prediction's attention on the input of its place; `mask`
        (..., T, K), the keys that it reads, in the order of streams."""
        with torch.autocast(x.device.type, enabled=False):
            query, keys = self._project(x.to(self.in_proj.weight.dtype), context, (PREDICTION,))
            query, every = query[:, :, 0], torch.cat([key for _, (key, _) in sorted(keys.items())], dim=2)
            B, H, T, W = query.shape
            size = max(1, SCORES // (B * H * every.shape[2]))
            shares = []
            for first in range(0, T, size):
                rows = slice(first, min(first + size, T))
                scores = (query[:, :, rows] @ every.transpose(-1, -2)) * W**-0.5
                weights = scores.masked_fill(~mask[..., rows, :], -torch.inf).softmax(-1)
                # Inputs come first. A copy: a view would keep all weights.
                shares.append(weights.diagonal(offset=first, dim1=-2, dim2=-1).clone())
            return torch.cat(shares, dim=2).transpose(1, 2)

    def _project(
        self, x: Tensor, context: StreamContext, asking: tuple[int, ...]
    ) -> tuple[Tensor, dict[int, tuple[Tensor, Tensor]]]:
        """Queries (B, H, S, T, W) of the streams `asking`, keys and values (B, H, T, W) of those that are read."""
        width, streams = x.shape[-1], context.streams
        read = tuple(stream for stream in streams if context.reach[stream] != -1)
        if context.whole or asking == streams == read:
            query, key, value = split_heads(self.in_proj(x), 3, self.heads, turned=2, rotation=context.rotation)
        else:  # skip unused queries, keys and values
            weight, bias = self.in_proj.weight, self.in_proj.bias
            parts = slice(None, width), slice(width, None)
            projected = [_those_streams(x, streams, those) for those in (asking, read)]
            (query,), (key, value) = (
                split_heads(
                    F.linear(what, weight[part], None if bias is None else bias[part]),
                    count,
                    self.heads,
                    turned=1,
                    rotation=context.rotation,
                )
                for what, part, count in zip(projected, parts, (1, 2))
            )
        kept = streams if context.whole else read
        return query, {stream: (key[:, :, kept.index(stream)], value[:, :, kept.index(stream)]) for stream in read}


class StreamBlock(nn.Module):
    """Pre-norm transformer block over streams; its parameters are named as those of `nn.block.Block`."""

    gathered_alone: ClassVar[bool] = True
    """The block is used only by calling it, so `training.sharding.shard` may gather its parameters by themselves."""

    def __init__(self, config: TwoStreamConfig, layer: int) -> None:
        super().__init__()
        self.attention_norm = make_norm(config.norm, config.width, config.bias, config.norm_eps)
        self.attention = StreamAttention(config, layer)
        self.mlp_norm = make_norm(config.norm, config.width, config.bias, config.norm_eps)
        self.mlp = FeedForward(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, context: StreamContext, asking: tuple[int, ...]) -> Tensor:
        """(B, S, T, D) -> (B, len(asking), T, D)."""
        seen = self.attention(self.attention_norm(x), context, asking)
        x = _those_streams(x, context.streams, asking) + self.dropout(seen)
        return x + self.dropout(self.mlp(self.mlp_norm(x)))


class TwoStream(Limitable, Fetching, Phased, Noted, Counted, Hookable):
    """`state` is the stream that is read without limit, `readout` the one that predicts; for `double_memory`, which
    reads both without limit, the state is the input stream."""

    Config = TwoStreamConfig
    separated: Tensor
    """() bool: whether the streams are separate already; saved with the weights."""

    def __init__(
        self, config: TwoStreamConfig, *, vocabulary: int, context: int, embedding_of: Backbone | None = None
    ) -> None:
        super().__init__()
        # The last of `context` places is `context - 1` places after the first.
        if config.window >= context - 1 and config.window in config.reach:
            raise ValueError(
                f"backbone.window {config.window} limits nothing in a context of {context} tokens: the keys of both "
                f"streams would always be read. Set backbone.window to at most {context - 2}, or "
                "backbone.variant to double_memory"
            )
        assert embedding_of is None or isinstance(embedding_of, TwoStream)
        self.config, self.variant = config, VARIANTS[config.variant]
        self.width, self.context, self.vocabulary = config.width, context, vocabulary
        self.head_width, self.layers = config.width // config.heads, config.layers
        self.head_init, self.norm_eps = None if config.init == "gpt2" else config.init, config.norm_eps
        self.longest: int | None = None
        """For how many later places kept keys are read; None: no limit."""
        self.state_predicts = self.variant.state == self.variant.readout
        rows = -(-(vocabulary + 1) // config.vocabulary_multiple) * config.vocabulary_multiple
        shared = None if embedding_of is None else embedding_of.embedding
        self.embedding: TokenEmbedding = TokenEmbedding(rows, config.width, shared)
        self.positions = nn.Embedding(context, config.width) if config.positions == "learned" else None
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(StreamBlock(config, layer) for layer in range(config.layers))
        self.norm = make_norm(config.norm, config.width, config.bias, config.norm_eps)
        self.head = None if config.tied else Matrix(config.width, vocabulary, bias=False)
        self._separated = config.separate_from == 0  # on the host: reading the buffer would wait for a GPU
        self.register_buffer("separated", torch.tensor(self._separated))
        self.register_load_state_dict_post_hook(_read_separated)  # type: ignore[no-untyped-call]
        init_weights(self, config.init, config.layers)

    @property
    @override
    def streams(self) -> tuple[Literal["input", "prediction"], ...]:
        names: tuple[Literal["input", "prediction"], ...] = ("input", "prediction")
        return tuple(names[stream] for stream in self._now()[0].streams)

    def set_progress(self, fraction: float) -> None:
        """Separates the streams at the configured share of training."""
        self._separated = fraction >= self.config.separate_from
        self.separated.fill_(self._separated)

    @override
    def notes(self, steps: int) -> list[str]:
        if (steps - 1) / steps >= self.config.separate_from:
            return []
        return [
            f"backbone.separate_from {self.config.separate_from:g}: none of {steps:,} steps begins as late, so the "
            "streams are never separated. Set it lower, or train for longer"
        ]

    def _now(self) -> tuple[Variant, Reach]:
        variant, reach = self.variant, self.config.reach
        if not self._separated:
            variant, reach = VARIANTS["standard"], Reach(None, -1)
        return variant, Reach(*(self.longest if span is None else span for span in reach))

    @override
    def encode(self, batch: Batch) -> Hidden:
        variant, _ = self._now()
        asking = tuple(stream for stream in variant.streams if stream in (variant.state, variant.readout))
        return self._hidden(self._encode(batch, asking), asking)

    def readouts(self, batch: Batch) -> Tensor:
        """See `Backbone.readouts`: the last block computes queries and the feed-forward part for the predicting stream
        only."""
        return self._encode(batch, (self._now()[0].readout,))[:, 0]

    @override
    def extend(self, tokens: Tensor, cache: StreamCache, counts: np.ndarray | None = None) -> Hidden:
        variant, _ = self._now()
        asking = tuple(stream for stream in variant.streams if stream in (variant.state, variant.readout))
        return self._hidden(self._extend(tokens, variant.streams, asking, cache, counts), asking)

    def _hidden(self, x: Tensor, asking: tuple[int, ...]) -> Hidden:
        variant, _ = self._now()
        return Hidden(state=x[:, asking.index(variant.state)], readout=x[:, asking.index(variant.readout)])

    def read_prompt(self, tokens: Tensor, cache: StreamCache, counts: np.ndarray | None = None) -> Hidden:
        """See `Backbone.read_prompt`. If inputs never read predictions, reads prompts of one length as inputs only,
        with a prediction at their last place."""
        variant, reach = self._now()
        predictions_read = reach.inputs is not None or reach.predictions is None or reach.predictions > 0
        if predictions_read or len(variant.streams) == 1 or counts is not None:
            streams = len(variant.streams)
            return read_in_parts(lambda part, new: self.extend(part, cache, new), tokens, counts, streams)
        for columns in prompt_parts(tokens.shape[1] - 1, len(tokens)):
            self._extend(tokens[:, columns], (INPUT,), (INPUT,), cache, None)
        return self.extend(tokens[:, -1:], cache)

    @override
    def every_stream(self, tokens: Tensor, cache: StreamCache | None = None) -> tuple[Tensor, int]:
        variant, _ = self._now()
        cache = self.make_cache(len(tokens)) if cache is None else cache
        x = self._extend(tokens, variant.streams, variant.streams, cache, None, whole=True)
        return x, variant.streams.index(variant.readout)

    def limited(self, places: int) -> TwoStream:
        """See `Limitable.limited`: keys without limit are read for `places` later places, as in a window."""
        limited = copy.copy(self)
        limited.longest = places
        return limited

    @override
    def fetches(self, batch: Batch) -> tuple[Tensor, Tensor]:
        x, context = self._entered(batch)
        if PREDICTION not in context.streams:
            raise ValueError("there is no prediction stream: the streams have not separated yet")
        B, _, T, _ = x.shape
        keys = 1 if context.reach.predictions == -1 else 2
        numbers = None if context.documents is None else context.documents.numbers
        mask = stream_mask((PREDICTION,), T, context.reach, numbers, x.device)[..., : keys * T]
        results = []
        for block in self.blocks:
            assert isinstance(block, StreamBlock)
            results.append(block.attention.own_weights(block.attention_norm(x), context, mask))
            x = block(x, context, context.streams)
        return torch.stack(results, dim=2), mask.sum(-1).expand(B, 1, T)[:, 0]

    def _encode(self, batch: Batch, asking: tuple[int, ...]) -> Tensor:
        """(B, len(asking), T, D): all blocks and the norm; `asking`: the output streams."""
        return self._blocks(*self._entered(batch), asking)

    def _entered(self, batch: Batch) -> tuple[Tensor, StreamContext]:
        """The first block's input (B, S, T, D), and the context of all blocks."""
        variant, reach = self._now()
        self.check_length(batch)
        T = batch.tokens.shape[1]
        documents = None if batch.documents is None else Documents(batch.documents)
        place = torch.arange(T, device=batch.tokens.device) if documents is None else documents.positions()
        x, rotation = self._placed(batch.tokens, variant.streams, place, whole=False)
        return x, StreamContext(variant.streams, reach, rotation, documents, None, None, False)

    def _extend(
        self,
        tokens: Tensor,
        streams: tuple[int, ...],
        asking: tuple[int, ...],
        cache: StreamCache,
        counts: np.ndarray | None,
        *,
        whole: bool = False,
    ) -> Tensor:
        """Like `_encode`, for `streams` of tokens after those in the cache."""
        reach = self._now()[1]
        check_context(cache, tokens.shape[1], counts, self.context)
        empty = counts is None and not cache.lengths.any()
        cache.begin(tokens.shape[1], counts)
        place = cache.new_places(tokens.device)
        x, rotation = self._placed(tokens, streams, place, whole)
        mask = None
        if not empty:
            query_stream = on_device(streams, x.device).repeat_interleave(tokens.shape[1])[:, None]
            key_stream, key_place = cache.readable([stream for stream in streams if reach[stream] != -1], x.device)
            rows_differ = key_place.dim() == 2
            query_place = (place.expand(len(tokens), -1) if rows_differ else place).tile(len(streams))
            mask = may_read(query_stream, query_place[..., None], key_stream, key_place[..., None, :], reach)
            if rows_differ:
                mask = self._where_rows_differ(mask, query_place, key_place, len(streams))
        x = self._blocks(x, StreamContext(streams, reach, rotation, None, cache, mask, whole), asking)
        cache.advance()
        return x

    @staticmethod
    def _where_rows_differ(mask: Tensor, query_place: Tensor, key_place: Tensor, streams: int) -> Tensor:
        """(B, 1, S * n, K): masks keys that a row does not have. The query in a column that a row skips reads its own
        key, so that its softmax is not empty."""
        n = query_place.shape[1] // streams
        idle = (query_place < 0)[..., None] & own_columns(n, key_place.shape[1], mask.device).repeat(streams, 1)
        return ((mask & (key_place >= 0)[:, None]) | idle)[:, None]

    def _placed(
        self, tokens: Tensor, streams: tuple[int, ...], place: Tensor, whole: bool
    ) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
        """The first block's input (B, S, T, D): embedded tokens and, in the prediction stream, its initial vector; and
        the rotation of their places (T,) or (B, T)."""
        every = [tokens if stream == INPUT else torch.full_like(tokens, self.vocabulary) for stream in streams]
        x, place = self.embed(torch.stack(every, dim=1)), place.clamp(min=0)
        if self.config.prediction_start == "own" and PREDICTION in streams:
            # The prediction's use of its token is its own: where uses are followed, it is not taken from the input's.
            own = self.embed(tokens[:, None].expand(-1, len(streams), -1))[:, 1:] if whole else x[:, :1]
            x = torch.cat([x[:, :1], x[:, 1:] + own], dim=1)
        rotation = None
        if self.positions is None:
            rotation = rotary_angles(place, self.head_width)
            if place.dim() == 2:  # (B, 1, T, W): one more axis for the streams
                rotation = (rotation[0][:, :, None], rotation[1][:, :, None])
        else:
            place = place[:, None] if place.dim() == 2 else place
            x = x + self.positions(place.expand(x.shape[:-1]) if whole else place)
        return self.dropout(x), rotation

    def _blocks(self, x: Tensor, context: StreamContext, asking: tuple[int, ...]) -> Tensor:
        for block in self.blocks[:-1]:
            x = block(x, context, context.streams)
        return self.norm(self.blocks[-1](x, context, asking))

    def embed(self, tokens: Tensor) -> Tensor:
        """(...) -> (..., D)."""
        embedded: Tensor = self.embedding(tokens)
        return embedded

    def head_weight(self) -> Tensor:
        """The matrix (V, D) of the vocabulary head."""
        return self.embedding.matrix[: self.vocabulary] if self.head is None else self.head.weight

    def flops(self, length: int) -> float:
        """See `Counted.flops`: in the last block, only the readout's stream has queries and a feed-forward part."""
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

    def hook_points(self) -> dict[str, HookPoint]:
        """See `Hookable`. Each stream has its own: `blocks.{l}.input.hook_resid_post`, `blocks.{l}.prediction...`. The
        last block has only the streams in `Hidden`."""
        variant, _ = self._now()
        labels = dict(zip(variant.streams, self.streams))
        asking = {stream: labels[stream] for stream in labels if stream in (variant.state, variant.readout)}
        points: dict[str, HookPoint] = {}
        for layer, block in enumerate(self.blocks):
            last = layer == self.layers - 1
            by_name = block_hook_points(layer, block, self.config.heads)
            by_name |= {"ln_final.hook_out": HookPoint(self.norm)} if last else {}
            points |= stream_hook_points(by_name, block, labels, asking if last else labels)
        return points

    def make_cache(self, rows: int) -> StreamCache:
        """An empty cache, with one layer per block."""
        return StreamCache(rows, self.layers, self._now()[1], self.context)


def _those_streams(x: Tensor, streams: tuple[int, ...], wanted: tuple[int, ...]) -> Tensor:
    """(B, S, T, D) -> (B, len(wanted), T, D): some of the `streams`. Not by a list of places, which would be copied to
    a GPU in every block, and each copy waits for all that it has still to do."""
    if wanted == streams:
        return x
    places = [streams.index(stream) for stream in wanted]
    return torch.cat([x[:, place : place + 1] for place in places], dim=1)


def _read_separated(model: nn.Module, incompatible: object) -> None:
    """After weights have been loaded."""
    assert isinstance(model, TwoStream)
    model._separated = bool(model.separated)


def _pairs(query: int, key: int, length: int, span: int | None) -> int:
    """The number of (query, key) pairs of two streams in a document of `length` places: `length - d` keys lie d places
    before their query."""
    first = 1 if (query, key) == (INPUT, PREDICTION) else 0
    last = length - 1 if span is None else min(span, length - 1)
    distances = max(0, last - first + 1)
    return distances * length - distances * (first + last) // 2
