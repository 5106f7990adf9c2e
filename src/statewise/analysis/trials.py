"""What the metrics by trials have in common: how many are asked for and made, and how sure their mean is."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from statewise.tasks.automaton import Pairs


@dataclass(frozen=True)
class TrialsConfig:
    """Options of analyses that compare pairs of prefixes."""

    trials: int = 200
    """Pairs of prefixes to draw."""
    samples: int = 30
    """Continuations drawn from the model after the first prefix of a pair."""
    floor: float = 0.01
    """The model accepts a token whose probability is above it."""
    seed: int = 1
    """Seed of pairs and draws."""

    def __post_init__(self) -> None:
        if self.trials < 1 or self.samples < 1:
            raise ValueError("trials and samples must be at least 1")
        if not 0 < self.floor < 1:
            raise ValueError(f"floor must lie between 0 and 1, not {self.floor}")


def share(name: str, values: np.ndarray) -> dict[str, float]:
    """The mean of `values` (n,) and its standard error."""
    error = float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return {name: float(values.mean()), f"{name}_standard_error": error}


def count_trials(pairs: Pairs) -> dict[str, float]:
    """How many trials were asked for and made."""
    return {"trials_asked": pairs.asked, "trials_made": len(pairs)}


def mean_by(keys: np.ndarray, values: np.ndarray, most: int = 12) -> tuple[list[float], list[float]]:
    """The mean of `values` (n,) by `keys` (n,): at each key, or in `most` groups of equally many where keys are more,
    placed at the mean of their keys."""
    order = np.argsort(keys, kind="stable")
    keys, values = keys[order].astype(float), values[order].astype(float)
    different = np.unique(keys)
    if len(different) <= most:
        groups = [np.flatnonzero(keys == key) for key in different]
    else:
        groups = np.array_split(np.arange(len(keys)), min(most, len(keys)))
    return [float(keys[group].mean()) for group in groups], [float(values[group].mean()) for group in groups]
