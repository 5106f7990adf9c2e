"""The optimisers: Muon for hidden matrices and AdamW for all other parameters, as one; and the learning rate."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from statewise.training.machine import choose_precision
from statewise.training.sharding import is_sharded, like
from statewise.training.stored import Stored, read

if TYPE_CHECKING:
    from statewise.config.trainer import TrainerConfig
    from statewise.objectives.base import Objective
    from statewise.training.schedule import Schedule

STACK = 1 << 22
"""Maximum number of values of the matrices that are orthogonalised together: many small matrices, or a single one that
keeps a device busy alone."""


def make_optimizer(objective: Objective, config: TrainerConfig) -> torch.optim.Optimizer:
    """The optimiser of `trainer.optimizer`, with weight decay on matrices only, not on norms, biases and other vectors.
    Raises `ValueError` if there is no matrix for Muon."""
    hidden = hidden_matrices(objective) if config.optimizer == "muon" else []
    of_muon = {id(parameter) for parameter in hidden}
    trained = [
        parameter for parameter in objective.parameters() if parameter.requires_grad and id(parameter) not in of_muon
    ]
    groups = [
        {"params": [parameter for parameter in trained if parameter.dim() > 1], "weight_decay": config.weight_decay},
        {"params": [parameter for parameter in trained if parameter.dim() <= 1], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]

    def adamw() -> torch.optim.AdamW:
        return torch.optim.AdamW(groups, lr=config.learning_rate, betas=config.betas, fused=True)

    if config.optimizer == "adamw":
        return adamw()
    if not hidden:
        raise ValueError(
            "trainer.optimizer muon needs matrices of linear or recurrent layers, and the model has none: choose adamw"
        )
    muon = Muon(hidden, config.learning_rate, config.weight_decay)
    return MuonWithAdamW(muon, adamw()) if groups else muon  # low-rank adaptation trains hidden matrices alone


def state_by_name(optimizer: torch.optim.Optimizer, module: nn.Module) -> dict[str, Any]:
    """The optimiser's state with the names of the parameters of `module` in place of their numbers in `state_dict`, so
    that any number of processes can load it. Tensors of sharded parameters are sharded, too. `never_updated` names the
    parameters that have had no gradient yet and so have no state."""
    names, moments = _names(optimizer, module), optimizer.state_dict()["state"]
    return {
        "state": {names[number]: kept for number, kept in moments.items()},
        "param_groups": [{"params": [names[number] for number in numbers]} for numbers in _numbers(optimizer)],
        "never_updated": [name for number, name in enumerate(names) if number not in moments],
    }


def load_state_by_name(optimizer: torch.optim.Optimizer, module: nn.Module, state: dict[str, Any]) -> None:
    """Restores what `state_by_name` returned, except settings of the recipe, such as the betas.

    Raises `ValueError` or `KeyError` if the state belongs to other parameters or is incomplete: PyTorch's fused
    optimisers write beyond the end of a tensor that is too small.
    """
    names, parameters = _names(optimizer, module), dict(module.named_parameters())
    numbers = {name: number for number, name in enumerate(names)}
    groups = optimizer.state_dict()["param_groups"]
    if [[numbers[place] for place in group["params"]] for group in state["param_groups"]] != _numbers(optimizer):
        raise ValueError("the optimiser's state belongs to other parameters")
    kinds = {number: _kinds(group) for group in groups for number in group["params"]}
    moments = {}
    for place, kept in state["state"].items():
        number, name = numbers[place], names[numbers[place]]
        if kept.keys() != kinds[number]:
            raise ValueError(f"the optimiser's state of {name} has {sorted(kept)}, not {sorted(kinds[number])}")
        moments[number] = {kind: _checked(kind, tensor, name, parameters[name]) for kind, tensor in kept.items()}
    missing = set(names) - {names[number] for number in moments} - set(state["never_updated"])
    if missing:
        raise ValueError(f"the optimiser's state of {min(missing)} is missing")
    optimizer.load_state_dict({"state": moments, "param_groups": groups})


def _kinds(group: dict[str, Any]) -> set[str]:
    """The names of the tensors that the optimiser, Muon or AdamW, keeps for each parameter of a group."""
    return {"momentum_buffer"} if "momentum" in group else {"step", "exp_avg", "exp_avg_sq"}


def _checked(kind: str, tensor: Any, name: str, parameter: Tensor) -> Tensor:
    """A tensor of the optimiser's state in the layout of its parameter. Raises `ValueError` if it does not fit."""
    if not isinstance(tensor, Tensor | Stored):
        raise ValueError(f"{kind} of {name} is not a tensor")
    value = (read(tensor) if kind == "step" else like(tensor, parameter)).detach()
    shape = () if kind == "step" else tuple(parameter.shape)
    if tuple(value.shape) != shape or not value.is_floating_point():
        what = f"{str(value.dtype).removeprefix('torch.')} of shape {tuple(value.shape)}"
        raise ValueError(f"{kind} of {name} is {what}, not floats of shape {shape}")
    if kind == "step" or value.stride() == parameter.stride():
        return value
    return torch.empty_like(parameter).copy_(value)  # fused kernels assume one layout in memory


