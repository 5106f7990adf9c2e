"""Muon for hidden matrices and AdamW for all other parameters, as one optimiser."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from statewise.objectives.base import Objective
from statewise.training.machine import choose_precision
from statewise.training.sharding import is_sharded

STACK = 1 << 22
"""Most numbers of the matrices that are made orthogonal together: enough of small ones, and one at a time of those that
keep a device busy alone."""


def hidden_matrices(objective: Objective) -> list[nn.Parameter]:
    """The trainable matrices of linear and recurrent layers, except those that map to logits. Not among them are
    embeddings, norms, biases, and parameters outside such layers (initial states, tensors of three dimensions)."""
    heads = {id(matrix) for matrix in objective.head_matrices()}
    found: dict[int, nn.Parameter] = {}
    for part in objective.modules():
        if isinstance(part, nn.Linear | nn.RNNBase | nn.RNNCellBase):
            for parameter in part.parameters(recurse=False):
                if parameter.requires_grad and parameter.dim() == 2 and id(parameter) not in heads:
                    found[id(parameter)] = parameter
    return list(found.values())


class Muon(torch.optim.Muon):
    """PyTorch's Muon by fewer and faster products: those of matrices of one shape are done together, in bf16 where the
    device multiplies fast in it, elsewhere in the type of the parameters. PyTorch takes one matrix at a time, always in
    bf16, which on a processor without bf16 instructions can cost more than the rest of a small model's step.

    Its `adjust_lr_fn` is `match_rms_adamw`. Sharded matrices are left to PyTorch, which divides their products among
    the processes.
    """

    def __init__(self, params: Sequence[nn.Parameter], lr: float, weight_decay: float) -> None:
        super().__init__(params, lr, weight_decay, adjust_lr_fn="match_rms_adamw")

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One step of all matrices that have a gradient."""
        if any(is_sharded(parameter) for group in self.param_groups for parameter in group["params"]):
            return super().step(closure)  # type: ignore[no-untyped-call]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for alike in _alike([parameter for parameter in group["params"] if parameter.grad is not None]):
                self._update(alike, group)
        return loss

    def _update(self, alike: list[Tensor], group: dict[str, Any]) -> None:
        """One step of matrices of one shape, each with a gradient."""
        rate, momentum, shape = group["lr"], group["momentum"], alike[0].shape
        gradients = [cast("Tensor", parameter.grad) for parameter in alike]
        moments = [self._moment(parameter) for parameter in alike]
        torch._foreach_lerp_(moments, gradients, 1 - momentum)
        towards = torch._foreach_lerp(gradients, moments, momentum) if group["nesterov"] else moments
        updates = orthogonalised(torch.stack(list(towards)), group["ns_coefficients"], group["ns_steps"], group["eps"])
        torch._foreach_mul_(alike, 1 - rate * group["weight_decay"])
        torch._foreach_add_(alike, list(updates.unbind()), alpha=-rate * 0.2 * max(shape) ** 0.5)

    def _moment(self, parameter: Tensor) -> Tensor:
        state = self.state[parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        return state["momentum_buffer"]


def _alike(parameters: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Lists of matrices of one shape and type, of at most `STACK` numbers together, but at least one matrix."""
    found: dict[Any, list[Tensor]] = defaultdict(list)
    for parameter in parameters:
        found[parameter.shape, parameter.dtype].append(parameter)
    for alike in found.values():
        count = max(1, STACK // alike[0].numel())
        yield from (alike[begin : begin + count] for begin in range(0, len(alike), count))


def orthogonalised(matrices: Tensor, coefficients: tuple[float, float, float], steps: int, smallest: float) -> Tensor:
    """(n, rows, columns) -> the same shape and type: each matrix with its singular values moved towards 1.

    By `steps` steps of Newton and Schulz with a quintic, x <- a x + b (x x^T) x + c (x x^T)^2 x, from the matrix over
    its norm, which is taken to be at least `smallest` (Jordan et al. 2024).
    """
    a, b, c = coefficients
    norms = matrices.flatten(1).norm(dim=1).clamp(min=smallest)
    x = matrices / norms[:, None, None]
    if choose_precision("auto", x.device.type) == "bf16":
        x = x.bfloat16()
    tall = x.shape[1] > x.shape[2]
    x = x.mT if tall else x  # the smaller of both Gram matrices
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.mT if tall else x).to(matrices.dtype)


class MuonWithAdamW(torch.optim.Optimizer):
    """Muon and AdamW with one list of parameter groups, Muon's first, and one state."""

    def __init__(self, muon: Muon, adamw: torch.optim.AdamW) -> None:
        super().__init__([*muon.param_groups, *adamw.param_groups], {})
        self.muon, self.adamw = muon, adamw
        self._share()

    def _share(self) -> None:
        """Makes both use the groups and the state of this optimiser."""
        first = len(self.muon.param_groups)
        self.muon.param_groups, self.adamw.param_groups = self.param_groups[:first], self.param_groups[first:]
        self.muon.state = self.adamw.state = self.state

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One step of both."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.muon.step()
        self.adamw.step()
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores groups and state from `state_dict()`. Raises `ValueError` if they do not match the parameters."""
        super().load_state_dict(state_dict)
        self._share()
