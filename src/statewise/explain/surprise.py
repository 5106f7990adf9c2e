"""How much each event and each case surprises a model, and whether the cases of one file surprise it more than those of
another.

The surprise of an event is -ln p, in nats, where p is the probability that the model gave it: 0 for what it was sure
of, .7 for one of two equally likely events, 4.6 for something that it expects once in a hundred times. The *expected
surprise* is the entropy of the model's prediction: what it would be on average if the model were right about its own
uncertainty. A case with much more surprise than expected is one that does not fit what the model has learned.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import torch
from scipy import stats

from statewise.data_types import Examples
from statewise.decoding.predictor import Predictor
from statewise.tasks.batches import blocks, collate, rows_at_once

BLOCK = 256
"""Most sequences in a forward pass."""


@dataclass(frozen=True)
class Reading:
    """What a model predicted before each token of n sequences of at most T tokens; 0 where a token is not scored."""

    scored: np.ndarray
    """(n, T) bool."""
    nats: np.ndarray
    """(n, T) float64: the surprise of each token."""
    entropy: np.ndarray
    """(n, T) float64: its expected surprise."""
    chosen: np.ndarray
    """(n, T) int64: the most likely token; -1 where a token is not scored."""
    chance: np.ndarray
    """(n, T) float64: the probability of the most likely token."""

    @property
    def counts(self) -> np.ndarray:
        """(n,) scored tokens of each sequence."""
        return self.scored.sum(axis=1)

    @property
    def per_token(self) -> np.ndarray:
        """(n,) nats per scored token of each sequence; NaN without one."""
        with np.errstate(invalid="ignore"):
            return np.where(self.counts > 0, self.nats.sum(axis=1) / np.maximum(self.counts, 1), np.nan)

    @property
    def excess(self) -> np.ndarray:
        """(n,) nats of each sequence beyond the expected surprise of its tokens."""
        return (self.nats - self.entropy).sum(axis=1)


@torch.no_grad()
def read(predictor: Predictor, examples: Examples) -> Reading:
    """Reads sequences with teacher forcing."""
    shape = examples.tokens.shape
    scored_tokens, chosen = np.zeros(shape, bool), np.full(shape, -1, np.int64)
    nats, entropy, chance = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    size = rows_at_once(shape[1], predictor.vocabulary, BLOCK)
    for rows, some in blocks(examples, size):
        batch = collate(some)
        targets, scored = batch.targets
        first, end = batch.span
        logits = predictor.logits(batch)[:, first - 1 : end - 1]
        # Half precision is too coarse for differences of logarithms.
        log_p = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
        own = log_p.gather(-1, targets.to(log_p.device)[..., None])[..., 0]
        best, choice = log_p.max(-1)
        terms = torch.where(log_p > -torch.inf, log_p.exp() * log_p, 0.0)
        at = (rows[:, None], np.arange(first, end))
        mask = scored.numpy()
        scored_tokens[at] = mask
        chosen[at] = np.where(mask, choice.cpu().numpy(), -1)
        for array, values in ((nats, -own), (entropy, -terms.sum(-1)), (chance, best.exp())):
            array[at] = np.where(mask, values.cpu().double().numpy(), 0.0)
    return Reading(scored_tokens, nats, entropy, chosen, chance)


@torch.no_grad()
def likeliest(predictor: Predictor, examples: Examples, row: int, column: int, most: int) -> list[tuple[int, float]]:
    """The `most` likely tokens in a place of a sequence, at least the second, and their probabilities, the likeliest
    first."""
    batch = collate(examples[np.array([row])])
    p = predictor.logits(batch)[0, column - 1].float().softmax(-1)
    chances, tokens = p.topk(min(most, len(p)))
    return list(zip(tokens.tolist(), chances.tolist()))


FEWEST = 10
"""Fewest cases on each side of a comparison."""
LEVEL = 0.05
"""A difference with a smaller p is called one."""


@dataclass(frozen=True)
class Drift:
    """The surprise of the cases of a file beside those of another."""

    cases: int
    other_cases: int
    mean: float
    """Nats per event, the mean over cases."""
    other_mean: float
    difference: float
    """`mean` minus `other_mean`."""
    low: float
    """Lower end of the 95% interval of the difference (Welch)."""
    high: float
    p_value: float
    """Of Welch's two-sided t-test that both means are equal."""
    above: float
    """Probability that a case of the file surprises more than one of the other, ties counted half (Mann and Whitney
    1947); .5 if there is no difference."""

    @property
    def drifts(self) -> bool:
        """Whether the means differ significantly."""
        return self.p_value < LEVEL


def drift(cases: np.ndarray, others: np.ndarray) -> Drift:
    """Compares the nats per event of the cases of a file, (n,), with those of another, (m,). NaN, of cases without a
    scored event, is left out. Raises `ValueError` for fewer than `FEWEST` cases on a side."""
    one, other = (values[np.isfinite(values)] for values in (cases, others))
    if min(len(one), len(other)) < FEWEST:
        raise ValueError(
            f"a comparison needs at least {FEWEST} scored cases in each file, and there are {len(one)} and {len(other)}"
        )
    difference = float(one.mean() - other.mean())
    if np.ptp(one) == 0 and np.ptp(other) == 0:
        low = high = difference
        p_value = 1.0 if difference == 0 else 0.0
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # copies of one case have equal values, which is no mistake
            test = stats.ttest_ind(one, other, equal_var=False)
        interval = test.confidence_interval(0.95)
        low, high, p_value = float(interval.low), float(interval.high), float(test.pvalue)
    above = float(stats.mannwhitneyu(one, other, alternative="two-sided").statistic) / (len(one) * len(other))
    return Drift(len(one), len(other), float(one.mean()), float(other.mean()), difference, low, high, p_value, above)


def drift_sentence(found: Drift, name: str, other: str) -> str:
    """A drift in words; `name` and `other` are those of the two files."""
    interval = f"95% interval {found.low:+.3f} to {found.high:+.3f}, p {_p(found.p_value)}"
    means = f"{found.mean:.3f} nats per event of a case in {name}, {found.other_mean:.3f} in {other}"
    if not found.drifts:
        return f"No drift found: {means}; the difference of {found.difference:+.3f} may be chance ({interval})."
    how = "more" if found.difference > 0 else "less"
    return (
        f"The cases of {name} surprise the model {how} than those of {other}: {means}, a difference of "
        f"{found.difference:+.3f} ({interval}). A case of {name} surprises more than one of {other} with probability "
        f"{found.above:.2f}."
    )


def _p(value: float) -> str:
    return f"= {value:.3f}" if value >= 0.001 else "< 0.001"
