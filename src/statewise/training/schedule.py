"""How long training is, in steps, whether the recipe counts steps or tokens."""

from __future__ import annotations

from dataclasses import dataclass

from statewise.config import TrainerConfig, token_count


@dataclass(frozen=True)
class Schedule:
    """The lengths that a recipe's `trainer` comes to for the task at hand."""

    steps: int
    """Optimiser steps in all."""
    warmup_steps: int
    """Of these, the first ones, in which the learning rate rises."""

    @property
    def notes(self) -> list[str]:
        """What a person should know of it."""
        if self.warmup_steps < self.steps:
            return []
        return [
            f"the warm-up of {self.warmup_steps:,} steps lasts for all {self.steps:,} steps of training: the learning "
            f"rate only rises, to {self.steps / self.warmup_steps:.0%} of trainer.learning_rate. "
            "Set --trainer.warmup_steps (or warmup_tokens) lower, or train for longer"
        ]

    @classmethod
    def of(cls, config: TrainerConfig, row_length: int) -> Schedule:
        """The steps of `config`, or the fewest whose rows, each counted as `row_length` tokens, hold its tokens."""

        def steps(tokens: int | str | None, otherwise: int) -> int:
            return otherwise if tokens is None else -(-token_count(tokens) // (config.batch_size * row_length))

        return cls(steps(config.tokens, config.steps), steps(config.warmup_tokens, config.warmup_steps))
