"""Pools the heads of many restarts into one action model.

A model accepts a trace iff all of its heads do, so heads of different restarts can be combined. The pool chooses heads
that are sound and that the traces support: a head that would reject a share f of all actions, and rejects none of V
valid ones, does so by chance with probability (1 - f)^V. If this evidence, -V log(1 - f), is several times the head's
description length (the logarithm of the number of heads of its size), its atom is real; otherwise the head may fit the
traces only because so many heads were tried. Restarts agree on real atoms but miss different ones, so all supported
heads together recover far more of the hidden model than the smallest set that explains the negatives (measured:
docs/results/strips.md).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from statewise.strips.model.candidates import EVIDENCE, Candidates, evidence, smallest_cover, sound
from statewise.strips.model.heads import Heads, Judge


@dataclass(frozen=True)
class Pool:
    """The chosen candidates."""

    chosen: np.ndarray
    """Places of the chosen candidates among all."""
    heads: Heads
    """The heads of the chosen candidates."""
    sound: int
    """Number of candidates that reject no valid action (beyond the noise allowed) and catch a negative."""
    supported: int
    """Number of sound candidates that the traces support."""
    caught: float
    """Share of the negatives that the chosen candidates catch."""
    accuracy: float
    """Share of the traces whose every prefix the chosen candidates classify correctly."""
    proven: bool
    """Whether it is proven that no fewer candidates beside the supported ones are enough; False if time ran out."""


def pool(candidates: Candidates, judge: Judge, *, noise: float = 0.0, threshold: float = EVIDENCE) -> Pool:
    """Chooses all sound candidates that the traces support, and the smallest set of other sound ones that catches the
    remaining negative traces (a set cover; among equally small ones that with the most evidence)."""
    places = sound(candidates, judge, noise)
    able = candidates.only(places)
    worth = evidence(able, judge)
    taken = worth >= threshold
    supported = int(taken.sum())
    negative = judge.labels == 1
    alarms, catches = able.verdicts(judge)
    proven = True
    open_ones = catches[:, negative].any(0) & ~catches[taken][:, negative].any(0)
    if open_ones.sum() > noise * negative.sum():
        rest = np.flatnonzero(~taken)
        cover, proven = smallest_cover(catches[rest][:, negative][:, open_ones], worth[rest])
        taken[rest[cover]] = True
    caught = float(catches[taken][:, negative].any(0).mean()) if negative.any() else 1.0
    accuracy = float(judge.right(alarms[taken], catches[taken]).mean())
    chosen = np.flatnonzero(taken)
    return Pool(places[chosen], able.only(chosen).heads, len(able), supported, caught, accuracy, proven)
