"""The fit of exact beliefs from features of prefixes, and its controls: one implementation for models and for arrays.

Imports no torch. Of `analysis` it imports `least_squares` and `pictures`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from statewise.analysis.beliefs.least_squares import CUTOFF, Fit, fit, held_out_r2, r2
from statewise.analysis.beliefs.pictures import equal_beliefs
from statewise.runtime.messages import explained
from statewise.tasks.base import Believed, Prefixes

STATE, CONCAT = "state", "concat"
"""Names of the features that are the last state, and all layers concatenated."""
FOLDS, SHUFFLES, HISTORY = 5, 10, 4
"""Folds of `r2_held_out`; permutations of the beliefs; longest history with a figure of its own."""
DISTANCES = 1500
"""Maximum number of distinct beliefs whose distances are compared pair by pair."""
CROWDED = 0.75
"""A fit that explains this share of shuffled beliefs has too few prefixes for its columns to show anything."""


@dataclass(frozen=True)
class Known:
    """The truth after each of m prefixes."""

    beliefs: np.ndarray
    """(m, C) exact beliefs."""
    next_tokens: np.ndarray
    """(m, P) probabilities of the next token, or what else a perfect prediction contains (`Believed.foretold`)."""
    weights: np.ndarray
    """(m,) weights of the prefixes, with sum 1."""
    cutoff: float = CUTOFF
    """Directions of features with less than this share of the largest standard deviation are not used."""

    @classmethod
    def of(cls, world: Believed, prefixes: Prefixes, weighting: str = "probability", cutoff: float = CUTOFF) -> Known:
        """What is known after prefixes of a task's sequences; `weighting` equal: each prefix counts once."""
        at, weights = (prefixes.rows, prefixes.columns), prefixes.weights
        weights = np.full_like(weights, 1 / len(weights)) if weighting == "equal" else weights
        return cls(world.beliefs(prefixes.examples)[at], world.foretold(prefixes.examples)[at], weights, cutoff)

    def fit(self, features: np.ndarray) -> Fit:
        """The affine map from features (m, D) to the beliefs."""
        return fit(features, self.beliefs, self.weights, self.cutoff)

    def r2_of(self, features: np.ndarray) -> float:
        """R^2 of the beliefs from features (m, D)."""
        return r2(self.fit(features)(features), self.beliefs, self.weights)

    def held_out(self, features: np.ndarray, folds: np.ndarray) -> float:
        """R^2 of the beliefs of each fold from a map fitted to the others."""
        return held_out_r2(features, self.beliefs, self.weights, self.cutoff, folds)

    def errors(self, predicted: np.ndarray) -> dict[str, float]:
        """Errors of predicted beliefs."""
        apart = predicted - self.beliefs
        return {
            "mse": float(self.weights @ (apart**2).mean(1)),
            "distance": float(self.weights @ np.linalg.norm(apart, axis=1)),
        }

    def correlations(self, predicted: np.ndarray) -> dict[str, float]:
        """Squared correlations of distances between predicted beliefs with distances between true ones."""
        squared = {}
        first, which = equal_beliefs(self.beliefs)
        mass = np.bincount(which, weights=self.weights)

        def means(values: np.ndarray) -> np.ndarray:  # of equal beliefs
            return np.stack([np.bincount(which, weights=self.weights * axis) / mass for axis in values.T], 1)

        centres = means(predicted)
        kept = np.unique(np.linspace(0, len(first) - 1, min(DISTANCES, len(first))).round().astype(np.int64))
        if len(kept) > 2:
            from scipy.spatial.distance import pdist

            of_centres = pdist(centres[kept])
            # Beliefs concern each factor; with noise, equal beliefs can have different next tokens.
            of_tokens = means(self.next_tokens)
            for name, true in (("distances_r2", self.beliefs[first]), ("next_token_distances_r2", of_tokens)):
                of_true = pdist(true[kept])
                if of_true.std() > 0 and of_centres.std() > 0:
                    squared[name] = float(np.corrcoef(of_centres, of_true)[0, 1] ** 2)
        return squared


def label(key: str, name: str) -> str:
    """The metric `key` of the features `name`: that of the last state has no name of its own."""
    return key if name == STATE else f"{key}_{name}"


def measured(own: Mapping[str, np.ndarray], known: Known, folds: np.ndarray) -> tuple[dict[str, float], dict[str, Fit]]:
    """Metrics `r2`, `mse` and `distance` of each of the features (m, D); held out, and correlations of distances, of
    the last state and of all layers together. And the maps."""
    metrics: dict[str, float] = {}
    maps: dict[str, Fit] = {}
    for name, features in own.items():
        maps[name] = known.fit(features)
        predicted = maps[name](features)
        metrics[label("r2", name)] = r2(predicted, known.beliefs, known.weights)
        errors = known.errors(predicted)
        if name in (STATE, CONCAT):
            metrics[f"{label('r2', name)}_held_out"] = known.held_out(features, folds)
            errors |= known.correlations(predicted)
        metrics |= {label(key, name): value for key, value in errors.items()}
    return metrics, maps


