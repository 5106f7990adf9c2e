"""One training step as the trainer does it: loss under autocast, gradients, the optimizer; and where it runs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch

from statewise.data_types import Batch
from statewise.objectives.base import Objective
from statewise.training import machine


def like_the_trainer(*more: str) -> str:
    """The precision that the trainer would choose on this CPU; freed memory is kept as it does. Prints where we are,
    and `more`."""
    machine.keep_freed_memory()
    precision = machine.choose_precision("auto", "cpu")
    print(", ".join((machine.processor_name(), f"{torch.get_num_threads()} threads", precision, *more)))
    return precision


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
