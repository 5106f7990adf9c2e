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

from dataclasses import dataclass

import numpy as np

from statewise.strips.heads import Heads, Judge

EVIDENCE = 3.0
"""Evidence that a head needs, in units of its description length."""


@dataclass(frozen=True)
class Pool:
    """Heads that were chosen together."""

    heads: Heads
    candidates: int
    """Different heads that were offered."""
    sound: int
    """So many of them reject no valid action (beyond the noise allowed) and catch a negative."""
    supported: int
    """So many of those the traces speak for."""
    caught: float
    """Share of the negatives that the chosen ones catch."""
    accuracy: float
    """Share of the traces that they judge right, every prefix."""


def sound(heads: Heads, judge: Judge, noise: float = 0.0) -> np.ndarray:
    """Places of the heads that reject no valid action and catch a negative.

    With a share `noise` of damaged traces a real head is blamed for some of them: alarms on up to that share, twofold,
    of the traces at which the head speaks, or on one.
    """
    found = judge.verdicts(heads)
    alarms, catches = found.alarms.sum(1), found.catches.sum(1)
    allowed = np.maximum(1, 2 * noise * (alarms + catches)) if noise > 0 else 0
    return np.flatnonzero((alarms <= allowed) & (catches > alarms))


def evidence(heads: Heads, judge: Judge) -> np.ndarray:
    """[H] how strongly the valid actions speak for each sound head, in units of its description length.

    The share f of choices that a head would reject is counted over the same prefixes: how often its atom is known to be
    false there, times the share of the actions that require it.
    """
    from scipy.special import gammaln

    count = heads.pre.shape[1]
    at_risk = judge.verdicts(heads).at_risk / max(1, judge.valid)
    rejects = np.minimum(at_risk * heads.pre.sum(1) / count, 1 - 1e-9)
    size, places = heads.size(), 3 * count
    description = gammaln(places + 1) - gammaln(size + 1) - gammaln(places - size + 1)
    return -judge.valid * np.log1p(-rejects) / np.maximum(description, 1e-9)  # type: ignore[no-any-return]


def pool(heads: Heads, judge: Judge, *, noise: float = 0.0, threshold: float = EVIDENCE) -> Pool:
    """Chooses among heads: all sound ones that the traces speak for, and the smallest set of other sound ones that
    catches the negatives still left (a set cover; those with more evidence are preferred). Heads that another one makes
    redundant are left out."""
    unique = heads.only(heads.unique())
    able = unique.only(sound(unique, judge, noise))
    if not len(able):
        return Pool(able, len(unique), 0, 0, 0.0, float((judge.labels == 0).mean()))
    worth = evidence(able, judge)
    chosen = worth >= threshold
    supported = int(chosen.sum())
    negative = judge.labels == 1
    catches = judge.verdicts(able).catches[:, negative]
    open_ones = catches.any(0) & ~catches[chosen].any(0)
    if open_ones.sum() > noise * negative.sum():
        rest = np.flatnonzero(~chosen)
        chosen[rest[_smallest_cover(catches[rest][:, open_ones], worth[rest])]] = True
    kept = able.only(np.flatnonzero(chosen))
    kept = kept.only(undominated(kept))
    found = judge.verdicts(kept)
    caught = float(found.catches[:, negative].any(0).mean()) if negative.any() else 1.0
    accuracy = float(judge.right(found.alarms, found.catches).mean())
    return Pool(kept, len(unique), len(able), supported, caught, accuracy)


def undominated(heads: Heads) -> np.ndarray:
    """Places of the heads that no other makes redundant in the plainest way.

    If one head requires and deletes all that another does, and adds nothing that the other does not, it rejects
    whatever the other rejects: after the other's delete nothing can have made its own atom true again. The language of
    the whole is kept.
    """
    alive = np.ones(len(heads), dtype=bool)
    for place in np.argsort(heads.size(), kind="stable"):  # of two equal ones the later goes
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


def prune(heads: Heads, seconds: float = 30.0) -> Heads:
    """Leaves out heads that the rest implies (exact containment): the language is kept. The largest
    are tried first; what cannot be decided within the time stays."""
    import time

    from statewise.strips.containment import implied

    heads = heads.only(undominated(heads))
    model = heads.model([str(number) for number in range(heads.pre.shape[1])])
    among, end = (1 << len(heads)) - 1, time.monotonic() + seconds
    for place in np.argsort(-heads.size(), kind="stable"):
        left = end - time.monotonic()
        if left <= 0:
            break
        if implied(model, int(place), among & ~(1 << int(place)), seconds=left):
            among &= ~(1 << int(place))
    return heads.only([place for place in range(len(heads)) if among >> place & 1])


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
