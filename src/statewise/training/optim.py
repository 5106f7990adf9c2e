"""The optimiser's parameter groups and the learning rate schedule."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from statewise.objectives.base import Objective
from statewise.training.config import TrainerConfig
from statewise.training.muon import MuonWithAdamW, hidden_matrices
from statewise.training.schedule import Schedule
from statewise.training.sharding import like, read


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
    adamw = torch.optim.AdamW(
        [group for group in groups if group["params"]], lr=config.learning_rate, betas=config.betas, fused=True
    )
    if config.optimizer == "adamw":
        return adamw
    if not hidden:
        raise ValueError(
            "trainer.optimizer muon needs matrices of linear or recurrent layers, and the model has none: choose adamw"
        )
    muon = torch.optim.Muon(
        hidden, lr=config.learning_rate, weight_decay=config.weight_decay, adjust_lr_fn="match_rms_adamw"
    )
    return MuonWithAdamW(muon, adamw)


def state_by_name(optimizer: torch.optim.Optimizer, module: nn.Module) -> dict[str, Any]:
    """The optimiser's state with names of the parameters of `module` where `state_dict` has numbers: any number of
    processes can load it. Tensors of sharded parameters are sharded, too."""
    names = _names(optimizer, module)
    state = optimizer.state_dict()
    groups = [{**group, "params": [names[number] for number in group["params"]]} for group in state["param_groups"]]
    return {"state": {names[number]: moments for number, moments in state["state"].items()}, "param_groups": groups}


def load_state_by_name(optimizer: torch.optim.Optimizer, module: nn.Module, state: dict[str, Any]) -> None:
    """Restores what `state_by_name` returned, or `state_dict` of the same optimiser, whose parameters are numbers.
    Raises `ValueError` or `KeyError` if it is the state of other parameters."""
    names, parameters = _names(optimizer, module), dict(module.named_parameters())
    numbers: dict[str | int, int] = {name: number for number, name in enumerate(names)}
    numbers |= {number: number for number in numbers.values()}
    groups = [{**group, "params": [numbers[place] for place in group["params"]]} for group in state["param_groups"]]
    if [group["params"] for group in groups] != [group["params"] for group in optimizer.state_dict()["param_groups"]]:
        raise ValueError("the optimiser's state is of other parameters")
    moments = {
        numbers[place]: {
            key: read(tensor) if key == "step" else like(tensor, parameters[names[numbers[place]]])
            for key, tensor in kept.items()
        }
        for place, kept in state["state"].items()
    }
    optimizer.load_state_dict({"state": moments, "param_groups": groups})


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
    decay_steps = round(schedule.steps * config.decay_share)
    left = schedule.steps - step
    return peak if left > decay_steps else final + (peak - final) * left / decay_steps
