"""Rotary positions (Su et al. 2021), and the heads that they turn.

The first half of a vector holds the first coordinates of its W/2 planes, the second half the second coordinates.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from statewise.backbones.nn.differentiable_once import differentiable_once

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
    found = turning * straight + turning.roll(turning.shape[-1] // 2, dims=-1) * swapped
    return *found.unbind(), *others.unbind()


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
        given = heads_first(apart)
        found = given.new_empty(given.shape)
        turn(given[:turned], straight, swapped, out=found[:turned])
        found[turned:].copy_(given[turned:])
        return found.unbind()

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        """The opposite turn."""
        straight, swapped = ctx.saved_tensors
        found = gradients[0].new_empty(ctx.shape)
        for place, (gradient, part) in enumerate(zip(gradients, heads_first(found))):
            if place < ctx.turned:
                turn(gradient, straight, -swapped, out=part)
            else:
                part.copy_(gradient)
        return found, None, None, None


def turn(heads: Tensor, straight: Tensor, swapped: Tensor, out: Tensor) -> None:
    """Writes rotated vectors (..., W) into `out`, by halves: that is faster than with a swapped copy."""
    half = heads.shape[-1] // 2
    torch.mul(heads, straight, out=out)
    out[..., :half].addcmul_(heads[..., half:], swapped[..., :half])
    out[..., half:].addcmul_(heads[..., :half], swapped[..., half:])
