"""Losses of a vocabulary head, without storing the logits of all positions.

A language model has far more logits than anything else: 4,096 positions times 50,304 tokens are 206 million. So
positions are processed in blocks: each computes its logits, its loss and the gradients, and keeps only the gradients.
All blocks are one autograd function whose forward pass computes the gradients; its backward pass multiplies them by the
gradient of the sum. Few logits are computed all at once, which is faster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from statewise.backbones.nn.differentiable_once import differentiable_once, eager
from statewise.batch import Batch, Part
from statewise.losses.targets import IGNORED, summed_loss, to_float32, token_targets

WHOLE_UP_TO = {"cpu": 2**25, "cuda": 2**27}
"""Maximum number of logits computed all at once; `benchmarks/token_loss.py` compares both ways."""
BLOCK = {"cpu": 2**24, "cuda": 2**27}
"""Logits per block. Each block reads the head's matrix and adds to its gradient, so small blocks are slow."""
Gradients = tuple[Tensor | None, ...]
"""Where a block writes the gradients of its vectors, (N, D) each, and, last, adds to that of the head, (V, D); None
where none is needed."""
BlockLoss = Callable[[list[Tensor], Tensor, slice, Gradients], Tensor]
"""Maps the vectors of a block, (n, D) each, the head's matrix (V, D), the block's positions and the gradients to the
summed loss of the block, (). Logits are freed on return."""
OfLogits = Callable[[Tensor, slice], tuple[Tensor, Tensor]]
"""Maps the logits (n, V) of a block of positions, in float32 or better, and the block to their summed loss, (), and its
gradient with respect to the logits. It may overwrite the logits."""


def fits_whole(positions: int, vocabulary: int, device: torch.device) -> bool:
    """Whether the logits of so many positions are few enough to be kept."""
    return positions * vocabulary <= WHOLE_UP_TO["cpu" if device.type == "cpu" else "cuda"]


