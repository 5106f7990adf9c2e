"""KL divergence between a vocabulary head's distributions for two vectors, without storing logits.

Like `head_loss`, and for the same reason: next-latent prediction compares two distributions over the vocabulary at
every rollout step, which would be more logits than in the token loss itself.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from statewise.backbones.nn.eager import eager
from statewise.objectives.targets import to_float32
from statewise.objectives.vocabulary_head.blocks import GradientsInForward, product_dtype, rows_of_block


def whole(ahead: Tensor, known_log_probs: Tensor, weight: Tensor, counted: Tensor) -> Tensor:
    """`blockwise` with all logits at once; the known distribution is given as log-probabilities (..., V), which several
    calls may share."""
    log_probs = to_float32(F.linear(ahead, weight)).log_softmax(-1)
    divergence = F.kl_div(log_probs, known_log_probs, reduction="none", log_target=True).sum(-1)
    return (divergence * counted).sum()


@eager
def blockwise(ahead: Tensor, known: Tensor, weight: Tensor, counted: Tensor, rows: int | None = None) -> Tensor:
    """Scalar: summed divergence KL(p(known) || p(ahead)) in nats, p the softmax of `weight` times a vector; next-latent
    prediction, equation 4.

    `ahead`, `known` (..., D), `weight` (V, D); `counted` (...) bool: other positions add nothing. If `known` needs no
    gradient, p(known) is a fixed target, and `weight` gets its gradient from p(ahead) alone. `rows`: positions at a
    time. Under autocast products are taken in its precision; the softmax and all sums in float32 or better.
    """
    rows = rows or rows_of_block(len(weight), ahead.device)
    flat = ahead.reshape(-1, ahead.shape[-1]), known.reshape(-1, known.shape[-1])
    total: Tensor = _HeadDivergence.apply(*flat, weight, counted.flatten(), rows, torch.is_grad_enabled())  # type: ignore[no-untyped-call]
    return total


class _HeadDivergence(GradientsInForward):
    @staticmethod
    def forward(
        ctx: Any, ahead: Tensor, known: Tensor, weight: Tensor, counted: Tensor, rows: int, learning: bool
    ) -> Tensor:
        dtype = product_dtype(ahead)
        exact = torch.promote_types(dtype, torch.float32)
        total = ahead.new_zeros((), dtype=exact)
        for_ahead, for_known, for_weight = (learning and needed for needed in ctx.needs_input_grad[:3])
        # A row of the head's gradient is a sum over all blocks: it is added up in float32 whatever the products are in.
        gradients = (
            torch.empty_like(ahead) if for_ahead else None,
            torch.empty_like(known) if for_known else None,
            torch.zeros_like(weight, dtype=exact) if for_weight else None,
        )
        with torch.autocast(ahead.device.type, enabled=False):
            matrix = weight.to(dtype)
            for start in range(0, len(ahead), rows):
                block = slice(start, start + rows)
                pair = ahead[block].to(dtype), known[block].to(dtype)
                total += one_block(pair, matrix, counted[block], block, gradients)
        ctx.save_for_backward(*gradients)
        ctx.dtypes = ahead.dtype, known.dtype, weight.dtype
        return total


def one_block(
    pair: tuple[Tensor, Tensor], matrix: Tensor, counted: Tensor, block: slice, gradients: tuple[Tensor | None, ...]
) -> Tensor:
    """Scalar: the divergence of the block `pair`, (n, D) each. Writes its parts of the gradients (N, D) of both sides
    and adds to the gradient (V, D) of the head, where needed. Logits are freed on return."""
    exact = torch.promote_types(matrix.dtype, torch.float32)
    log_ahead, log_known = (torch.log_softmax(torch.mm(side, matrix.t()), -1, dtype=exact) for side in pair)
    known = log_known.exp()
    excess = known * (log_known - log_ahead)
    divergence = excess.sum(-1, keepdim=True)
    counts = counted[:, None]
    of_ahead, of_known, of_weight = gradients
    if of_ahead is not None or of_weight is not None:
        at_logits = log_ahead.exp_().sub_(known).to(matrix.dtype)
        if of_ahead is not None:
            of_ahead[block] = torch.mm(at_logits, matrix) * counts
        if of_weight is not None:
            of_weight += torch.mm(at_logits.t(), pair[0] * counts)
    if of_known is not None:
        at_logits = excess.addcmul_(known, divergence, value=-1).to(matrix.dtype)
        of_known[block] = torch.mm(at_logits, matrix) * counts
        if of_weight is not None:
            of_weight += torch.mm(at_logits.t(), pair[1] * counts)
    return (divergence * counts).sum()
