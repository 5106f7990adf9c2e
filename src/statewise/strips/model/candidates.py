"""Heads to choose from: which of them the traces support, and how few explain the negative ones."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from statewise.strips.model.heads import Heads, Judge

EVIDENCE = 4.0
"""Evidence that a head needs, in units of its description length."""


@dataclass(frozen=True)
class Candidates:
    """Heads to choose from, alone or in groups that are chosen together: the ground heads of a lifted predicate."""

    heads: Heads
    group: np.ndarray
    """[H] the number of the candidate that each head belongs to: from 0, sorted, without gaps."""
    size: np.ndarray
    """[G] the number of nonzero weights of each candidate."""
    places: np.ndarray
    """[G] the number of weights of each candidate."""

    @classmethod
    def alone(cls, heads: Heads) -> Candidates:
        """Each head is its own candidate."""
        return cls(heads, np.arange(len(heads)), heads.size(), np.full(len(heads), 3 * heads.pre.shape[1]))

    def __len__(self) -> int:
        return len(self.size)

    def only(self, kept: np.ndarray) -> Candidates:
        """The candidates `kept`, in ascending order."""
        new = np.full(len(self), -1)
        new[kept] = np.arange(len(kept))
        mine = new[self.group] >= 0
        return Candidates(
            self.heads.only(np.flatnonzero(mine)), new[self.group[mine]], self.size[kept], self.places[kept]
        )

    def verdicts(self, judge: Judge) -> tuple[np.ndarray, np.ndarray]:
        """(alarms, catches) [G, N]: whether any of a candidate's heads raises one."""
        found = judge.verdicts(self.heads)
        return self._any(found.alarms), self._any(found.catches)

    def rejects(self, judge: Judge) -> np.ndarray:
        """[G] the share of all actions, over the valid prefixes, that each candidate would reject; for a group the sum
        over its heads, which rarely overlap."""
        at_risk = judge.verdicts(self.heads).at_risk / max(1, judge.valid)
        return np.bincount(self.group, at_risk * self.heads.pre.mean(1), minlength=len(self))

    def _any(self, of_heads: np.ndarray) -> np.ndarray:
        if not len(self):
            return np.zeros((0, of_heads.shape[1]), dtype=bool)
        return np.logical_or.reduceat(of_heads, np.searchsorted(self.group, np.arange(len(self))), axis=0)


def sound(candidates: Candidates, judge: Judge, noise: float = 0.0) -> np.ndarray:
    """Places of the candidates that reject no valid action and catch a negative.

    If a share `noise` of the traces is noisy, a real head raises alarms on some of them: it may do so on up to twice
    that share of the traces on which it raises an alarm or catches, or on one trace.
    """
    by_trace = candidates.verdicts(judge)
    alarms, catches = (each.sum(1) for each in by_trace)
    allowed = np.maximum(1, 2 * noise * (alarms + catches)) if noise > 0 else 0
    return np.flatnonzero((alarms <= allowed) & (catches > alarms))


def evidence(candidates: Candidates, judge: Judge) -> np.ndarray:
    """[G] the evidence that the valid actions give for each sound candidate, in units of its description length."""
    from scipy.special import gammaln

    size, places = candidates.size, candidates.places
    description = gammaln(places + 1) - gammaln(size + 1) - gammaln(places - size + 1)
    rejects = np.minimum(candidates.rejects(judge), 1 - 1e-9)
    return -judge.valid * np.log1p(-rejects) / np.maximum(description, 1e-9)


def smallest_cover(catches: np.ndarray, worth: np.ndarray, seconds: float = 20.0) -> tuple[np.ndarray, bool]:
    """Places of the fewest rows [H, N] that cover every column, of equally few those with the greatest sum of worth;
    and whether both are proven. They are not if time runs out: the cover is then the best that the solver or a greedy
    search found."""
    end = time.monotonic() + seconds
    worth = worth / max(1e-9, float(worth.max()))
    needs = np.unique(catches.T, axis=0).astype(float)
    # The count first, then the worth: weighed in one sum, differences of worth are lost in the solver's tolerances.
    fewest, fewest_proven = _solve(np.ones(len(worth)), needs, seconds / 2)
    found = [_greedy_cover(catches, worth)] + ([] if fewest is None else [fewest])
    least = min(map(len, found))
    best, best_proven = _solve(-worth, needs, max(0.0, end - time.monotonic()), least)
    found += [] if best is None else [best]
    return min(found, key=lambda cover: (len(cover), -worth[cover].sum())), fewest_proven and best_proven


def _solve(
    cost: np.ndarray, needs: np.ndarray, seconds: float, count: int | None = None
) -> tuple[np.ndarray | None, bool]:
    """Places of the cheapest cover, of `count` rows if given, and whether that is proven. If not, it may be any cover,
    or None."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    constraints = [LinearConstraint(needs, 1, np.inf)]
    if count is not None:
        constraints.append(LinearConstraint(np.ones((1, len(cost))), count, count))
    found = milp(
        cost,
        constraints=constraints,
        integrality=np.ones(len(cost)),
        bounds=Bounds(0, 1),
        options={"time_limit": seconds, "mip_rel_gap": 0.0},
    )
    return (None if found.x is None else np.flatnonzero(found.x > 0.5)), found.status == 0


def _greedy_cover(catches: np.ndarray, worth: np.ndarray) -> np.ndarray:
    """Places of rows that cover every column. Each is the one that covers most of the columns left; `worth`, at most 1,
    decides between equals."""
    left, places = np.ones(catches.shape[1], dtype=bool), []
    while left.any():
        places.append(int(np.argmax(catches[:, left].sum(1) + 0.5 * worth)))
        left &= ~catches[places[-1]]
    return np.array(places)