def controls(
    own: Mapping[str, np.ndarray], known: Known, prefixes: Prefixes, folds: np.ndarray, rng: np.random.Generator
) -> tuple[dict[str, float], list[str]]:
    """R^2 with shuffled beliefs, and from controls without a model; notes on what is left out."""
    metrics: dict[str, float] = {}
    notes = []
    orders = [rng.permutation(len(known.weights)) for _ in range(SHUFFLES)]
    shuffled = np.stack([known.beliefs[order] for order in orders], 1).reshape(len(known.weights), -1)
    for name in (STATE, CONCAT):
        if name in own:
            predicted = fit(own[name], shuffled, known.weights, known.cutoff)(own[name])
            metrics[label("r2_shuffled", name)] = r2(predicted, shuffled, known.weights)
    longest, V = int(prefixes.columns.max()) + 1, symbols(prefixes)
    for count in sorted({*range(1, min(HISTORY, longest) + 1), longest}):
        name = "all" if count == longest else str(count)
        if count * V > len(known.weights) / 2:
            notes.append(
                f"r2_history_{name} is left out: a map from the last {count:,} tokens as one-hot vectors has "
                f"{count * V:,} columns, too many for {len(known.weights):,} prefixes"
            )
            continue
        features = history(prefixes, count)
        metrics[f"r2_history_{name}"] = known.r2_of(features)
        if count == longest:
            metrics["r2_history_all_held_out"] = known.held_out(features, folds)
    return {**metrics, "r2_next_token": known.r2_of(known.next_tokens)}, notes


def crowded(metrics: Mapping[str, float], own: Mapping[str, np.ndarray], known: Known, longest: int) -> Iterator[str]:
    """What is wrong with fits that explain shuffled beliefs, too; `longest`: tokens of the longest prefix."""
    for name, of in ((STATE, "the last state"), (CONCAT, "all layers together")):
        share = metrics.get(label("r2_shuffled", name), 0.0)
        if share > CROWDED:
            yield (
                f"{len(known.weights):,} prefixes of up to {longest:,} tokens are too few for the "
                f"{own[name].shape[1] + 1:,} columns of a map from {of}, which explains {explained(share)} of "
                "shuffled beliefs"
            )


def by_length(predicted: np.ndarray, known: Known, columns: np.ndarray, opening: int) -> dict[int, float]:
    """R^2 of the beliefs from predictions (m, C) within the prefixes of each number of tokens, by the map fitted to all
    of them; `columns` (m,) is their last position, `opening` the number of positions before the first token. NaN at a
    length at which all beliefs are equal or that no prefix has."""
    values = {}
    for length in range(1, int(columns.max()) + 2 - opening):
        here = columns == length + opening - 1
        there = here.any()
        values[length] = r2(predicted[here], known.beliefs[here], known.weights[here]) if there else float("nan")
    return values


def verdict(metrics: Mapping[str, float]) -> str:
    """One sentence on what the fit shows."""
    held_out = f"({explained(metrics['r2_held_out'])} after prefixes left out of the fit)"
    if metrics["r2_shuffled"] > CROWDED:
        return (
            f"Too few prefixes: a map from the last state explains {explained(metrics['r2'])} of the variance of the "
            f"exact belief {held_out}, but of shuffled beliefs {explained(metrics['r2_shuffled'])}, too, so the fit "
            "shows nothing."
        )
    untrained = metrics.get("r2_untrained")
    return (
        f"The last state explains {explained(metrics['r2'])} of the variance of the exact belief {held_out}; "
        + (f"the last state of an untrained model explains {explained(untrained)}, " if untrained is not None else "")
        + f"the exact next-token probabilities alone {'explain ' * (untrained is None)}"
        f"{explained(metrics['r2_next_token'])}."
    )


def history(prefixes: Prefixes, count: int) -> np.ndarray:
    """(m, count * V): the last `count` tokens of each prefix as one-hot vectors, zeros where there are fewer."""
    tokens, V = prefixes.examples.tokens, symbols(prefixes)
    one_hot = np.zeros((len(prefixes.rows), count, V))
    for back in range(count):
        there = np.flatnonzero(prefixes.columns >= back)
        one_hot[there, back, tokens[prefixes.rows[there], prefixes.columns[there] - back]] = 1
    return one_hot.reshape(len(one_hot), -1)


def symbols(prefixes: Prefixes) -> int:
    """V: tokens up to the last one that occurs."""
    return int(prefixes.examples.tokens.max()) + 1
