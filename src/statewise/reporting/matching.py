"""Data efficiency: how many training tokens a group of runs needs to reach the final held-out loss of another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Points = tuple[Sequence[float], Sequence[float]]
"""Tokens trained on, and the held-out loss there, in order."""


@dataclass(frozen=True)
class Match:
    """The tokens that a group needs to match another."""

    group: str
    other: str
    loss: float
    """The other's final held-out loss, its mean over runs."""
    other_tokens: float
    """The tokens that the other was trained on, likewise."""
    tokens: dict[int, float | None]
    """By seed of the group; None: the run does not come to that loss."""

    @property
    def reached(self) -> list[float]:
        """Tokens of the runs that come to the loss."""
        return [tokens for tokens in self.tokens.values() if tokens is not None]

    @property
    def mean(self) -> float | None:
        """Mean over the runs that come to the loss; None: none does."""
        return sum(self.reached) / len(self.reached) if self.reached else None


def match(group: str, runs: Mapping[int, Points], other: str, others: Mapping[int, Points]) -> Match:
    """The tokens that each of `runs` needs to come to the final loss of `others`, by seed."""
    loss, tokens = (sum(run[which][-1] for run in others.values()) / len(others) for which in (1, 0))
    return Match(group, other, loss, tokens, {seed: tokens_to_reach(points, loss) for seed, points in runs.items()})


def tokens_to_reach(points: Points, loss: float) -> float | None:
    """Where a curve first comes down to `loss`, linear between its points; None: nowhere. A curve that begins there has
    come to it at its first point, or before."""
    before: tuple[float, float] | None = None
    for tokens, value in zip(*points):
        if value <= loss:
            if before is None:
                return tokens
            return before[0] + (tokens - before[0]) * (before[1] - loss) / (before[1] - value)
        before = tokens, value
    return None
