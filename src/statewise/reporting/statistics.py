"""Statistics over seeds, and how many training tokens runs need to reach the loss of others."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import stats


@dataclass(frozen=True)
class Summary:
    """A metric over the runs of a group."""

    values: dict[int, float]
    """The value of each seed."""
    mean: float
    interval: tuple[float, float] | None
    """95% confidence interval of the mean (Student's t); None for a single run, and if a value is not finite."""
    p_value: float | None
    """Welch's two-sided t-test against the first group; None where it is not defined."""


def summarise(values: dict[int, float], reference: Sequence[float] | None) -> Summary:
    """Summary of `values` by seed, tested against `reference`, the values of the first group; None: no test."""
    numbers = np.array(list(values.values()), np.float64)
    if not np.isfinite(numbers).all():  # NaN: no mean
        return Summary(values, float("nan"), None, None)
    mean = float(numbers.mean())
    interval = None
    if len(numbers) > 1:
        half = float(stats.t.ppf(0.975, len(numbers) - 1) * numbers.std(ddof=1) / len(numbers) ** 0.5)
        interval = (mean - half, mean + half)
    return Summary(values, mean, interval, welch(numbers, reference))


def wilson(share: float, trials: int) -> tuple[float, float]:
    """Wilson's 95% confidence interval of a probability, from the share of successes in `trials` independent trials.

    Outcomes between 0 and 1 are allowed: the interval is then too wide, since binary outcomes have the largest
    variance.
    """
    z = float(stats.norm.ppf(0.975))
    centre = (share + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z * (share * (1 - share) / trials + (z / (2 * trials)) ** 2) ** 0.5 / (1 + z * z / trials)
    return max(0.0, centre - half), min(1.0, centre + half)  # rounding may exceed these


def out_of(count: int, trials: int) -> str:
    """`3/5 [0.23, 0.88]`: a count with Wilson's interval of the probability, unless there is only one trial."""
    if trials < 2:
        return f"{count}/{trials}"
    low, high = wilson(count / trials, trials)
    return f"{count}/{trials} [{low:.2f}, {high:.2f}]"


Alternative = Literal["two-sided", "greater", "less"]


def welch(
    values: Sequence[float] | np.ndarray,
    reference: Sequence[float] | np.ndarray | None,
    alternative: Alternative = "two-sided",
) -> float | None:
    """p of Welch's t-test; `greater`: the alternative is that `values` have the greater mean.

    None unless both have at least two values, all finite, and one of them varies.
    """
    if reference is None or len(values) < 2 or len(reference) < 2:
        return None
    if not (np.isfinite(values).all() and np.isfinite(reference).all()):
        return None
    if np.ptp(values) == 0 and np.ptp(reference) == 0:
        return None
    with warnings.catch_warnings():  # warnings about nearly constant values, whose small p is correct
        warnings.simplefilter("ignore", RuntimeWarning)
        return float(stats.ttest_ind(values, reference, equal_var=False, alternative=alternative).pvalue)


def significantly_different(values: Sequence[float], reference: Sequence[float]) -> bool:
    """Whether p of Welch's two-sided t-test is below 0.05; if neither sample varies, whether their values differ."""
    if min(len(values), len(reference)) < 2:
        return False
    p = welch(values, reference)
    return values[0] != reference[0] if p is None else p < 0.05


def equivalence(values: Sequence[float], reference: Sequence[float], margin: float) -> float | None:
    """p of two one-sided Welch tests (TOST) that the means differ by less than `margin`; None if `welch` is None.

    It is the larger p of the two tests, that the difference is above -margin and that it is below +margin.
    """
    numbers = np.array(values)
    above, below = welch(numbers + margin, reference, "greater"), welch(numbers - margin, reference, "less")
    return None if above is None or below is None else max(above, below)


@dataclass(frozen=True)
class Claim:
    """A hypothesis about two groups and its test."""

    kind: Literal["better", "equal"]
    group: str
    other: str
    difference: float
    """Mean of the group minus that of the other."""
    p_value: float | None
    """p of the test whose alternative hypothesis is the claim; None if undefined, as with a single seed."""


Points = tuple[Sequence[float], Sequence[float]]
"""Training tokens, and the held-out loss after them, in order."""


@dataclass(frozen=True)
class Match:
    """The tokens that a group needs to match another."""

    group: str
    other: str
    loss: float
    """Final held-out loss of the other group, its mean over runs."""
    other_tokens: float
    """Training tokens of the other group, their mean over runs."""
    tokens: dict[int, float | None]
    """Training tokens that each seed of the group needs to reach the loss; None: it does not reach it."""

    @property
    def reached(self) -> list[float]:
        """Tokens of the runs that reach the loss."""
        return [tokens for tokens in self.tokens.values() if tokens is not None]

    @property
    def mean(self) -> float | None:
        """Mean over the runs that reach the loss; None: no run does."""
        return sum(self.reached) / len(self.reached) if self.reached else None


def match(group: str, runs: Mapping[int, Points], other: str, others: Mapping[int, Points]) -> Match:
    """The tokens that each of `runs` needs to reach the final loss of `others`, by seed."""
    loss, tokens = (sum(run[which][-1] for run in others.values()) / len(others) for which in (1, 0))
    return Match(group, other, loss, tokens, {seed: tokens_to_reach(points, loss) for seed, points in runs.items()})


def tokens_to_reach(points: Points, loss: float) -> float | None:
    """The tokens after which a curve first reaches `loss`, interpolated linearly; None: it never does. A curve that
    begins at or below `loss` reaches it at its first point."""
    before: tuple[float, float] | None = None
    for tokens, value in zip(*points):
        if value <= loss:
            if before is None:
                return tokens
            return before[0] + (tokens - before[0]) * (before[1] - loss) / (before[1] - value)
        before = tokens, value
    return None
