"""The optimiser's parameter groups and the learning rate schedule."""

from __future__ import annotations

import math

import torch

from statewise.objectives.base import Objective
from statewise.training.config import TrainerConfig
from statewise.training.muon import MuonWithAdamW, hidden_matrices
from statewise.training.schedule import Schedule


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
