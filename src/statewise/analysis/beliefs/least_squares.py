"""Weighted affine least squares in closed form, in float64."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

CONSTANT = 1e-20
"""Targets with less variance count as constant."""
CUTOFF = 1e-6
"""Features whose standard deviation is below this share of the largest one count as constant."""
PENALTIES = np.logspace(-4, 4, 17)
"""Penalties of ridge regression, relative to the mean squared norm of the features."""


class Fit(NamedTuple):
    """An affine map from D features to C targets."""

    matrix: np.ndarray
    """(D, C) coefficients."""
    offset: np.ndarray
    """(C,) constants."""

    def __call__(self, features: np.ndarray) -> np.ndarray:
        """(m, C): the prediction from features (m, D)."""
        predicted: np.ndarray = features @ self.matrix + self.offset
        return predicted


def fit(features: np.ndarray, targets: np.ndarray, weights: np.ndarray, cutoff: float) -> Fit:
    """The map from features (m, D) to targets (m, C) with the least squared error, rows weighted by `weights` (m,).

    Directions in which the features' standard deviation is below `cutoff` times the largest are not used: they are
    rounding errors of the model.
    """
    features, targets = np.asarray(features, np.float64), np.asarray(targets, np.float64)
    share = weights / weights.sum()
    centre, mean = share @ features, share @ targets
    apart = (features - centre) * np.sqrt(share)[:, None]
    variances, axes = np.linalg.eigh(apart.T @ apart)
    used = variances > max(cutoff**2 * variances[-1], np.finfo(np.float64).tiny)
    onto = axes[:, used]
    matrix = onto @ ((onto.T @ (apart.T @ ((targets - mean) * np.sqrt(share)[:, None]))) / variances[used, None])
    return Fit(matrix, mean - centre @ matrix)


def r2(predicted: np.ndarray, targets: np.ndarray, weights: np.ndarray) -> float:
    """1 - (squared errors) / (squared distances from the mean), weighted, pooled over the coordinates of the targets
    (m, C); NaN if they do not vary."""
    share = weights / weights.sum()
    spread = share @ ((targets - share @ targets) ** 2).sum(1)
    return float(1 - share @ ((predicted - targets) ** 2).sum(1) / spread) if spread > CONSTANT else float("nan")


def held_out_r2(
    features: np.ndarray, targets: np.ndarray, weights: np.ndarray, cutoff: float, folds: np.ndarray
) -> float:
    """`r2` of predictions of each fold from a map fitted to all other rows. `folds` (m,) int; rows with a
    negative one are not scored."""
    predicted, scored = np.empty(targets.shape), folds >= 0
    for fold in np.unique(folds[scored]):
        here = folds == fold
        predicted[here] = fit(features[~here], targets[~here], weights[~here], cutoff)(features[here])
    return r2(predicted[scored], targets[scored], weights[scored])


def ridge(features: np.ndarray, targets: np.ndarray, tested: np.ndarray) -> np.ndarray:
    """(n,) float64: ridge regression of targets (m,) on features (m, D), at the features `tested` (n, D).

    Features that vary are standardised by those of the m rows. The penalty of `PENALTIES` is the one with the
    lowest squared error if each row is left out in turn, which has a closed form.
    """
    m, features = len(targets), np.asarray(features, np.float64)
    centre, spread = features.mean(0), features.std(0)
    spread = np.where(spread > CUTOFF * spread.max(), spread, 1.0)
    scaled, mean = (features - centre) / spread, targets.mean()
    values, axes = np.linalg.eigh(scaled @ scaled.T)
    values = values.clip(min=0)
    penalties = PENALTIES[:, None] * (values.mean() or 1.0)
    kept, onto = values / (values + penalties), axes.T @ (targets - mean)  # (penalties, m), (m,)
    own = kept @ (axes**2).T + 1 / m  # (penalties, m): how far each row's prediction follows its own target
    missed = (targets - mean - (kept * onto) @ axes.T) / np.maximum(1 - own, np.finfo(np.float64).eps)
    penalty = penalties[(missed**2).mean(1).argmin(), 0]
    dual = axes @ (onto / (values + penalty))
    predicted: np.ndarray = (np.asarray(tested, np.float64) - centre) / spread @ (scaled.T @ dual) + mean
    return predicted
