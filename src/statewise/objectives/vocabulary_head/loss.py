"""The cross-entropy of a vocabulary head, without storing the logits of all positions.

A language model has far more logits than anything else: 4,096 positions times 50,304 tokens are 206 million. So
positions are processed in blocks (`head_blocks`). Few logits are computed all at once, which is faster.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from statewise.backbones.nn.eager import eager
from statewise.objectives.targets import IGNORED, to_float32
from statewise.objectives.vocabulary_head.blocks import GradientsInForward, product_dtype, rows_of_block

WHOLE_UP_TO = {"cpu": 2**25, "cuda": 2**27}
"""Maximum number of logits computed all at once; `benchmarks/token_loss.py` compares both ways."""


def fits_whole(positions: int, vocabulary: int, device: torch.device) -> bool:
    """Whether the logits of so many positions are few enough to be kept."""
    return positions * vocabulary <= WHOLE_UP_TO["cpu" if device.type == "cpu" else "cuda"]


def head_loss(readout: Tensor, weight: Tensor, targets: Tensor, at_once: bool | None = None) -> Tensor:
    """Scalar: summed cross-entropy in nats of `targets` (...) under the softmax of `weight` times the readout.

    `readout` (..., D), `weight` (V, D); targets that are `IGNORED` add nothing. Under autocast products are taken in
    its precision; the softmax and all sums in float32 or better. `at_once`: whether all logits are taken together;
    None: if they are few. A caller with several such losses, whose logits would be kept together, decides by all.
    """
    if fits_whole(targets.numel(), len(weight), readout.device) if at_once is None else at_once:
        return whole(readout, weight, targets)
    return blockwise(readout, weight, targets, rows_of_block(len(weight), readout.device))


def whole(readout: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """`head_loss` with all logits at once."""
    log_probs = to_float32(F.linear(readout, weight)).log_softmax(-1)
    return F.nll_loss(log_probs.flatten(0, -2), targets.flatten(), ignore_index=IGNORED, reduction="sum")


@eager
def blockwise(readout: Tensor, weight: Tensor, targets: Tensor, rows: int) -> Tensor:
    """`head_loss` in blocks of `rows` positions."""
    flat = readout.reshape(-1, readout.shape[-1])
    total: Tensor = _HeadLoss.apply(flat, weight, targets.flatten(), rows, torch.is_grad_enabled())  # type: ignore[no-untyped-call]
    return total


class _HeadLoss(GradientsInForward):
    @staticmethod
    def forward(ctx: Any, readout: Tensor, weight: Tensor, targets: Tensor, rows: int, learning: bool) -> Tensor:
        for_readout, for_weight = (learning and needed for needed in ctx.needs_input_grad[:2])
        dtype = product_dtype(readout)
        exact = torch.promote_types(dtype, torch.float32)
        total = readout.new_zeros((), dtype=exact)
        # The head's gradient is a sum over all blocks: it is accumulated in float32 whatever the products' dtype.
        gradients = (
            torch.empty_like(readout) if for_readout else None,
            torch.zeros_like(weight, dtype=exact) if for_weight else None,
        )
        with torch.autocast(readout.device.type, enabled=False):
            matrix = weight.to(dtype)
            for start in range(0, len(readout), rows):
                block = slice(start, start + rows)
                total += one_block(readout[block].to(dtype), matrix, targets[block], block, gradients)
        ctx.save_for_backward(*gradients)
        ctx.dtypes = readout.dtype, weight.dtype
        return total


def one_block(
    x: Tensor, matrix: Tensor, targets: Tensor, block: slice, gradients: tuple[Tensor | None, Tensor | None]
) -> Tensor:
    """Scalar: the loss of the block `x` (n, D). Writes its part of the readout's gradient (N, D) and adds to the head's
    gradient (V, D), where needed. Logits are freed on return."""
    of_readout, of_weight = gradients
    exact = torch.promote_types(x.dtype, torch.float32)
    log_probs = torch.log_softmax(torch.mm(x, matrix.t()), -1, dtype=exact)
    loss = F.nll_loss(log_probs, targets, ignore_index=IGNORED, reduction="sum")
    if of_readout is None and of_weight is None:
        return loss
    # The gradient at the logits is softmax - one-hot where a target counts, and 0 elsewhere: rows that do not count
    # are zeroed on the products' smaller sides.
    counts = (targets != IGNORED)[:, None]
    excess = log_probs.exp_()
    excess.scatter_add_(1, targets.clamp(min=0)[:, None], excess.new_full((1, 1), -1.0).expand(len(excess), 1))
    excess = excess.to(x.dtype)
    if of_readout is not None:
        of_readout[block] = torch.mm(excess, matrix) * counts
    if of_weight is not None:
        if of_weight.dtype == x.dtype:
            of_weight.addmm_(excess.t(), x * counts)
        else:
            of_weight += torch.mm(excess.t(), x * counts)
    return loss
