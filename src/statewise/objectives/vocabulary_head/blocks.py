"""What losses of a vocabulary head have in common that are computed in blocks of positions.

Each block computes its logits, its loss and the gradients, and only the gradients are kept. All blocks are one autograd
function whose forward pass computes the gradients; its backward pass multiplies them by the gradient of the sum.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from statewise.backbones.nn.differentiable_once import differentiable_once

BLOCK = {"cpu": 2**24, "cuda": 2**27}
"""Logits per block. Each block reads the head's matrix and adds to its gradient, so small blocks are slow."""


def rows_of_block(vocabulary: int, device: torch.device) -> int:
    """Positions per block."""
    return max(1, BLOCK["cpu" if device.type == "cpu" else "cuda"] // vocabulary)


def product_dtype(x: Tensor) -> torch.dtype:
    """The dtype of products with `x`: autocast's if it is on, except that float64 stays."""
    kind = x.device.type
    if torch.is_autocast_enabled(kind) and x.dtype != torch.float64:
        return torch.get_autocast_dtype(kind)
    return x.dtype


class GradientsInForward(torch.autograd.Function):
    """A scalar whose forward pass saves its gradients with respect to the first arguments, None where none is needed,
    and their dtypes as `ctx.dtypes`."""

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, factor: Tensor) -> tuple[Tensor | None, ...]:
        """Saved gradients times `factor`, (); None for the other arguments."""
        scaled = [
            None if gradient is None else (gradient * factor).to(dtype)
            for gradient, dtype in zip(ctx.saved_tensors, ctx.dtypes)
        ]
        return *scaled, *[None] * (len(ctx.needs_input_grad) - len(scaled))