def rows_of_block(vocabulary: int, device: torch.device) -> int:
    """The number of positions in a block."""
    return max(1, BLOCK["cpu" if device.type == "cpu" else "cuda"] // vocabulary)


def product_dtype(x: Tensor) -> torch.dtype:
    """The dtype of products with `x`: autocast's if it is on, except that float64 stays."""
    kind = x.device.type
    if torch.is_autocast_enabled(kind) and x.dtype != torch.float64:
        return torch.get_autocast_dtype(kind)
    return x.dtype


def head_loss(
    readout: Tensor, weight: Tensor, targets: Tensor, at_once: bool | None = None, smoothing: float = 0.0
) -> Tensor:
    """Scalar: summed cross-entropy in nats of `targets` (...) under the softmax of `weight` times the readout.

    `readout` (..., D), `weight` (V, D); targets that are `IGNORED` add nothing. Under autocast products are taken in
    its precision; the softmax and all sums in float32 or better. `at_once`: whether all logits are taken together;
    None: if they are few. A caller with several such losses, whose logits would be kept together, decides by all.
    `smoothing`: the share of a target's probability that all tokens have equally.
    """
    if fits_whole(targets.numel(), len(weight), readout.device) if at_once is None else at_once:
        return whole_loss(readout, weight, targets, smoothing)
    return blockwise_loss(readout, weight, targets, rows_of_block(len(weight), readout.device), smoothing)


def next_token_part(
    readout: Tensor, weight: Tensor, batch: Batch, counts: Mapping[str, Tensor], smoothing: float = 0.0
) -> Part:
    """The cross-entropy of the scored tokens, in nats, from readouts (B, T, D) and the head's matrix (V, D)."""
    first, end = batch.span
    total = head_loss(readout[:, first - 1 : end - 1], weight, token_targets(batch), smoothing=smoothing)
    return Part(total, counts["next_token"], 1.0)


def whole_loss(readout: Tensor, weight: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
    """`head_loss` with all logits at once."""
    log_probs = to_float32(F.linear(readout, weight)).log_softmax(-1)
    return summed_loss(log_probs.flatten(0, -2), targets.flatten(), smoothing)


@eager
def blockwise_loss(readout: Tensor, weight: Tensor, targets: Tensor, rows: int, smoothing: float = 0.0) -> Tensor:
    """`head_loss` in blocks of `rows` positions."""
    of_block = partial(_loss_of_block, targets=targets.flatten(), smoothing=smoothing)
    return _sum_over_blocks(of_block, rows, readout, weight)


def whole_divergence(ahead: Tensor, known: tuple[Tensor, Tensor], weight: Tensor, counted: Tensor) -> Tensor:
    """`blockwise_divergence` with all logits at once. `known`: log-probabilities and probabilities, (..., V) each, of
    the known distribution. Several calls may share them: each keeps only its own log-probabilities, where `F.kl_div`
    would also keep the probabilities anew."""
    known_log_probs, known_probs = known
    log_probs = to_float32(F.linear(ahead, weight)).log_softmax(-1)
    divergence = (known_probs * (known_log_probs - log_probs)).sum(-1)
    return (divergence * counted).sum()


@eager
def blockwise_divergence(
    ahead: Tensor, known: Tensor, weight: Tensor, counted: Tensor, rows: int | None = None
) -> Tensor:
    """Scalar: summed divergence KL(p(known) || p(ahead)) in nats, p the softmax of `weight` times a vector; next-latent
    prediction, equation 4. It compares two distributions at every rollout step, so it would have more logits than the
    token loss itself.

    `ahead`, `known` (..., D), `weight` (V, D); `counted` (...) bool: other positions add nothing. If `known` needs no
    gradient, p(known) is a fixed target, and `weight` gets its gradient from p(ahead) alone. `rows`: positions at a
    time. Under autocast products are taken in its precision; the softmax and all sums in float32 or better.
    """
    of_block = partial(_divergence_of_block, counted=counted.flatten())
    return _sum_over_blocks(of_block, rows or rows_of_block(len(weight), ahead.device), ahead, known, weight)


@eager
def head_function(readout: Tensor, weight: Tensor, of_logits: OfLogits, rows: int | None = None) -> Tensor:
    """Scalar: the sum of `of_logits` over blocks of `rows` positions of `readout` (..., D), flattened; `weight` (V, D).
    None: as many as `head_loss` takes. Under autocast products are taken in its precision."""
    rows = rows or rows_of_block(len(weight), readout.device)
    return _sum_over_blocks(partial(_function_of_block, of_logits=of_logits), rows, readout, weight)


def _sum_over_blocks(of_block: BlockLoss, rows: int, *factors: Tensor) -> Tensor:
    """Scalar: the sum of `of_block` over blocks of `rows` positions. `factors`: the vectors, (..., D) each, and the
    head's matrix (V, D)."""
    *vectors, weight = factors
    flat = (part.reshape(-1, part.shape[-1]) for part in vectors)
    total: Tensor = _SumOverBlocks.apply(of_block, rows, torch.is_grad_enabled(), *flat, weight)  # type: ignore[no-untyped-call]
    return total


class _SumOverBlocks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, of_block: BlockLoss, rows: int, learning: bool, *factors: Tensor) -> Tensor:
        *vectors, weight = factors
        dtype = product_dtype(vectors[0])
        exact = torch.promote_types(dtype, torch.float32)
        total = vectors[0].new_zeros((), dtype=exact)
        *needed, for_weight = (learning and needed for needed in ctx.needs_input_grad[3:])
        # The head's gradient is a sum over all blocks: it is accumulated in float32 whatever the products' dtype.
        gradients = (
            *(torch.empty_like(part) if wanted else None for part, wanted in zip(vectors, needed)),
            torch.zeros_like(weight, dtype=exact) if for_weight else None,
        )
        with torch.autocast(weight.device.type, enabled=False):
            matrix = weight.to(dtype)
            for start in range(0, len(vectors[0]), rows):
                block = slice(start, start + rows)
                total += of_block([part[block].to(dtype) for part in vectors], matrix, block, gradients)
        ctx.save_for_backward(*gradients)
        ctx.dtypes = [factor.dtype for factor in factors]
        return total

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, factor: Tensor) -> tuple[Tensor | None, ...]:
        """The saved gradients times `factor`, ()."""
        scaled = (
            None if gradient is None else (gradient * factor).to(dtype)
            for gradient, dtype in zip(ctx.saved_tensors, ctx.dtypes)
        )
        return None, None, None, *scaled


