"""Losses that are functions of a head's logits, without storing the logits of all positions.

As in `head_loss`, positions are processed in blocks; here the loss of a block and its gradient with respect to the
logits are given by the caller.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from statewise.backbones.nn.eager import eager
from statewise.objectives.vocabulary_head.blocks import GradientsInForward, product_dtype, rows_of_block

OfLogits = Callable[[Tensor, slice], tuple[Tensor, Tensor]]
"""From the logits (n, V) of a block of positions, in float32 or better, and the block: their summed loss, (), and its
gradient with respect to the logits. It may overwrite them."""


@eager
def head_function(readout: Tensor, weight: Tensor, of_logits: OfLogits, rows: int | None = None) -> Tensor:
    """Scalar: the sum of `of_logits` over blocks of `rows` positions of `readout` (..., D), flattened; `weight` (V, D).
    None: as many as `head_loss` takes. Under autocast products are taken in its precision."""
    rows = rows or rows_of_block(len(weight), readout.device)
    flat = readout.reshape(-1, readout.shape[-1])
    total: Tensor = _HeadFunction.apply(flat, weight, of_logits, rows)  # type: ignore[no-untyped-call]
    return total


class _HeadFunction(GradientsInForward):
    @staticmethod
    def forward(ctx: Any, readout: Tensor, weight: Tensor, of_logits: OfLogits, rows: int) -> Tensor:
        dtype = product_dtype(readout)
        exact = torch.promote_types(dtype, torch.float32)
        total = readout.new_zeros((), dtype=exact)
        of_readout, of_weight = torch.empty_like(readout), torch.zeros_like(weight, dtype=exact)
        with torch.autocast(readout.device.type, enabled=False):
            matrix = weight.to(dtype)
            for start in range(0, len(readout), rows):
                block = slice(start, start + rows)
                x = readout[block].to(dtype)
                loss, at_logits = of_logits(F.linear(x, matrix).to(exact), block)
                total += loss
                at_logits = at_logits.to(dtype)
                of_readout[block] = at_logits @ matrix
                of_weight += at_logits.t() @ x
        ctx.save_for_backward(of_readout, of_weight)
        ctx.dtypes = readout.dtype, weight.dtype
        return total
