"""Exact attention over one or two streams, a block of queries at a time.

A block reads only the keys that any of its queries may see, so keys excluded by a causal mask, a window or document
boundaries are mostly skipped, and no tensor of queries x keys outlives a block; the backward pass recomputes the
scores. On a CPU this is faster than both a dense mask and the fused kernel (`benchmarks/two_stream_attention.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from statewise.backbones.nn.differentiable_once import differentiable_once, eager
from statewise.backbones.nn.masks import PREDICTION, Pattern, Reach, as_bias, document_starts, may_read

QUERIES = 128
"""Queries per block, over all streams."""


class _Part(NamedTuple):
    """Keys of one stream that a block reads: places [start, end)."""

    stream: int
    start: int
    end: int


class _Block(NamedTuple):
    """Queries of places [start, end) and all keys that they read."""

    start: int
    end: int
    parts: list[_Part]
    bias: list[Tensor | None]
    """For each part the bias of its scores: 0 or -inf, broadcastable to (B, H, S, queries, keys)."""


class _Shape(NamedTuple):
    """What the blocks depend on besides the documents."""

    streams: tuple[int, ...]
    reach: Reach
    key_streams: int
    places: int
    block: int
    dtype: torch.dtype
    device: torch.device


@eager  # otherwise unrolled, block by block, and anew for each length
def attend_blockwise(
    query: Tensor, key: Tensor, value: Tensor, pattern: Pattern, *, block: int | None = None
) -> Tensor:
    """`attention.attend_streams`, with `block` places of queries at a time. Every query must read a key."""
    streams, reach, documents = pattern
    places, block = query.shape[3], block or QUERIES // len(streams)
    shape = _Shape(streams, reach, key.shape[2], places, block, query.dtype, query.device)
    if documents is None:
        blocks = _causal_blocks(shape)
    else:
        numbers = documents.numbers
        blocks = documents.once(shape, lambda: list(_blocks(shape, numbers)))
    result: Tensor = _Blockwise.apply(query, key, value, blocks)  # type: ignore[no-untyped-call]
    return result


@lru_cache(maxsize=32)
def _causal_blocks(shape: _Shape) -> list[_Block]:
    return list(_blocks(shape, None))


def _blocks(shape: _Shape, documents: Tensor | None) -> Iterator[_Block]:
    """The keys that each block of queries reads; masks only where not every query reads all keys of a part."""
    streams, reach, key_streams, places, block, dtype, device = shape
    first = None  # [T] the earliest place of any row's document
    shared = False
    if documents is not None:
        starts = document_starts(documents)
        column = torch.arange(places, device=device)
        first = torch.where(starts, column, 0).cummax(dim=1).values.amin(dim=0).tolist()
        shared = bool(starts[:, 1:].any())
    stream_of = torch.tensor(streams, device=device)[:, None, None]
    for start in range(0, places, block):
        end = min(start + block, places)
        parts, biases = [], []
        for stream in range(key_streams):
            span = reach[stream]
            if span is not None and span < 0:
                continue
            low = 0 if span is None else max(0, start - span)
            low = low if first is None else max(low, first[start])
            high = end - 1 if stream == PREDICTION and PREDICTION not in streams else end
            if low >= high:
                continue
            # In a stream with unlimited reach, earlier places need no mask unless documents start among them.
            cut = max(low, min(start, high)) if span is None and not shared else low
            for part in (_Part(stream, low, cut), _Part(stream, cut, high)):
                if part.start < part.end:
                    parts.append(part)
                    biases.append(_bias(part, start, end, stream_of, reach, documents if shared else None, dtype))
        yield _Block(start, end, parts, biases)


def _bias(
    part: _Part, start: int, end: int, streams: Tensor, reach: Reach, documents: Tensor | None, dtype: torch.dtype
) -> Tensor | None:
    place = torch.arange(start, end, device=streams.device)[:, None]
    keys = torch.arange(part.start, part.end, device=streams.device)
    allowed = may_read(streams, place, part.stream, keys, reach)  # [S, queries, keys]
    if documents is not None:
        same = documents[:, None, start:end, None] == documents[:, None, None, part.start : part.end]
        allowed = (allowed & same)[:, None]  # [B, 1, S, queries, keys]
    elif allowed.all():
        return None
    return as_bias(allowed, dtype)


class _Blockwise(torch.autograd.Function):
    """Softmax over the keys of all parts. Its kernels read and write the dtype of the scores and compute in float32."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, blocks: list[_Block]) -> Tensor:
        output = torch.empty_like(query)
        for one in reversed(blocks):  # most keys first: later blocks then fit into memory that earlier ones freed
            weights = _weights(query, _gather(key, one), one)
            seen = torch.bmm(weights, _gather(value, one))
            places = output[:, :, :, one.start : one.end]
            places.copy_(seen.view(places.shape))
        ctx.save_for_backward(query, key, value)
        ctx.blocks = blocks
        return output

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        query, key, value = ctx.saved_tensors
        (gradient,) = gradients
        exact, scale = torch.promote_types(query.dtype, torch.float32), query.shape[-1] ** -0.5
        to_query = torch.empty_like(query)
        to_key, to_value = (torch.zeros(key.shape, dtype=exact, device=key.device) for _ in range(2))
        for one in reversed(ctx.blocks):
            keys = _gather(key, one)
            queries, incoming = (_queries(whole, one) for whole in (query, gradient))
            weights = _weights(query, keys, one)
            change = torch.bmm(incoming, _gather(value, one).transpose(1, 2))
            change = torch._softmax_backward_data(change, weights, -1, change.dtype)
            _scatter(to_value, torch.bmm(weights.transpose(1, 2), incoming), one)
            places = to_query[:, :, :, one.start : one.end]
            places.copy_(torch.bmm(change, keys).mul_(scale).view(places.shape))
            _scatter(to_key, torch.bmm(change.transpose(1, 2), queries).mul_(scale), one)
        return to_query, to_key.to(key.dtype), to_value.to(value.dtype), None


def _queries(tensor: Tensor, block: _Block) -> Tensor:
    """(B * H, S * queries, W): the block's places of all streams."""
    return tensor[:, :, :, block.start : block.end].flatten(2, 3).flatten(0, 1)


def _gather(tensor: Tensor, block: _Block) -> Tensor:
    """(B * H, keys, W): keys or values of all parts, concatenated."""
    pieces = [tensor[:, :, part.stream, part.start : part.end] for part in block.parts]
    joined = pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=2)
    return joined.reshape(-1, *joined.shape[2:])


def _scatter(into: Tensor, values: Tensor, block: _Block) -> None:
    """Adds (B * H, keys, W) to the places that `_gather` read."""
    whole = values.view(*into.shape[:2], -1, into.shape[-1])
    at = 0
    for part in block.parts:
        size = part.end - part.start
        into[:, :, part.stream, part.start : part.end] += whole[:, :, at : at + size]
        at += size


def _weights(query: Tensor, keys: Tensor, block: _Block) -> Tensor:
    """(B * H, S * queries, keys): the attention of a block's queries."""
    scores = torch.bmm(_queries(query, block), keys.transpose(1, 2)).mul_(query.shape[-1] ** -0.5)
    whole = scores.view(*query.shape[:3], block.end - block.start, -1)
    at = 0
    for part, bias in zip(block.parts, block.bias):
        size = part.end - part.start
        if bias is not None:
            whole[..., at : at + size] += bias
        at += size
    return scores.softmax(-1)