def _numbers(optimizer: torch.optim.Optimizer) -> list[list[int]]:
    """The numbers of the parameters of each group in `state_dict`."""
    return [group["params"] for group in optimizer.state_dict()["param_groups"]]


def _names(optimizer: torch.optim.Optimizer, module: nn.Module) -> list[str]:
    """The parameters' names, by their numbers in `state_dict`."""
    name_of = {id(parameter): name for name, parameter in module.named_parameters()}
    return [name_of[id(parameter)] for group in optimizer.param_groups for parameter in group["params"]]


def learning_rate(step: int, config: TrainerConfig, schedule: Schedule) -> float:
    """The learning rate of step `step`, counted from 0."""
    peak, final = config.learning_rate, config.learning_rate * config.final_rate
    if step < schedule.warmup_steps:
        return peak * (step + 1) / schedule.warmup_steps
    if config.schedule == "cosine":
        share = (step - schedule.warmup_steps) / max(1, schedule.steps - schedule.warmup_steps)
        return final + (peak - final) * 0.5 * (1 + math.cos(math.pi * share))
    left = schedule.steps - step
    return peak if left > schedule.decay_steps else final + (peak - final) * left / schedule.decay_steps


def hidden_matrices(objective: Objective) -> list[nn.Parameter]:
    """The trainable matrices of linear and recurrent layers, except those that map to logits. Embeddings, norms,
    biases, and parameters outside such layers (initial states, tensors of three dimensions) do not belong to them."""
    heads = {id(matrix) for matrix in objective.head_matrices()}
    matrices: dict[int, nn.Parameter] = {}
    for part in objective.modules():
        if isinstance(part, nn.Linear | nn.RNNBase | nn.RNNCellBase):
            for parameter in part.parameters(recurse=False):
                if parameter.requires_grad and parameter.dim() == 2 and id(parameter) not in heads:
                    matrices[id(parameter)] = parameter
    return list(matrices.values())


class Muon(torch.optim.Muon):
    """PyTorch's Muon with fewer and faster products: matrices of one shape are multiplied together, in bf16 where the
    device is fast in it, elsewhere in the type of the parameters. PyTorch takes one matrix at a time, always in bf16,
    which on a processor without bf16 instructions can cost more than the rest of a small model's step.

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
        """Updates matrices of one shape, each of which has a gradient."""
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
    """Lists of matrices of one shape and type, with at most `STACK` values together, but at least one matrix."""
    groups: dict[Any, list[Tensor]] = defaultdict(list)
    for parameter in parameters:
        groups[parameter.shape, parameter.dtype].append(parameter)
    for alike in groups.values():
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
