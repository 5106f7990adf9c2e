"""How long training is, in steps, whether the recipe counts steps or tokens."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from statewise.training.config import TrainerConfig, kept_steps, token_count


@dataclass(frozen=True)
class Schedule:
    """The lengths that a recipe's `trainer` comes to for the task at hand."""

    steps: int
    """Optimiser steps in all."""
    warmup_steps: int
    """Of these, the first ones, in which the learning rate rises."""
    kept: tuple[Collection[int], ...] = ()
    """Steps whose checkpoints are kept for good."""

    def keeps(self, step: int) -> bool:
        """Whether the checkpoint of `step` is kept for good."""
        return any(step in steps for steps in self.kept)

    @property
    def notes(self) -> list[str]:
        """What a person should know of it."""
        found = []
        if self.warmup_steps >= self.steps:
            found.append(
                f"the warm-up of {self.warmup_steps:,} steps lasts for all {self.steps:,} steps of training: the "
                f"learning rate only rises, to {self.steps / self.warmup_steps:.0%} of trainer.learning_rate. "
                "Set --trainer.warmup_steps (or warmup_tokens) lower, or train for longer"
            )
        firsts = (next(iter(steps), 0) for steps in self.kept)  # rules end with training; a step of its own may not
        late = sorted({step for step in firsts if step > self.steps})
        if late:
            found.append(
                f"trainer.keep names steps after the last, {self.steps}: {', '.join(map(str, late))} will not be "
                "reached"
            )
        return found

    @classmethod
    def of(cls, config: TrainerConfig, row_length: int) -> Schedule:
        """The steps of `config`, or the fewest whose rows, each counted as `row_length` tokens, hold its tokens."""

        def steps(tokens: int | str | None, otherwise: int) -> int:
            return otherwise if tokens is None else -(-token_count(tokens) // (config.batch_size * row_length))

        last = steps(config.tokens, config.steps)
        return cls(last, steps(config.warmup_tokens, config.warmup_steps), kept_steps(config.keep, last))
