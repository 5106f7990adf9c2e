"""Leaves out heads that the others make superfluous, which keeps the language."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from statewise.strips.model.candidates import Candidates
from statewise.strips.model.heads import Heads
from statewise.strips.model.model import bits
from statewise.strips.verification.containment import implied


def undominated(heads: Heads, going_on: Callable[[], bool] = lambda: True) -> np.ndarray:
    """Places of the heads that no other head dominates, and once `going_on()` is false of those not yet tested.

    A head dominates another if it requires and deletes everything that the other does, and adds nothing that the other
    does not: then it rejects everything that the other rejects. Dropping dominated heads keeps the language.
    """
    alive = np.ones(len(heads), dtype=bool)
    for place in np.argsort(heads.size(), kind="stable"):  # drops the first of two equal ones
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
    """Places of the candidates that remain after dropping those that the others imply (exact containment), which keeps
    the language. Tests the largest ones first. Keeps candidates that are undecided within the time limit, or once
    `stop()` is true.
    """
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
