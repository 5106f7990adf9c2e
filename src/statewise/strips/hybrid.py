"""Learns a ground action model from damaged traces by both methods: effects by training, too, preconditions exactly.

`noisy` knows alternating effects alone. Training also finds atoms that do not alternate, and stands damage, but single
entries of its atoms are often wrong. So the effects of all heads of all restarts are offered beside the alternating
ones, and the preconditions of all are found anew: those that are worth their description."""

from __future__ import annotations

from typing import Unpack

import numpy as np

from statewise.strips.exact.features import Feature
from statewise.strips.exact.frame import SECONDS, How, Work
from statewise.strips.exact.noisy import check_negatives, fitted
from statewise.strips.model.heads import Heads
from statewise.strips.model.learned import Learned, claim
from statewise.strips.model.traces import Traces
from statewise.strips.neural.learning import Progress, learn_neural
from statewise.strips.neural.settings import Settings

TRAINING = 2 / 3
"""The share of a time limit that training gets."""


def learn_hybrid(
    traces: Traces, settings: Settings | None = None, *, training: Progress | None = None, **how: Unpack[How]
) -> Learned:
    """Learns an action model that explains most of the traces; the others are taken for damaged.

    `settings` and `training` are those of `learn_neural`, without a time limit unless `seconds` is given. An
    interrupted run starts over. Raises `FileExistsError` if the folder holds anything else, `ValueError` without
    negative traces and without python-sat."""
    check_negatives(traces)
    folder, limit, stop = how.get("folder"), how.get("seconds"), how.get("stop", lambda: False)
    if folder is not None:
        claim(folder, how.get("overwrite", False), resumes=False)
    trained = learn_neural(
        traces, settings or Settings(), seconds=limit and limit * TRAINING, stop=stop, progress=training
    )
    left = SECONDS if limit is None else max(1.0, limit - trained.report["seconds"])
    how["seconds"] = left
    return from_trained(trained, traces, **how)


def from_trained(trained: Learned, traces: Traces, **how: Unpack[How]) -> Learned:
    """The hybrid model with the effects of a trained one; the folder is not claimed."""
    effects = effects_of(Heads.of_theta(trained.theta))
    work = Work("hybrid", traces, how)
    work.clock.cut += trained.report["unfinished"]
    work.say(f"{len(effects)} effects by training")
    facts = {"restarts": trained.report["restarts"], "effects": len(effects)}
    return fitted(work, effects, facts, before=trained.report["seconds"])


def effects_of(heads: Heads) -> list[Feature]:
    """The distinct effects of heads that delete."""
    found = (
        Feature(*(sum(1 << int(action) for action in np.flatnonzero(part)) for part in parts))
        for parts in zip(heads.delete, heads.add)
    )
    return sorted({each for each in found if each.delete})
