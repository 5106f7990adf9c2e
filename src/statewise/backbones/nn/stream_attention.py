"""Attention over two streams as one function, which chooses its implementation by measured speed."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from statewise.backbones.nn.attention import attend
from statewise.backbones.nn.blockwise import attend_blockwise
from statewise.backbones.nn.streams import Pattern, Reach, may_read, on_device, stream_mask

FLEX_FROM = 512
"""Shortest rows for FlexAttention on a GPU: it compiles a kernel for each length, and short rows have many lengths."""
FLEX_WIDTH = 16
"""Least width of a head for FlexAttention."""
FLEX_STEP = 128
"""Rows are padded to multiples of this many places, the size of its tiles, so that there are few lengths ..."""
FLEX_SHAPES = 128
"""... and at most this many kernels are kept. Beyond that PyTorch would go on without one, and store all scores."""


def attend_streams(query: Tensor, key: Tensor, value: Tensor, pattern: Pattern, *, dropout: float = 0.0) -> Tensor:
    """Attention of the queries of some streams to the keys of all streams that `pattern` lets them read.

    `query` (B, H, S, T, W), with S indexing `pattern.streams`; `key`, `value` (B, H, N, T, W), N = 1 if there are only
    inputs. Returns (B, H, S, T, W).
    """
    if dropout or torch.compiler.is_exporting():  # an exported model takes any length, and the other ways depend on it
        return attend_dense(query, key, value, pattern, dropout=dropout)
    if query.device.type != "cuda":
        return attend_blockwise(query, key, value, pattern)
    attend_cuda = attend_flex if takes_flex(query.shape[3], query.shape[4]) else attend_dense
    return attend_cuda(query, key, value, pattern)


def takes_flex(places: int, width: int) -> bool:
    """Whether a GPU takes FlexAttention for rows of so many places and heads of this width."""
    return places >= FLEX_FROM and width >= FLEX_WIDTH


def attend_dense(query: Tensor, key: Tensor, value: Tensor, pattern: Pattern, *, dropout: float = 0.0) -> Tensor:
    """`attend_streams` with a dense mask: the reference for the other implementations."""
    (streams, reach, documents), places = pattern, query.shape[3]
    if documents is None:
        make = stream_mask if torch.compiler.is_exporting() else _shared_mask
        mask = make(streams, places, reach, device=query.device)
    else:
        mask = documents.once(
            ("streams", streams, reach), lambda: stream_mask(streams, places, reach, documents.numbers)
        )
    mask = mask[..., : key.shape[2] * places]
    flat = (part.flatten(2, 3) for part in (query, key, value))
    return attend(*flat, mask=mask, dropout=dropout).view(query.shape)


def attend_flex(query: Tensor, key: Tensor, value: Tensor, pattern: Pattern) -> Tensor:
    """`attend_streams` by PyTorch's FlexAttention, for GPUs: it skips tiles that the predicate leaves empty. Streams
    are concatenated: interleaved, far fewer tiles would be empty."""
    (streams, reach, documents), (rows, heads, asking, real, width) = pattern, query.shape
    padding = -real % FLEX_STEP
    places = real + padding
    if padding:  # later places, which no real query reads
        query, key, value = (F.pad(part, (0, 0, 0, padding)) for part in (query, key, value))
    if documents is None:
        mask = _shared_tiles(streams, key.shape[2], places, reach, query.device)
    else:
        shape, numbers = (streams, key.shape[2], places, reach), F.pad(documents.numbers, (0, padding))
        mask = documents.once(("tiles", *shape), lambda: _tiles(*shape, numbers, query.device))
    flat = (part.flatten(2, 3) for part in (query, key, value))
    attention = _flex(query.device.type)
    if torch.compiler.is_compiling():  # as part of a larger whole
        found: Tensor = attention(*flat, block_mask=mask)
    else:
        with torch._dynamo.config.patch(recompile_limit=FLEX_SHAPES):
            found = attention(*flat, block_mask=mask)
    return found.view(rows, heads, asking, places, width)[:, :, :, :real]


@lru_cache(maxsize=4)
def _shared_mask(streams: tuple[int, ...], places: int, reach: Reach, device: torch.device) -> Tensor:
    return stream_mask(streams, places, reach, device=device)


@lru_cache(maxsize=16)
def _shared_tiles(streams: tuple[int, ...], keys: int, places: int, reach: Reach, device: torch.device) -> Any:
    return _tiles(streams, keys, places, reach, None, device)


def _tiles(
    streams: tuple[int, ...], keys: int, places: int, reach: Reach, documents: Tensor | None, device: torch.device
) -> Any:
    """The tiles that FlexAttention visits, and the predicate inside them."""
    from torch.nn.attention.flex_attention import create_block_mask

    stream_of = on_device(streams, device)

    def allowed(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        found = may_read(stream_of[query // places], query % places, key // places, key % places, reach)
        if documents is None:
            return found
        return found & (documents[row, query % places] == documents[row, key % places])

    batch = None if documents is None else len(documents)
    return create_block_mask(allowed, batch, None, len(streams) * places, keys * places, device=device)


@lru_cache(maxsize=2)
def _flex(device: str) -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False) if device == "cuda" else flex_attention
