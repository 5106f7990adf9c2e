"""Pools the heads of many restarts into one action model.

A model accepts a trace iff all of its heads do, so heads of different restarts can be combined. The pool takes heads
that are sound and that the traces support: a head that would reject a share f of all actions, and rejects none of V
valid ones, does so by chance with probability (1 - f)^V. If this evidence, -V log(1 - f), is several times the head's
description length (the logarithm of the number of heads of its size), its atom is real; otherwise the head may fit the
traces only because so many heads were tried. Restarts agree on real atoms but miss different ones, so all supported
heads together recover far more of the hidden model than the smallest set that explains the negatives (measured:
docs/results/strips.md).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from statewise.strips.model.head_arrays import Heads, Judge
from statewise.strips.model.model import bits

EVIDENCE = 4.0
"""Evidence that a head needs, in units of its description length."""


@dataclass(frozen=True)
class Candidates:
    """What a pool chooses from: heads, or groups of heads that are chosen together (those of a lifted predicate)."""

    heads: Heads
    group: np.ndarray
    """[H] the candidate of each head: from 0, sorted, without gaps."""
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
        """[G] the share of all actions, over the valid prefixes, that each candidate would reject; for a group, the sum
        over its heads, which rarely overlap."""
        at_risk = judge.verdicts(self.heads).at_risk / max(1, judge.valid)
        return np.bincount(self.group, at_risk * self.heads.pre.mean(1), minlength=len(self))

    def _any(self, of_heads: np.ndarray) -> np.ndarray:
        if not len(self):
            return np.zeros((0, of_heads.shape[1]), dtype=bool)
        return np.logical_or.reduceat(of_heads, np.searchsorted(self.group, np.arange(len(self))), axis=0)


@dataclass(frozen=True)
class Pool:
    """The chosen candidates."""

    chosen: np.ndarray
    """Their places among the candidates."""
    heads: Heads
    """Their heads."""
    sound: int
    """Number of candidates that reject no valid action (beyond the noise allowed) and catch a negative."""
    supported: int
    """Number of sound candidates that the traces support."""
    caught: float
    """Share of the negatives that the chosen candidates catch."""
    accuracy: float
    """Share of the traces whose every prefix they classify correctly."""
    proven: bool
    """Whether those beyond the supported ones are proven to be as few as possible; False if time ran out."""


def sound(candidates: Candidates, judge: Judge, noise: float = 0.0) -> np.ndarray:
    """Places of the candidates that reject no valid action and catch a negative.

    With a share `noise` of noisy traces a real head raises alarms on some of them: allowed are alarms on up to twice
    that share of the traces where the head raises one or catches, or on one trace.
    """
    by_trace = candidates.verdicts(judge)
    alarms, catches = (each.sum(1) for each in by_trace)
    allowed = np.maximum(1, 2 * noise * (alarms + catches)) if noise > 0 else 0
    return np.flatnonzero((alarms <= allowed) & (catches > alarms))


def evidence(candidates: Candidates, judge: Judge) -> np.ndarray:
    """[G] the evidence of the valid actions for each sound candidate, in units of its description length."""
    from scipy.special import gammaln

    size, places = candidates.size, candidates.places
    description = gammaln(places + 1) - gammaln(size + 1) - gammaln(places - size + 1)
    rejects = np.minimum(candidates.rejects(judge), 1 - 1e-9)
    return -judge.valid * np.log1p(-rejects) / np.maximum(description, 1e-9)


def pool(candidates: Candidates, judge: Judge, *, noise: float = 0.0, threshold: float = EVIDENCE) -> Pool:
    """Chooses all sound candidates that the traces support, and the smallest set of other sound ones that catches the
    remaining negatives (a set cover; ties go to those with more evidence)."""
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


def undominated(heads: Heads, going_on: Callable[[], bool] = lambda: True) -> np.ndarray:
    """Places of the heads that no other head dominates; once `going_on()` says no, also those not yet tested.

    If one head requires and deletes all that another does, and adds nothing that the other does not, it rejects all
    that the other rejects: after the other's delete no action can have made its own atom true again. Dropping dominated
    heads keeps the language.
    """
    alive = np.ones(len(heads), dtype=bool)
    for place in np.argsort(heads.size(), kind="stable"):  # of two equal ones drops the first
        if not going_on():
            break
        covers = (
            ~(heads.pre[place] & ~heads.pre).any(1)
            & ~(heads.delete[place] & ~heads.delete).any(1)
            & ~(heads.add & ~heads.add[place]).any(1)
            & alive
        )
        covers[place] = False
        if covers.any():
            alive[place] = False
    return np.flatnonzero(alive)


def prune(
    candidates: Candidates, actions: Sequence[str], seconds: float = 30.0, *, stop: Callable[[], bool] = lambda: False
) -> np.ndarray:
    """Places of the candidates that remain after dropping those that the rest implies (exact containment), which keeps
    the language. Tests the largest first, and keeps what is undecided within the time limit, or once `stop()` is true.
    """
    from statewise.strips.verification.containment import implied

    model = candidates.heads.model(actions)
    members = [0] * len(candidates)
    for head, of in enumerate(candidates.group):
        members[of] |= 1 << head
    among, end = sum(members), time.monotonic() + seconds
    kept = np.ones(len(candidates), dtype=bool)
    for place in np.argsort(-candidates.size, kind="stable"):
        left = end - time.monotonic()
        if left <= 0 or stop():
            break
        rest = among & ~members[place]
        if all(implied(model, head, rest, seconds=left, stop=stop) for head in bits(members[place])):
            among, kept[place] = rest, False
    return np.flatnonzero(kept)


def smallest_cover(catches: np.ndarray, worth: np.ndarray, seconds: float = 20.0) -> tuple[np.ndarray, bool]:
    """Places of the fewest rows [H, N] that cover every column, ties to the greatest sum of worth; and whether both are
    proven. If time runs out, they are not: the cover is then the best that the solver or a greedy search found."""
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
    """Places of the cover of least cost, of `count` rows if given, and whether that is proven; if not, it may be any
    cover, or None."""
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
    """Places of rows that cover every column: always the row that covers most open ones; ties by worth, at most 1."""
    left, places = np.ones(catches.shape[1], dtype=bool), []
    while left.any():
        places.append(int(np.argmax(catches[:, left].sum(1) + 0.5 * worth)))
        left &= ~catches[places[-1]]
    return np.array(places)