def _loss_of_block(
    vectors: list[Tensor],
    matrix: Tensor,
    block: slice,
    gradients: Gradients,
    *,
    targets: Tensor,
    smoothing: float = 0.0,
) -> Tensor:
    (x,), targets, (of_readout, of_weight) = vectors, targets[block], gradients
    exact = torch.promote_types(x.dtype, torch.float32)
    log_probs = torch.log_softmax(torch.mm(x, matrix.t()), -1, dtype=exact)
    loss = summed_loss(log_probs, targets, smoothing)
    if of_readout is None and of_weight is None:
        return loss
    # The gradient at the logits is softmax - target's distribution where a target counts, and 0 elsewhere: rows that do
    # not count are zeroed on the products' smaller sides.
    counts = (targets != IGNORED)[:, None]
    excess = log_probs.exp_()
    excess.scatter_add_(1, targets.clamp(min=0)[:, None], excess.new_full((1, 1), smoothing - 1).expand(len(excess), 1))
    if smoothing:
        excess -= smoothing / excess.shape[1]
    excess = excess.to(x.dtype)
    del log_probs  # most of a block's memory, which the products below need
    if of_readout is not None:
        of_readout[block] = torch.mm(excess, matrix) * counts
    if of_weight is not None:
        if of_weight.dtype == x.dtype:
            of_weight.addmm_(excess.t(), x * counts)
        else:
            of_weight += torch.mm(excess.t(), x * counts)
    return loss


def _divergence_of_block(
    vectors: list[Tensor], matrix: Tensor, block: slice, gradients: Gradients, *, counted: Tensor
) -> Tensor:
    exact = torch.promote_types(matrix.dtype, torch.float32)
    log_ahead, log_known = (torch.log_softmax(torch.mm(side, matrix.t()), -1, dtype=exact) for side in vectors)
    excess = log_known - log_ahead
    known = log_known.exp_()
    excess *= known
    divergence = excess.sum(-1, keepdim=True)
    counts = counted[block][:, None]
    of_ahead, of_known, of_weight = gradients
    if of_ahead is not None or of_weight is not None:
        at_logits = log_ahead.exp_().sub_(known).to(matrix.dtype)
        if of_ahead is not None:
            of_ahead[block] = torch.mm(at_logits, matrix) * counts
        if of_weight is not None:
            of_weight += torch.mm(at_logits.t(), vectors[0] * counts)
    if of_known is not None:
        at_logits = excess.addcmul_(known, divergence, value=-1).to(matrix.dtype)
        of_known[block] = torch.mm(at_logits, matrix) * counts
        if of_weight is not None:
            of_weight += torch.mm(at_logits.t(), vectors[1] * counts)
    return (divergence * counts).sum()


def _function_of_block(
    vectors: list[Tensor], matrix: Tensor, block: slice, gradients: Gradients, *, of_logits: OfLogits
) -> Tensor:
    (x,), (of_readout, of_weight) = vectors, gradients
    loss, at_logits = of_logits(to_float32(F.linear(x, matrix)), block)
    at_logits = at_logits.to(x.dtype)
    if of_readout is not None:
        of_readout[block] = at_logits @ matrix
    if of_weight is not None:
        of_weight += at_logits.t() @ x
    return loss
