"""Attention as one function, which chooses between two implementations by measured speed.

On a CPU the fused kernel's backward pass is slow on short sequences; explicit matrix products are faster there.
`benchmarks/attention.py` measures the thresholds below.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from statewise.backbones.nn.blockwise import attend_blockwise
from statewise.backbones.nn.masks import Documents, as_bias, causal, causal_bias
from statewise.backbones.nn.streams import INPUT, Pattern, Reach

WRITTEN_OUT_UP_TO = {torch.bfloat16: 512, torch.float32: 64}
"""The longest key sequence, by dtype, for which a CPU uses explicit products when gradients are needed."""
SOFTMAX_FROM = 16
"""Fewest keys whose softmax uses a CPU's vector instructions: ten keys take eight times as long as sixteen."""


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
    # In float32: more exact, and on a CPU three times as fast as on short rows of bf16.
    weights = scores.softmax(dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(scores.dtype)
    if dropout:
        weights = F.dropout(weights, dropout)
    return torch.bmm(weights, flat_value).view(*rows, queries, width)


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
