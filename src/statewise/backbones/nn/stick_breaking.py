"""Stick-breaking attention (Tan et al., "Scaling Stick-Breaking Attention", 2024): from a query back, each earlier key
takes the share sigmoid(score) of what is left of a stick of length 1.

    A[i, j] = sigmoid(z_ij) * product over j < k < i of (1 - sigmoid(z_ik)),   j < i

Recent keys come first, so the order of keys counts without positions. A query does not read its own position: the
residual stream carries it, and otherwise the own key could take the whole stick before any other. What is left over
goes to nothing; a query without keys gets zeros. Sums of log(1 - sigmoid) are taken in float32 or more precise.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from statewise.backbones.nn.differentiable_once import differentiable_once, eager
from statewise.backbones.nn.masks import Documents, document_starts

QUERIES = 128
"""Queries per block."""


def attend_sticks(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Tensor | None = None,
    documents: Documents | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Stick-breaking attention with scores query * key / sqrt(W).

    `query` (B, H, Q, W); `key`, `value` (B, H, T, W) with T >= Q, in the order of their positions, of which the last Q
    belong to the queries. `mask` (B, 1, Q, T) bool, True where attention is allowed; None: every key before the query,
    within `documents` if given (then Q = T). A masked key takes nothing, and a query never reads its own column.
    Returns (B, H, Q, W).

    Memory grows with T times a block of queries. With dropout, in an exported graph and in rows that `torch.compile`
    fuses (up to a block), all Q x T weights are stored. Gradients are differentiable once.
    """
    compiled = torch.compiler.is_compiling() and query.shape[-2] <= QUERIES
    if dropout or torch.compiler.is_exporting() or compiled:
        if documents is not None:
            mask = documents.mask()
        return attend_dense_sticks(query, key, value, mask=mask, dropout=dropout)
    return attend_blocks_of_sticks(query, key, value, mask, documents)


def attend_dense_sticks(
    query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None = None, dropout: float = 0.0
) -> Tensor:
    """`attend_sticks` by all weights at once, with gradients of autograd."""
    queries, keys = query.shape[-2], key.shape[-2]
    allowed = _before(queries, 0, keys, keys - queries, query.device)
    if mask is not None:
        allowed = allowed & mask
    scores = (query @ key.transpose(-1, -2)).to(_exact(query.dtype)) * query.shape[-1] ** -0.5
    weights = stick_weights(scores, allowed).to(query.dtype)
    if dropout:
        weights = F.dropout(weights, dropout)
    return weights @ value


def stick_weights(scores: Tensor, allowed: Tensor) -> Tensor:
    """The share (..., Q, T) of the stick that each key takes. `scores` (..., Q, T); `allowed` bool, broadcastable:
    keys that are not allowed take nothing."""
    rest = F.logsigmoid(-scores).masked_fill(~allowed, 0.0)
    # The sum over later keys only, by a shift: the difference of an inclusive sum and the own term would lose digits.
    later = F.pad(rest, (0, 1))[..., 1:].flip(-1).cumsum(-1).flip(-1)
    return (F.logsigmoid(scores) + later).exp().masked_fill(~allowed, 0.0)


@eager  # otherwise unrolled, block by block, and anew for each length
def attend_blocks_of_sticks(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, documents: Documents | None, block: int = QUERIES
) -> Tensor:
    """`attend_sticks`, `block` queries at a time; the backward pass recomputes the weights."""
    numbers = first = None
    if documents is not None:
        numbers, first = documents.numbers, documents.once("first columns", lambda: _first_columns(documents.numbers))
    result: Tensor = _Sticks.apply(query, key, value, mask, numbers, first, block)  # type: ignore[no-untyped-call]
    return result


def _exact(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _before(queries: int, low: int, high: int, first: int, device: torch.device) -> Tensor:
    """(queries, high - low) bool: whether column `low` + k is before `first` + q, the column of query q."""
    return torch.arange(low, high, device=device) < torch.arange(first, first + queries, device=device)[:, None]


def _first_columns(documents: Tensor) -> list[int]:
    """For each column the earliest start of any row's document there."""
    column = torch.arange(documents.shape[1], device=documents.device)
    firsts: list[int] = torch.where(document_starts(documents), column, 0).cummax(dim=1).values.amin(dim=0).tolist()
    return firsts


class _Sticks(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        documents: Tensor | None,
        first: list[int] | None,
        block: int,
    ) -> Tensor:
        output = torch.empty_like(query)
        ctx.save_for_backward(query, key, value, mask, documents)
        ctx.first, ctx.block = first, block
        for places, read in _spans(query, key, first, block):
            scores, allowed = _scores(query, key, mask, documents, places, read)
            output[:, :, places] = stick_weights(scores, allowed).to(query.dtype) @ value[:, :, read]
        return output

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """With g = A * dA, the gradient of log A: dz_ij = g_ij - sigmoid(z_ij) * (sum of g_ik over k <= j)."""
        query, key, value, mask, documents = ctx.saved_tensors
        (gradient,) = gradients
        exact = _exact(query.dtype)
        to_query = torch.empty_like(query)
        to_key, to_value = (torch.zeros(key.shape, dtype=exact, device=key.device) for _ in range(2))
        for places, read in _spans(query, key, ctx.first, ctx.block):
            scores, allowed = _scores(query, key, mask, documents, places, read)
            incoming = gradient[:, :, places]
            weights = stick_weights(scores, allowed)
            to_value[:, :, read] += weights.to(query.dtype).transpose(-1, -2) @ incoming
            change = (incoming @ value[:, :, read].transpose(-1, -2)).to(exact).mul_(weights)
            change = change.sub_(scores.sigmoid_().mul_(change.cumsum(-1))).masked_fill_(~allowed, 0.0)
            change = change.mul_(query.shape[-1] ** -0.5).to(query.dtype)
            to_query[:, :, places] = change @ key[:, :, read]
            to_key[:, :, read] += change.transpose(-1, -2) @ query[:, :, places]
        return to_query, to_key.to(key.dtype), to_value.to(value.dtype), None, None, None, None


def _spans(query: Tensor, key: Tensor, first: list[int] | None, block: int) -> list[tuple[slice, slice]]:
    """For each block of queries, their slice and that of the columns that any of them may read. A block whose queries
    read nothing has one column."""
    queries, behind = query.shape[-2], key.shape[-2] - query.shape[-2]
    spans = []
    for start in range(0, queries, block):
        end = min(start + block, queries)
        low = 0 if first is None else first[start]
        spans.append((slice(start, end), slice(low, max(behind + end - 1, low + 1))))
    return spans


def _scores(
    query: Tensor, key: Tensor, mask: Tensor | None, documents: Tensor | None, places: slice, read: slice
) -> tuple[Tensor, Tensor]:
    """Scores (B, H, queries, keys) in float32 or more precise, and which of them are allowed."""
    scores = (query[:, :, places] @ key[:, :, read].transpose(-1, -2)).to(_exact(query.dtype))
    own = key.shape[-2] - query.shape[-2] + places.start
    allowed = _before(places.stop - places.start, read.start, read.stop, own, query.device)
    if mask is not None:
        allowed = allowed & mask[..., places, read]
    if documents is not None:
        allowed = allowed & (documents[:, None, places, None] == documents[:, None, None, read])
    return scores.mul_(query.shape[-1] ** -0.5), allowed
