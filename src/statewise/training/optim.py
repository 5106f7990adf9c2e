"""The optimiser's parameter groups and the learning rate schedule."""

from __future__ import annotations

import math

import torch
from torch import nn

from statewise.training.config import TrainerConfig
from statewise.training.schedule import Schedule


def make_optimizer(module: nn.Module, config: TrainerConfig) -> torch.optim.AdamW:
    """AdamW with weight decay on matrices only, not on norms, biases and other vectors."""
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    groups = [
        {"params": [parameter for parameter in trained if parameter.dim() > 1], "weight_decay": config.weight_decay},
        {"params": [parameter for parameter in trained if parameter.dim() <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]], lr=config.learning_rate, betas=config.betas, fused=True
    )


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
