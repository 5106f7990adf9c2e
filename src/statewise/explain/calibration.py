"""By prefix length, and calibrated: how right a model is after few and after many events, and when it is sure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from statewise.reporting.figures import Curve, Panel

LEAST_TOKENS = 30
"""Fewest scored tokens of a point; prefix lengths with fewer are pooled with those that follow."""
BINS = 10
"""Bins of equal width of the reliability curve."""


@dataclass(frozen=True)
class Bin:
    """Predictions of similar probability."""

    low: float
    high: float
    count: int
    chance: float
    """Mean probability of the most likely event."""
    right: float
    """Share of these that were right."""


@dataclass(frozen=True)
class Reliability:
    """Whether the model is right as often as it says."""

    bins: list[Bin]
    """Those with predictions."""
    error: float
    """Expected calibration error: the mean distance of `chance` and `right`, weighted by count (Guo et al. 2017)."""
    sureness: float
    """Mean probability of the most likely event minus the share that is right: above 0, the model is too sure."""


def reliability(chance: np.ndarray, right: np.ndarray) -> Reliability:
    """From the probability of the most likely event, (m,), and whether it was right, (m,) bool; m >= 1."""
    number = np.minimum((chance * BINS).astype(np.int64), BINS - 1)
    bins = []
    for place in range(BINS):
        inside = number == place
        if inside.any():
            count, mean, share = int(inside.sum()), float(chance[inside].mean()), float(right[inside].mean())
            bins.append(Bin(place / BINS, (place + 1) / BINS, count, mean, share))
    total = len(chance)
    error = sum(one.count / total * abs(one.chance - one.right) for one in bins)
    return Reliability(bins, error, float(chance.mean() - right.mean()))


def reliability_panel(found: Reliability) -> Panel:
    """The share that is right over the probability that the model gave."""
    model = Curve("model", [one.chance for one in found.bins], [one.right for one in found.bins])
    return Panel(
        "probability of the most likely event",
        "share that is right",
        [Curve("as often as it says", [0.0, 1.0], [0.0, 1.0], "control"), model],
        shares=True,
    )


@dataclass(frozen=True)
class ByPrefix:
    """Means over the scored tokens after prefixes of similar length."""

    lengths: list[float]
    """Mean number of events before the token, of each point."""
    counts: list[int]
    """Scored tokens of each point."""
    means: dict[str, list[float]]
    """Of each predictor."""
    half: dict[str, list[float]]
    """Half the width of the 95% interval of each mean; a case counts about once in a point, so tokens are treated as
    independent."""


def by_prefix(scored: np.ndarray, values: dict[str, np.ndarray]) -> ByPrefix:
    """Means of `values`, each (n, T), over the tokens that are `scored` (n, T), by column."""
    per_column = scored.sum(axis=0)
    groups: list[list[int]] = []
    open_tokens = 0
    for column in np.flatnonzero(per_column).tolist():
        if not groups or open_tokens >= LEAST_TOKENS:
            groups.append([])
            open_tokens = 0
        groups[-1].append(column)
        open_tokens += int(per_column[column])
    if len(groups) > 1 and open_tokens < LEAST_TOKENS:
        last = groups.pop()
        groups[-1] += last
    made = ByPrefix([], [], {name: [] for name in values}, {name: [] for name in values})
    for columns in groups:
        inside = scored[:, columns]
        count = int(inside.sum())
        made.counts.append(count)
        made.lengths.append(float((inside.sum(axis=0) * np.array(columns)).sum() / count))
        for name, array in values.items():
            numbers = array[:, columns][inside]
            made.means[name].append(float(numbers.mean()))
            made.half[name].append(float(1.96 * numbers.std() / count**0.5))
    return made


def prefix_panel(found: ByPrefix, title: str, *, shares: bool) -> Panel:
    """The means over prefix length, with the interval of the first, the model's."""
    curves = []
    for place, (name, means) in enumerate(found.means.items()):
        band = [
            (max(0.0, mean - half), min(1.0, mean + half) if shares else mean + half)
            for mean, half in zip(means, found.half[name])
        ]
        curves.append(Curve(name, found.lengths, means, band=None if place else band))
    return Panel("events before", title, curves, shares=shares)
