"""The common part of analyses by trials: options, numbers of trials, means and standard errors."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from statewise.runtime.bounds import bounded
from statewise.tasks.automaton import Automaton, Pairs


@dataclass(frozen=True)
class TrialsConfig:
    """Options of analyses that compare pairs of prefixes."""

    trials: int = 200
    """Pairs of prefixes to draw."""
    samples: int = 30
    """Continuations sampled from the model after the first prefix of a pair."""
    floor: float = 0.01
    """The model accepts tokens with a larger probability."""
    seed: int = 1
    """Seed of pairs and samples."""

    def __post_init__(self) -> None:
        bounded(self, "trials", "samples", at_least=1, at_most=10**6)
        bounded(self, "floor", above=0, below=1)
        bounded(self, "seed", at_least=0)


def share(name: str, values: np.ndarray) -> dict[str, float]:
    """The mean of `values` (n,) and its standard error; one value has no standard error."""
    mean = {name: float(values.mean())}
    if len(values) < 2:
        return mean
    return {**mean, f"{name}_standard_error": float(values.std(ddof=1)) / math.sqrt(len(values))}


def floor_notes(most_legal: int, floor: float) -> list[str]:
    """A note if `most_legal` tokens are legal in some state, so that all may have a probability below `floor`."""
    if most_legal * floor <= 1:
        return []
    return [
        f"up to {most_legal} tokens are legal in a state, so even a model of the true probabilities may give none of "
        f"them more than --floor {floor:g}, and is then taken to reject them: set it below {1 / most_legal:.2g}"
    ]


def unscored_notes(world: Automaton) -> list[str]:
    """A note on tasks whose training does not score every choice."""
    if world.every_choice_scored:
        return []
    return [
        "training on this task scores answers alone: a model that tracks the state without an error need not know "
        "which other tokens are legal, so these figures can be low where its states are right; ask world-probe or "
        "inductive-bias"
    ]


def count_trials(pairs: Pairs) -> dict[str, float]:
    """Numbers of trials requested and made."""
    return {"trials_asked": pairs.requested, "trials_made": len(pairs)}


MOST_MEANS = 12
"""Maximum number of points of a curve of means."""


def mean_by(keys: np.ndarray, values: np.ndarray) -> tuple[list[float], list[float]]:
    """The mean of `values` (n,) for each of `keys` (n,), or with more than `MOST_MEANS` distinct keys, in as many bins
    of equal size at the mean of their keys."""
    order = np.argsort(keys, kind="stable")
    keys, values = keys[order].astype(float), values[order].astype(float)
    different = np.unique(keys)
    if len(different) <= MOST_MEANS:
        groups = [np.flatnonzero(keys == key) for key in different]
    else:
        groups = np.array_split(np.arange(len(keys)), MOST_MEANS)
    return [float(keys[group].mean()) for group in groups], [float(values[group].mean()) for group in groups]
