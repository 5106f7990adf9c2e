"""What a model of cases has learned, in one sentence from numbers, and what to do next.

A *case* is a sequence without a model's knowledge of the process that made it, so nothing says how low its loss can be.
It is compared instead with predictors that know less and less of the past, all estimated from the training sequences
(`statewise.tasks.baselines`): `variable order` (the last events, as many as help), `longest match`, `bigram` (the last
event) and `unigram` (none).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Learned = Literal["nothing", "frequencies", "less", "last event", "recent events", "more"]
Falls = Literal["falling", "level", "rising", "unknown"]


@dataclass(frozen=True)
class Comparison:
    """The model and one baseline on the same symbols."""

    baseline: str
    nats: float
    """Nats of the baseline per scored symbol."""
    difference: float
    """The model's nats per scored symbol minus those of the baseline: negative if the model is better."""
    low: float
    """Lower end of the 95% interval of `difference`."""
    high: float
    """Upper end of it."""


@dataclass(frozen=True)
class Curve:
    """Whether the held-out loss still fell when training ended."""

    falls: Falls
    step: int | None = None
    """The last step."""
    gain: float | None = None
    """Nats per symbol by which the loss fell over the last half of the steps."""
    best_step: int | None = None
    """The step of the lowest loss."""


@dataclass(frozen=True)
class Verdict:
    """What a model has learned, and what to do next."""

    sentence: str
    """What the model has learned, with the numbers that show it."""
    advice: str
    """What to do next."""
    learned: Learned
    """The rule that applies."""
    comparisons: list[Comparison]
    """One for each baseline with probabilities, the best baseline first."""
    loss: float
    """The model's nats per scored symbol."""
    cases: int
    """Number of scored cases."""
    symbols: int
    """Number of scored symbols."""
    curve: Curve


def learning_curve(records: Sequence[Mapping[str, Any]]) -> Curve:
    """Whether the held-out loss of a run still fell at its last step. `records`: those of `Run.metrics`."""
    raise NotImplementedError


def verdict(nats: np.ndarray, scored: np.ndarray, baselines: Mapping[str, np.ndarray], curve: Curve) -> Verdict:
    """The verdict on a model with `nats` (n, T) of each token, of which `scored` (n, T) bool count, against the nats
    (n, T) of each of `baselines` on the same tokens. `nats` and `scored` are what `evaluation.evaluate` passes to
    `losses`; a task's `baseline_nats` gives `baselines`.
    """
    raise NotImplementedError
