"""States of a sample of a model's positions in two dimensions, and the cases that are near each other."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
import torch

from statewise.data_types import Examples
from statewise.decoding.predictor import Predictor
from statewise.tasks.batches import blocks, collate, rows_at_once

BLOCK = 256


@dataclass(frozen=True)
class Plane:
    """m states on their first two principal components."""

    places: np.ndarray
    """(m, 2), in units of the state."""
    shares: tuple[float, float]
    """Of the variance of the states, the share of each component."""


@torch.no_grad()
def states_at(predictor: Predictor, examples: Examples, places: np.ndarray) -> np.ndarray:
    """(m, D) float32 states at `places` (m, 2), row and column. States depend on the past alone, so only prefixes are
    read."""
    found: np.ndarray | None = None
    wanted, index = np.unique(places[:, 0], return_inverse=True)
    some = examples[wanted]
    needed = np.zeros(len(wanted), np.int64)
    np.maximum.at(needed, index, places[:, 1] + 1)
    lengths = np.minimum(some.lengths, needed)
    some = dataclasses.replace(some, lengths=lengths, prompt_lengths=np.minimum(some.prompt_lengths, lengths))
    for rows, part in blocks(some, rows_at_once(some.tokens.shape[1], predictor.vocabulary, BLOCK)):
        state = predictor.states(collate(part)).state.float().cpu().numpy()
        if found is None:
            found = np.zeros((len(places), state.shape[-1]), np.float32)
        at = np.full(len(wanted), -1)
        at[rows] = np.arange(len(rows))
        here = np.flatnonzero(at[index] >= 0)
        found[here] = state[at[index[here]], places[here, 1]]
    assert found is not None
    return found


def plane(states: np.ndarray) -> Plane:
    """Principal components of states (m, D), m >= 1 and D >= 1; missing ones are 0."""
    centred = states.astype(np.float64) - states.mean(axis=0, dtype=np.float64)
    total = float((centred**2).sum())
    _, sizes, directions = np.linalg.svd(centred, full_matrices=False)
    places = np.zeros((len(states), 2))
    shares = [0.0, 0.0]
    for axis in range(min(2, len(sizes))):
        # The sign of a component is arbitrary; fixed, so that pages of one model look alike.
        direction = directions[axis] * (1 if directions[axis][np.abs(directions[axis]).argmax()] > 0 else -1)
        places[:, axis] = centred @ direction
        shares[axis] = float(sizes[axis] ** 2 / total) if total > 0 else 0.0
    return Plane(places, (shares[0], shares[1]))


def nearest(states: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """(m, k) numbers of the nearest other states by Euclidean distance, the nearest first, and their distances; k is
    `most` or m - 1. Equally near ones are in their order."""
    numbers = states.astype(np.float64)
    squares = (numbers**2).sum(axis=1)
    distances = np.sqrt(np.maximum(squares[:, None] + squares - 2 * numbers @ numbers.T, 0.0))
    np.fill_diagonal(distances, np.inf)
    order = np.argsort(distances, axis=1, kind="stable")[:, : min(most, len(states) - 1)]
    return order, np.take_along_axis(distances, order, axis=1)
