"""One training step as the trainer does it: loss under autocast, gradients, the optimizer."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch

from statewise.objectives.base import Objective
from statewise.types import Batch


def one_step(
    objective: Objective,
    optimizer: torch.optim.Optimizer,
    batches: Sequence[Batch],
    precision: str,
    clip: float | None = None,
) -> Callable[[], None]:
    """A call that does one step on the next of `batches`, around and around."""
    coming = itertools.cycle(batches)

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            loss = objective(next(coming)).value()
        loss.backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(objective.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()

    return step
