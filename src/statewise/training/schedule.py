"""The length of training in steps, whether the recipe gives steps or tokens."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from statewise.config.trainer import kept_steps, token_count
from statewise.runtime.bounds import LARGEST
from statewise.runtime.messages import short

if TYPE_CHECKING:
    from statewise.config.trainer import TrainerConfig


@dataclass(frozen=True)
class Schedule:
    """The lengths in a recipe's `trainer`, in steps, for a given task."""

    steps: int
    """Total number of optimiser steps."""
    warmup_steps: int
    """Initial steps of linear warm-up."""
    kept: tuple[Collection[int], ...] = ()
    """Steps whose checkpoints are never deleted."""
    decay_steps: int = 0
    """Last steps, over which the schedule `linear` decays."""
    auxiliary_decay_steps: int = 0
    """Last steps, over which the weights of all losses but that of the next token decay."""

    def auxiliary_factor(self, step: int) -> float:
        """The factor, in (0, 1], of the weights of all losses but that of the next token in step `step`, counted from
        0. A step after the last would have 0."""
        return min(1.0, (self.steps - step) / self.auxiliary_decay_steps) if self.auxiliary_decay_steps else 1.0

    def keeps(self, step: int) -> bool:
        """Whether the checkpoint of `step` is never deleted."""
        return any(step in steps for steps in self.kept)

    @property
    def notes(self) -> list[str]:
        """Warnings for the user."""
        notes = []
        if self.warmup_steps >= self.steps:
            notes.append(
                f"the warm-up of {self.warmup_steps:,} steps lasts for all {self.steps:,} steps of training: the "
                f"learning rate only rises, to {self.steps / self.warmup_steps:.0%} of trainer.learning_rate. "
                "Set trainer.warmup_steps (or warmup_tokens) lower, or train for longer"
            )
        elif self.warmup_steps > self.steps - self.decay_steps:
            notes.append(
                f"the warm-up of {self.warmup_steps:,} steps ends within the decay over the last "
                f"{self.decay_steps:,} of {self.steps:,}: from its peak the learning rate drops at once to where the "
                "decay is by then. Set trainer.warmup_steps (or warmup_tokens) or trainer.decay_share lower"
            )
        firsts = (next(iter(steps), 0) for steps in self.kept)  # only single steps can be after the last
        late = sorted({step for step in firsts if step > self.steps})
        if late:
            notes.append(
                f"trainer.keep names steps after the last, {self.steps}: {', '.join(map(str, late))} will not be "
                "reached"
            )
        return notes

    @classmethod
    def of(cls, config: TrainerConfig, row_length: int) -> Schedule:
        """The schedule of `config`. A number of tokens becomes the fewest steps whose rows, of `row_length` tokens
        each, hold it. Raises `ValueError` if that is `LARGEST` steps or more."""

        def steps(field: str, otherwise: int) -> int:
            tokens = getattr(config, field)
            number = otherwise if tokens is None else -(-token_count(tokens) // (config.batch_size * row_length))
            if number >= LARGEST:
                raise ValueError(f"trainer.{field} {short(tokens)} is {LARGEST:,} steps or more: give fewer tokens")
            return number

        last = steps("tokens", config.steps)

        def at_the_end(share: float) -> int:
            return max(1, round(last * share)) if share else 0

        return cls(
            last,
            steps("warmup_tokens", config.warmup_steps),
            kept_steps(config.keep, last),
            at_the_end(config.decay_share if config.schedule == "linear" else 0.0),
            at_the_end(config.auxiliary_decay_share),
        )
