"""How a model is trained: the fields of a recipe's `trainer`."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

from statewise.runtime.bounds import bounded, unset
from statewise.runtime.messages import short

TWO_UNITS = {"trainer.steps": "trainer.tokens", "trainer.warmup_steps": "trainer.warmup_tokens"}
"""Lengths that can be given in steps or in tokens; tokens take precedence."""


def token_count(tokens: int | str) -> int:
    """Parses a number of tokens: 1000, 1_000, 300k, 50M, 2B, 1.5T. Raises `ValueError` for anything else."""
    match = re.fullmatch(r"(-?[\d_]*\.?\d+) *([kMBT]?)", str(tokens).strip())
    if not match:
        raise ValueError(f"expected a number of tokens such as 300k, 50M or 2B, not {tokens!r}")
    count = Decimal(match[1]) * {"": 1, "k": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}[match[2]]
    if count != int(count):
        raise ValueError(f"expected a whole number of tokens, not {tokens!r}")
    return int(count)


def kept_steps(keep: int | str | list[int | str] | None, last: int) -> tuple[Collection[int], ...]:
    """The steps that each item of `trainer.keep` names; `last` is the last step of training.

    Raises `ValueError` for an item that is not a step, `every:N` or `log:N`.
    """
    items = [] if keep is None else keep if isinstance(keep, list) else str(keep).split(",")
    kept: list[Collection[int]] = []
    for item in (str(item).strip() for item in items):
        rule, _, number = item.rpartition(":")
        count = int(number) if re.fullmatch(r"\d{1,12}", number) else -1
        if rule == "" and count >= 0:
            kept.append({count})
        elif rule == "every" and count >= 1:
            kept.append(range(count, last + 1, count))
        elif rule == "log" and 2 <= count <= 1000:
            kept.append({round(last ** (place / (count - 1))) for place in range(count)})
        else:
            raise ValueError(
                "expected steps such as 0,10,100, every:N (N at least 1), log:N (N from 2 to 1000), or several of "
                f"these separated by commas, not {item!r}"
            )
    return tuple(kept)


@dataclass(frozen=True)
class TrainerConfig:
    """How a model is trained; the fields of `trainer`."""

    steps: int = 1000
    """Optimiser steps; ignored if `tokens` is set."""
    tokens: int | str | None = None
    """Tokens to train on, such as 300k, 50M or 2B; null: use `steps`. Every row counts as the task's longest training
    sequence, so the number of steps is these tokens divided by those of `batch_size` such rows, rounded up."""
    batch_size: int = 128
    """Sequences per step, over all processes and accumulated batches."""
    accumulate: int = 1
    """Micro-batches into which a step's batch is split, to save memory; the result is the same up to rounding,
    and to what is drawn at random: dropout and `objective.share`."""
    rows: Literal["shuffled", "consecutive"] = "shuffled"
    """Order of a fixed training set. `shuffled`: a random order in every epoch; `consecutive`: each batch position
    reads the corpus row by row, so its rows continue from step to step (task text)."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    """adamw; or muon: Muon for the matrices of linear and recurrent layers, except those that map to logits, and AdamW
    for all other parameters. Muon's updates are multiplied by 0.2 sqrt(max(rows, columns)), which gives them the root
    mean square of AdamW's, so both share one learning rate (Liu et al. 2025). Matrices stored as one, such as those of
    queries, keys and values, are one matrix for Muon. Its momentum is 0.95."""
    learning_rate: float = 1e-3
    """Peak learning rate."""
    betas: tuple[float, float] = (0.9, 0.95)
    """AdamW's beta1 and beta2."""
    weight_decay: float = 0.1
    """Weight decay, on matrices and arrays of more dimensions: not on norms, biases and other vectors."""
    schedule: Literal["linear", "cosine"] = "linear"
    """After the warm-up: constant, then linear decay over the last `decay_share` of steps; or one cosine."""
    warmup_steps: int = 100
    """Steps of linear warm-up; ignored if `warmup_tokens` is set."""
    warmup_tokens: int | str | None = None
    """Linear warm-up in tokens, counted as in `tokens`; null: use `warmup_steps`."""
    decay_share: float = 0.0
    """Share of all steps, at the end, over which `linear` decays; 0 keeps the rate constant. With a warm-up this is
    warm-up, stable, decay (WSD)."""
    final_rate: float = 0.0
    """Final learning rate, as a share of the peak."""
    auxiliary_decay_share: float = 0.0
    """Share of all steps, at the end, over which the weights of all losses but that of the next token fall linearly to
    0; 0 keeps them. For all objectives that have other losses, except belief_state."""
    clip: float = 1.0
    """Maximum gradient norm for clipping; 0: no clipping."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """bf16: mixed precision. auto: bf16 where the CPU or GPU has fast bf16 matrix products."""
    device: str = "auto"
    """cpu, cuda or mps; auto: a CUDA GPU if there is one, otherwise the CPU."""
    devices: int = 1
    """Processes per machine, one per device; losses equal those of one process with the same batch size, up to rounding
    and to what is drawn at random, as with `accumulate`. Under torchrun and srun, `devices` and `nodes` are those that
    they have started."""
    nodes: int = 1
    """Machines. More than one need torchrun or srun to start the processes, and `--out` on a disk that all share."""
    shard: Literal["none", "full", "node"] = "none"
    """What several processes divide among them. none: only the batch; every process has the whole model (DDP). full:
    also parameters, gradients and optimiser state (FSDP), for models that do not fit a device. node: the same among the
    processes of each machine, with a copy on every machine (HSDP): more memory, less traffic between machines."""
    threads: int | None = None
    """CPU threads; null: PyTorch's default."""
    compile: Literal["auto"] | bool = "auto"
    """Whether to compile the model; losses are then the same up to rounding. auto: its blocks, on a CPU with a C++
    compiler, if the run is long enough to gain (`training.compilation`). true: all of it; pays for long runs on a
    GPU."""
    log_every: int = 50
    """Steps between lines of training metrics."""
    evaluate_every: int = 500
    """Steps between evaluations; 0: only at the end."""
    evaluate_num: int = 1000
    """Held-out examples per evaluation during training."""
    report_num: int | None = None
    """Held-out examples of the final report on the best checkpoint; null: all."""
    checkpoint_every: int = 500
    """Steps between checkpoints. The newest two, the best and the last are kept."""
    keep: int | str | list[int | str] | None = None
    """Further steps whose checkpoints are written and kept: a list such as 0,10,100 (0: before training), every:N, or
    log:N (at most N steps, log-spaced from 1 to the last); combine with commas: 0,log:50."""
    stop_when_solved: bool = False
    """Whether to stop once two evaluations in a row solve the task; a single one may be chance."""
    tensorboard: bool = False
    """Whether to log to TensorBoard as well (extra `track`)."""

    def __post_init__(self) -> None:
        counts = ("steps", "batch_size", "accumulate", "devices", "nodes", "threads", "log_every", "checkpoint_every")
        bounded(self, *counts, "evaluate_num", "report_num", prefix="trainer.", at_least=1)
        bounded(self, "threads", "devices", "nodes", prefix="trainer.", at_most=4096)
        bounded(self, "batch_size", prefix="trainer.", at_most=2**20)
        bounded(self, "warmup_steps", "evaluate_every", prefix="trainer.", at_least=0)
        bounded(self, "clip", "weight_decay", prefix="trainer.", at_least=0)
        bounded(self, "learning_rate", prefix="trainer.", above=0)
        bounded(self, "decay_share", "final_rate", "auxiliary_decay_share", prefix="trainer.", at_least=0, at_most=1)
        if self.schedule == "cosine":
            unset(self, "decay_share", prefix="trainer.", reason="belongs to the schedule linear: set it to 0")
        elif not self.decay_share:
            unset(
                self,
                "final_rate",
                prefix="trainer.",
                reason="has no effect without a decay: set decay_share, or final_rate to 0",
            )
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"trainer.betas must each be at least 0 and below 1, not {short(self.betas)}")
        for name in ("tokens", "warmup_tokens"):
            value = getattr(self, name)
            if value is not None:
                try:
                    enough = token_count(value) >= (name == "tokens")
                except ValueError as error:
                    raise ValueError(f"trainer.{name}: {error}") from None
                if not enough:
                    raise ValueError(f"trainer.{name} must be at least {int(name == 'tokens')}, not {value}")
        try:
            kept_steps(self.keep, 1)
        except ValueError as error:
            raise ValueError(f"trainer.keep: {error}") from None
        if self.batch_size % (self.accumulate * self.processes):
            raise ValueError(
                f"trainer.batch_size {self.batch_size} cannot be split into {self.accumulate} parts "
                f"for {self.processes} processes: choose a multiple of {self.accumulate * self.processes}"
            )

    @property
    def processes(self) -> int:
        """Number of processes on all machines."""
        return self.devices * self.nodes

    def device_of(self, environment: Mapping[str, Any]) -> str:
        """The device of a run with this `environment.json`: this one, or for `auto` the one that the run began on."""
        device: str = environment["device"] if self.device == "auto" else self.device
        return device
