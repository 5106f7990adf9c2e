"""One action model from the heads of many restarts.

A model accepts what all of its heads accept, so heads of different restarts may stand side by side. Which of them
belong together? Those that are sound, and that the traces speak for: a head that would reject a share f of all the
actions that could be chosen, and rejects none of V valid ones, did so by chance with probability (1 - f)^V. Where the
evidence, -V log(1 - f), is several times what it costs to write the head down (the logarithm of how many heads of its
size there are), its atom is real; where it is not, the head fits the traces because so many heads were tried. Restarts
agree on real atoms and disagree on what they leave out, so taking all that the traces speak for gives far more of the
hidden model than the smallest set that explains the negatives (measured: docs/results/strips.md).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from statewise.strips.head_arrays import Heads, Judge
from statewise.strips.model import bits

EVIDENCE = 4.0
"""Evidence that a head needs, in units of its description length."""


@dataclass(frozen=True)
class Candidates:
    """What a pool chooses among: heads, or groups of heads that stand or fall together (a lifted predicate's)."""

    heads: Heads
    group: np.ndarray
    """[H] the candidate that each head is of, from 0, without gaps and rising."""
    size: np.ndarray
    """[G] how many weights of each candidate are on."""
    places: np.ndarray
    """[G] how many weights it has."""

    @classmethod
    def alone(cls, heads: Heads) -> Candidates:
        """Every head a candidate by itself."""
        return cls(heads, np.arange(len(heads)), heads.size(), np.full(len(heads), 3 * heads.pre.shape[1]))

    def __len__(self) -> int:
        return len(self.size)

    def only(self, kept: np.ndarray) -> Candidates:
        """Some of them, by rising number."""
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
        over its heads, which rarely reject the same."""
        at_risk = judge.verdicts(self.heads).at_risk / max(1, judge.valid)
        return np.bincount(self.group, at_risk * self.heads.pre.mean(1), minlength=len(self))

    def _any(self, of_heads: np.ndarray) -> np.ndarray:
        if not len(self):
            return np.zeros((0, of_heads.shape[1]), dtype=bool)
        return np.logical_or.reduceat(of_heads, np.searchsorted(self.group, np.arange(len(self))), axis=0)


@dataclass(frozen=True)
class Pool:
    """Candidates that were chosen together."""

    chosen: np.ndarray
    """Their places among the candidates."""
    heads: Heads
    """Their heads."""
    sound: int
    """So many candidates reject no valid action (beyond the noise allowed) and catch a negative."""
    supported: int
    """So many of those the traces speak for."""
    caught: float
    """Share of the negatives that the chosen ones catch."""
    accuracy: float
    """Share of the traces that they judge right, every prefix."""


def sound(candidates: Candidates, judge: Judge, noise: float = 0.0) -> np.ndarray:
    """Places of the candidates that reject no valid action and catch a negative.

    With a share `noise` of damaged traces a real head is blamed for some of them: alarms on up to that share, twofold,
    of the traces at which the head speaks, or on one.
    """
    by_trace = candidates.verdicts(judge)
    alarms, catches = (each.sum(1) for each in by_trace)
    allowed = np.maximum(1, 2 * noise * (alarms + catches)) if noise > 0 else 0
    return np.flatnonzero((alarms <= allowed) & (catches > alarms))


def evidence(candidates: Candidates, judge: Judge) -> np.ndarray:
    """[G] how strongly the valid actions speak for each sound candidate, in units of its description length."""
    from scipy.special import gammaln

    size, places = candidates.size, candidates.places
    description = gammaln(places + 1) - gammaln(size + 1) - gammaln(places - size + 1)
    rejects = np.minimum(candidates.rejects(judge), 1 - 1e-9)
    return -judge.valid * np.log1p(-rejects) / np.maximum(description, 1e-9)


def pool(candidates: Candidates, judge: Judge, *, noise: float = 0.0, threshold: float = EVIDENCE) -> Pool:
    """Chooses among candidates: all sound ones that the traces speak for, and the smallest set of other sound ones that
    catches the negatives still left (a set cover; those with more evidence are preferred)."""
    places = sound(candidates, judge, noise)
    able = candidates.only(places)
    worth = evidence(able, judge)
    taken = worth >= threshold
    supported = int(taken.sum())
    negative = judge.labels == 1
    alarms, catches = able.verdicts(judge)
    open_ones = catches[:, negative].any(0) & ~catches[taken][:, negative].any(0)
    if open_ones.sum() > noise * negative.sum():
        rest = np.flatnonzero(~taken)
        taken[rest[_smallest_cover(catches[rest][:, negative][:, open_ones], worth[rest])]] = True
    caught = float(catches[taken][:, negative].any(0).mean()) if negative.any() else 1.0
    accuracy = float(judge.right(alarms[taken], catches[taken]).mean())
    chosen = np.flatnonzero(taken)
    return Pool(places[chosen], able.only(chosen).heads, len(able), supported, caught, accuracy)


def undominated(heads: Heads) -> np.ndarray:
    """Places of the heads that no other makes redundant in the plainest way.

    If one head requires and deletes all that another does, and adds nothing that the other does not, it rejects
    whatever the other rejects: after the other's delete nothing can have made its own atom true again. The language of
    the whole is kept.
    """
    alive = np.ones(len(heads), dtype=bool)
    for place in np.argsort(heads.size(), kind="stable"):  # of two equal ones the earlier goes
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


def prune(candidates: Candidates, actions: Sequence[str], seconds: float = 30.0) -> np.ndarray:
    """Places of candidates that are left when those that the rest implies are taken out (exact containment): the
    language is kept. The largest are tried first; what cannot be decided within the time stays."""
    from statewise.strips.containment import implied

    model = candidates.heads.model(actions)
    members = [0] * len(candidates)
    for head, of in enumerate(candidates.group):
        members[of] |= 1 << head
    among, end = sum(members), time.monotonic() + seconds
    kept = np.ones(len(candidates), dtype=bool)
    for place in np.argsort(-candidates.size, kind="stable"):
        left = end - time.monotonic()
        if left <= 0:
            break
        rest = among & ~members[place]
        if all(implied(model, head, rest, seconds=left) for head in bits(members[place])):
            among, kept[place] = rest, False
    return np.flatnonzero(kept)


def _smallest_cover(catches: np.ndarray, worth: np.ndarray) -> np.ndarray:
    """Places of the fewest rows [H, N] that reach every column; among equals, those of more worth."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    cost = 1 - 1e-3 * worth / max(1e-9, float(worth.max()))
    needs = np.unique(catches.T, axis=0).astype(float)
    found = milp(cost, constraints=LinearConstraint(needs, 1, np.inf), integrality=np.ones(len(cost)),
                 bounds=Bounds(0, 1), options={"time_limit": 20.0})  # fmt: skip
    if found.x is not None:
        return np.flatnonzero(found.x > 0.5)
    left, places = np.ones(catches.shape[1], dtype=bool), []  # no cover was found in time: the greedy one
    while left.any():
        places.append(int(np.argmax(catches[:, left].sum(1) + 1e-6 * worth)))
        left &= ~catches[places[-1]]
    return np.array(places)
