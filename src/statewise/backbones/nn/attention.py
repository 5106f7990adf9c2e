"""Heads with rotary positions (Su et al. 2021), and attention over one or two streams, each as one function that
chooses its implementation by measured speed.

The first half of a turned vector holds the first coordinates of its W/2 planes, the second half the second coordinates.
On a CPU the fused kernel's backward pass is slow on short sequences; explicit matrix products are faster there.
`benchmarks/attention.py` and `benchmarks/two_stream_attention.py` measure the thresholds below.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from typing_extensions import override

from statewise.backbones.nn.blockwise import attend_blockwise
from statewise.backbones.nn.differentiable_once import differentiable_once
from statewise.backbones.nn.masks import (
    INPUT,
    Documents,
    Pattern,
    Reach,
    as_bias,
    causal,
    causal_bias,
    may_read,
    on_device,
    stream_mask,
)

ROTARY_BASE = 10000.0
"""The planes of rotary positions turn by angles of 1 to nearly 1 / `ROTARY_BASE` per position."""


def rotary_angles(positions: Tensor, head_width: int) -> tuple[Tensor, Tensor]:
    """Factors of a vector and of its half-swapped copy for `positions` (T,) or (B, T): (T, W) or (B, 1, T, W) each."""
    rates = ROTARY_BASE ** (-torch.arange(0, head_width, 2, device=positions.device, dtype=torch.float32) / head_width)
    angles = positions[..., None].float() * rates
    if positions.dim() == 2:
        angles = angles[:, None]
    cosine, sine = angles.cos(), angles.sin()
    return torch.cat((cosine, cosine), dim=-1), torch.cat((-sine, sine), dim=-1)


def split_heads(
    mixed: Tensor, count: int, heads: int, *, turned: int, rotation: tuple[Tensor, Tensor] | None
) -> tuple[Tensor, ...]:
    """Splits (B, ..., T, count * D) into `count` tensors (B, H, ..., T, W), and rotates the first `turned` of them by
    `rotation`, of `rotary_angles`, each part broadcastable to their shape; None: no rotation.

    In training on a CPU all heads are written once, in the layout of attention's products, and their gradients go the
    same way back; differentiable once.
    """
    apart = mixed.view(*mixed.shape[:-1], count, heads, mixed.shape[-1] // (count * heads))
    if rotation is None or not turned:
        return heads_first(apart).contiguous().unbind()
    straight, swapped = (part.to(mixed.dtype) for part in rotation)
    if written_by_hand(mixed):
        split: tuple[Tensor, ...] = _SplitHeads.apply(apart, straight, swapped, turned)  # type: ignore[no-untyped-call]
        return split
    parts = heads_first(apart).contiguous()
    turning, others = torch.split(parts, [turned, count - turned])  # two slices would each have a gradient of the whole
    turned_heads = turning * straight + halves_swapped(turning) * swapped
    return *turned_heads.unbind(), *others.unbind()


def halves_swapped(heads: Tensor) -> Tensor:
    """(..., W) with its halves in the opposite order.

    Compiled for a CPU, it is a product with a permutation, exact for finite numbers unless PyTorch is told to round
    those of products: the kernel of a roll would compute the place of each value, and so would all that is fused with
    it (`benchmarks/compiled_blocks.py`).
    """
    width = heads.shape[-1]
    if torch.compiler.is_compiling() and heads.device.type == "cpu":
        return heads @ torch.eye(width, dtype=heads.dtype).roll(width // 2, dims=0)
    return heads.roll(width // 2, dims=-1)


def written_by_hand(mixed: Tensor) -> bool:
    """Whether the gradients of the heads are. `benchmarks/heads.py` measures the gain; in bfloat16, narrow halves of
    heads take longer, and `torch.compile` fuses what autograd records."""
    training = mixed.requires_grad and torch.is_grad_enabled() and not torch.compiler.is_compiling()
    return training and mixed.device.type == "cpu" and mixed.dtype != torch.bfloat16


def heads_first(apart: Tensor) -> Tensor:
    """(B, ..., T, N, H, W) -> (N, B, H, ..., T, W), a view."""
    last = apart.dim() - 1
    return apart.permute(last - 2, 0, last - 1, *range(1, last - 2), last)


class _SplitHeads(torch.autograd.Function):
    @staticmethod
    @override
    def forward(ctx: Any, apart: Tensor, straight: Tensor, swapped: Tensor, turned: int) -> tuple[Tensor, ...]:
        ctx.save_for_backward(straight, swapped)
        ctx.shape, ctx.turned = apart.shape, turned
        heads = heads_first(apart)
        result = heads.new_empty(heads.shape)
        turn(heads[:turned], straight, swapped, out=result[:turned])
        result[turned:].copy_(heads[turned:])
        return result.unbind()

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        """The opposite turn."""
        straight, swapped = ctx.saved_tensors
        result = gradients[0].new_empty(ctx.shape)
        for place, (gradient, part) in enumerate(zip(gradients, heads_first(result))):
            if place < ctx.turned:
                turn(gradient, straight, -swapped, out=part)
            else:
                part.copy_(gradient)
        return result, None, None, None


def turn(heads: Tensor, straight: Tensor, swapped: Tensor, out: Tensor) -> None:
    """Writes rotated vectors (..., W) into `out`, by halves: that is faster than with a swapped copy."""
    half = heads.shape[-1] // 2
    torch.mul(heads, straight, out=out)
    out[..., :half].addcmul_(heads[..., half:], swapped[..., :half])
    out[..., half:].addcmul_(heads[..., :half], swapped[..., half:])


WRITTEN_OUT_UP_TO = {torch.bfloat16: 512, torch.float32: 64}
"""The longest key sequence, by dtype, for which a CPU uses explicit products when gradients are needed."""
SOFTMAX_FROM = 16
"""Fewest keys whose softmax uses a CPU's vector instructions: ten keys take eight times as long as sixteen."""
KEPT_ONCE_FROM = 32
"""Fewest keys from which the gradient of a softmax in bfloat16 is faster in bfloat16 than by way of float32: 0.25 to
0.67 of the time. With 24 keys it takes longer."""


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Tensor | None = None,
    documents: Documents | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Scaled dot-product attention.

    `query` (B, H, Q, W); `key`, `value` (B, H, T, W) with T >= Q; `mask` boolean, broadcastable to
    (B, H, Q, T), True where attention is allowed, or None for causal attention whose last query sees
    all keys, within `documents` if given (then Q = T). Returns (B, H, Q, W).
    """
    if documents is not None:
        if query.device.type == "cpu" and not dropout:
            query, key, value = (part[:, :, None] for part in (query, key, value))
            return attend_blockwise(query, key, value, Pattern((INPUT,), Reach(None, -1), documents))[:, :, 0]
        mask = documents.mask() if query.device.type == "cpu" else documents.bias(query.dtype)
    short = key.shape[-2] <= WRITTEN_OUT_UP_TO.get(query.dtype, 0)
    if short and query.device.type == "cpu" and torch.is_grad_enabled():
        return attend_written_out(query, key, value, mask=mask, dropout=dropout)
    return attend_fused(query, key, value, mask=mask, dropout=dropout)


def attend_written_out(
    query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None = None, dropout: float = 0.0
) -> Tensor:
    """Product, softmax, product; shapes as in `attend`."""
    *rows, queries, width = query.shape
    keys = key.shape[-2]
    missing = max(0, SOFTMAX_FROM - keys)
    if mask is None:
        bias = causal_bias(queries, keys, query.device, query.dtype)
    else:
        bias = as_bias(mask, query.dtype).expand(*rows, queries, keys).reshape(-1, queries, keys)
    if missing:
        key, value = (F.pad(each, (0, 0, 0, missing)) for each in (key, value))
        bias = F.pad(bias, (0, missing), value=-torch.inf)
    flat_query, flat_key, flat_value = (t.reshape(-1, t.shape[-2], width) for t in (query, key, value))
    # baddbmm scales and masks while it multiplies, which saves a pass over the scores.
    scores = torch.baddbmm(bias, flat_query, flat_key.transpose(1, 2), alpha=width**-0.5)
    narrow = scores.dtype == torch.bfloat16 and scores.device.type == "cpu" and scores.shape[-1] >= KEPT_ONCE_FROM
    if narrow and scores.requires_grad and not torch.compiler.is_compiling():
        weights: Tensor = _Softmax.apply(scores)  # type: ignore[no-untyped-call]
    else:
        weights = softmax(scores)
    if dropout:
        weights = F.dropout(weights, dropout)
    return torch.bmm(weights, flat_value).view(*rows, queries, width)


def softmax(scores: Tensor) -> Tensor:
    """Softmax over the last dimension, in the type of `scores`. It is computed in float32: more exact, and on a CPU
    three times as fast as on short rows of bfloat16."""
    return scores.softmax(dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(scores.dtype)


class _Softmax(torch.autograd.Function):
    """`softmax`, which keeps the weights for its backward pass that the next product keeps, too. Autograd would also
    keep them in float32: with 256 keys a third of what a block keeps."""

    @staticmethod
    @override
    def forward(ctx: Any, scores: Tensor) -> Tensor:
        weights = softmax(scores)
        ctx.save_for_backward(weights)
        return weights

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """With weights w and their gradient g: w (g - sum(g w)); the kernel computes in float32."""
        (weights,) = ctx.saved_tensors
        return torch._softmax_backward_data(gradient, weights, -1, weights.dtype)


def attend_fused(
    query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None = None, dropout: float = 0.0
) -> Tensor:
    """PyTorch's fused kernel; shapes as in `attend`."""
    queries, keys = query.shape[-2], key.shape[-2]
    if queries == 1 and query.device.type == "cpu" and query.dtype == torch.bfloat16:
        # The kernel takes twice as long for one query as for two, which use matrix-matrix products.
        twice = query.expand(*query.shape[:-2], 2, -1)
        return F.scaled_dot_product_attention(twice, key, value, attn_mask=mask, dropout_p=dropout)[..., :1, :]
    whole = mask is None and bool(queries == keys)  # of symbolic sizes, which torch.export has, equality is no bool
    if mask is None and not whole and queries > 1:  # the kernel's own causal flag aligns the first query instead
        mask = causal(queries, keys, query.device)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout, is_causal=whole)


FLEX_FROM = 512
"""Shortest rows for FlexAttention on a GPU: it compiles a kernel for each length, and short rows have many lengths."""
FLEX_WIDTH = 16
"""Least width of a head for FlexAttention."""
FLEX_STEP = 128
"""Rows are padded to multiples of this many places, the size of FlexAttention's tiles, so that there are few
lengths."""
FLEX_SHAPES = 128
"""Most kernels that are kept. Beyond that PyTorch would compute without a kernel and store all scores."""


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
        summed: Tensor = attention(*flat, block_mask=mask)
    else:
        with torch._dynamo.config.patch(recompile_limit=FLEX_SHAPES):
            summed = attention(*flat, block_mask=mask)
    return summed.view(rows, heads, asking, places, width)[:, :, :, :real]


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
        readable = may_read(stream_of[query // places], query % places, key // places, key % places, reach)
        if documents is None:
            return readable
        return readable & (documents[row, query % places] == documents[row, key % places])

    batch = None if documents is None else len(documents)
    return create_block_mask(allowed, batch, None, len(streams) * places, keys * places, device=device)


@lru_cache(maxsize=2)
def _flex(device: str) -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False) if device == "cuda" else flex_attention
