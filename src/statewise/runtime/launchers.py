"""Finds out which process of a run this is, and what started it: torchrun, Slurm's srun, or a run itself.

Reads environment variables only. Processes that a run starts by itself, one per device, inherit the variables of a
Slurm allocation or job step around them; they are not tasks of it, since that step has a single task.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

from statewise.runtime.messages import cut

PLACING = ("trainer.device", "trainer.devices", "trainer.nodes", "trainer.shard")
"""Fields of a recipe that may change when a run is resumed."""
OF_ANOTHER = "raised by another process"
"""Note of an exception that one process has raised, and reports, on all others."""


@dataclass(frozen=True)
class Started:
    """The processes that a launcher has started."""

    by: Literal["torchrun", "srun"]
    number: int
    """Number of processes."""
    nodes: int
    """Machines."""

    @property
    def devices(self) -> int:
        """Processes per machine. Raises `ValueError` if machines have different numbers of them."""
        if self.number % self.nodes:
            raise ValueError(
                f"{self.by} started {self.number} processes, not the same number on each of {self.nodes} machines"
            )
        return self.number // self.nodes


def started() -> Started | None:
    """The launcher's processes, of which this is one; None: no launcher has started this process. Raises `ValueError`
    if its environment variables are missing or not numbers."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        total, per_machine = (_number(name, at_least=1) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
        return Started("torchrun", total, -(-total // per_machine))
    if "SLURM_STEP_ID" not in os.environ:
        return None
    total = _number("SLURM_STEP_NUM_TASKS", default="1", at_least=1)
    # A shell that srun has opened (srun --pty bash) is one of the tasks, but not what it starts.
    interactive = os.environ.get("SLURM_JOB_NAME") in ("bash", "interactive")
    if total == 1 or interactive:
        return None
    return Started("srun", total, _number("SLURM_STEP_NUM_NODES", default="1", at_least=1))


def rank() -> int:
    """The number of this process among those of the run, from 0. Raises `ValueError` as `started` does."""
    launcher = started()
    if launcher is None:
        return _number("LOCAL_RANK", default="0")
    return _number("RANK" if launcher.by == "torchrun" else "SLURM_PROCID")


def _number(variable: str, *, default: str = "", at_least: int = 0) -> int:
    value = os.environ.get(variable, default)
    if not (value.isascii() and value.isdigit() and len(value) < 10 and int(value) >= at_least):
        raise ValueError(
            f"the environment variable {variable} must be a number of at least {at_least}, not {cut(value)!r}: "
            "torchrun and srun set it for the processes that they start"
        )
    return int(value)
