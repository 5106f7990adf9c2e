"""The optimiser's parameter groups and the learning rate schedule."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from statewise.config.trainer import TrainerConfig
from statewise.objectives.base import Objective
from statewise.training.muon import Muon, MuonWithAdamW, hidden_matrices
from statewise.training.schedule import Schedule
from statewise.training.sharding import like, read
from statewise.training.stored import Stored


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
    """The optimiser's state with names of the parameters of `module` where `state_dict` has numbers: any number of
    processes can load it. Tensors of sharded parameters are sharded, too. `never_updated` names the parameters that
    have had no gradient yet, and so have no state."""
    names, moments = _names(optimizer, module), optimizer.state_dict()["state"]
    return {
        "state": {names[number]: kept for number, kept in moments.items()},
        "param_groups": [{"params": [names[number] for number in numbers]} for numbers in _numbers(optimizer)],
        "never_updated": [name for number, name in enumerate(names) if number not in moments],
    }


def load_state_by_name(optimizer: torch.optim.Optimizer, module: nn.Module, state: dict[str, Any]) -> None:
    """Restores what `state_by_name` returned. What the recipe says, such as the betas, stays as it is.

    Raises `ValueError` or `KeyError` if it is the state of other parameters, or not all of theirs: PyTorch's fused
    optimisers write beyond the end of a tensor that is too small.
    """
    names, parameters = _names(optimizer, module), dict(module.named_parameters())
    numbers = {name: number for number, name in enumerate(names)}
    groups = optimizer.state_dict()["param_groups"]
    if [[numbers[place] for place in group["params"]] for group in state["param_groups"]] != _numbers(optimizer):
        raise ValueError("the optimiser's state is of other parameters")
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
    """The tensors that the optimiser keeps of each parameter of a group: of Muon or of AdamW."""
    return {"momentum_buffer"} if "momentum" in group else {"step", "exp_avg", "exp_avg_sq"}


def _checked(kind: str, tensor: Any, name: str, parameter: Tensor) -> Tensor:
    """A tensor of the optimiser's state, with the layout of its parameter. Raises `ValueError` if it does not fit."""
    if not isinstance(tensor, Tensor | Stored):
        raise ValueError(f"{kind} of {name} is no tensor")
    found = (read(tensor) if kind == "step" else like(tensor, parameter)).detach()
    shape = () if kind == "step" else tuple(parameter.shape)
    if tuple(found.shape) != shape or not found.is_floating_point():
        what = f"{str(found.dtype).removeprefix('torch.')} of shape {tuple(found.shape)}"
        raise ValueError(f"{kind} of {name} is {what}, not of floats of shape {shape}")
    if kind == "step" or found.stride() == parameter.stride():
        return found
    return torch.empty_like(parameter).copy_(found)  # fused kernels take both to lie alike in memory


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
