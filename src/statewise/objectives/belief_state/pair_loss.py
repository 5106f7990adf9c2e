"""The loss over prefix-suffix pairs of the Belief State Transformer (equation 2), exact and fast.

Pairs are taken in blocks (see `pairs`), and each block's gradient as soon as its loss is known: nothing of the size of
pairs x vocabulary outlives a block. The whole is one autograd function whose forward pass computes the gradients; from
outside it is an ordinary loss.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from statewise.backbones.nn.differentiable_once import differentiable_once, eager
from statewise.objectives.belief_state.mixture_pairs import MixtureWorker
from statewise.objectives.belief_state.pair_workers import AutogradWorker, MLPWorker, Worker
from statewise.objectives.belief_state.pairs import Group, Layout
from statewise.objectives.belief_state.text_head import MixtureHead, MLPHead, TextHead

WORKERS: dict[type[TextHead], type[Worker]] = {MLPHead: MLPWorker, MixtureHead: MixtureWorker}
"""For heads whose gradient is written out; autograd does the others."""


@eager  # otherwise unrolled, block by block
def pair_loss(head: TextHead, prefix: Tensor, suffix: Tensor, layout: Layout, weights: Tensor) -> Tensor:
    """(K,): summed, weighted cross-entropy in nats of the pairs, of the next and (if K = 2) the previous token.

    `prefix` (U, D), `suffix` (W, D): the states of `layout.prefix_rows` and of `layout.suffix_rows`. `weights` (K,) are
    the factors with which the sums will enter the loss that is differentiated: gradients are computed here and now, so
    backward passes only any common multiple of them. A backward pass with other factors raises `RuntimeError` on a CPU;
    on a GPU it gives wrong gradients, for there the check would have to wait for the device.
    """
    worker = WORKERS.get(type(head), AutogradWorker)
    inputs = (worker, head, layout.groups, weights, torch.is_grad_enabled(), *worker.states(head, prefix, suffix))
    totals: Tensor = _PairLoss.apply(*inputs, *worker.parameters(head))  # type: ignore[no-untyped-call]
    return totals


class _PairLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        kind: type[Worker],
        head: TextHead,
        groups: list[Group],
        weights: Tensor,
        wanted: bool,
        prefix: Tensor,
        suffix: Tensor,
        *parameters: Tensor,
    ) -> Tensor:
        exact = torch.promote_types(prefix.dtype, torch.float32)
        # Gradients of many pairs meet in one place: they are summed in float32, whatever the pairs are computed in.
        states = [torch.zeros_like(part, dtype=exact) for part in (prefix, suffix)] if wanted else []
        worker = kind(head, weights, wanted, exact)
        for group in groups:
            own = [part[rows] for part, rows in ((prefix, group.prefix), (suffix, group.suffix))]
            worker.group(group, *own)
            for total, rows, found in zip(states, (group.prefix, group.suffix), worker.state_gradients):
                total.index_add_(0, rows.flatten(), found.flatten(0, 1))
        if wanted:
            ctx.save_for_backward(weights, *states, *worker.gradients)
        return worker.totals

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, factors: Tensor) -> tuple[Tensor | None, ...]:
        weights, *gradients = ctx.saved_tensors
        scale = (factors * weights).sum() / (weights * weights).sum().clamp(min=torch.finfo(weights.dtype).tiny)
        if factors.device.type == "cpu" and not torch.allclose(factors, scale * weights, rtol=1e-3, atol=0):
            raise RuntimeError(f"the pair loss was computed with weights {weights.tolist()}, not {factors.tolist()}")
        return None, None, None, None, None, *((gradient * scale).to(gradient.dtype) for gradient in gradients)
