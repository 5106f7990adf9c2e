"""Learns a ground action model from noisy traces by both methods: training proposes effects, preconditions are exact.

`exact.noisy` knows only alternating effects. Training also finds atoms that do not alternate, and tolerates noise, but
single entries of its atoms are often wrong. So the effects of all heads of all restarts are offered beside the
alternating ones, and the preconditions of all are found anew: those that are worth their description."""

from __future__ import annotations

from collections.abc import Callable
from typing import Unpack

import numpy as np

from statewise.strips.exact.features import Feature
from statewise.strips.exact.frame import SECONDS, Listed, Options, Work
from statewise.strips.exact.noisy import check_negatives, fitted
from statewise.strips.model.heads import Heads
from statewise.strips.model.learned import Learned
from statewise.strips.model.traces import Traces
from statewise.strips.neural.learning import Progress, Settings, learn_neural

TRAINING = 2 / 3
"""The share of a time limit that training gets."""


def learn_hybrid(
    traces: Traces,
    settings: Settings | None = None,
    *,
    training: Progress | None = None,
    seconds: float | None = None,
    stop: Callable[[], bool] = lambda: False,
    progress: Callable[[str], None] = lambda text: None,
    listed: Listed | None = None,
) -> Learned:
    """Learns an action model that explains most of the traces; the others are treated as noisy.

    `settings` and `training` are those of `learn_neural`, without a time limit unless `seconds` is given; `stop`,
    `progress` and `listed` are those of `exact.frame.Options`. Raises
    `ValueError` without negative traces and without python-sat."""
    check_negatives(traces)
    trained = learn_neural(
        traces, settings or Settings(), seconds=seconds and seconds * TRAINING, stop=stop, progress=training
    )
    left = SECONDS if seconds is None else max(1.0, seconds - trained.report["seconds"])
    return from_trained(
        trained, traces, seconds=left, stop=stop, progress=progress, listed=Listed() if listed is None else listed
    )


def from_trained(trained: Learned, traces: Traces, **options: Unpack[Options]) -> Learned:
    """The hybrid model with the effects of a trained one."""
    effects = effects_of(Heads.of_theta(trained.theta))
    work = Work("hybrid", traces, **options)
    work.clock.cut += trained.report["unfinished"]
    work.say(f"{len(effects)} effects by training")
    facts = {"restarts": trained.report["restarts"], "effects": len(effects)}
    return fitted(work, effects, facts, before=trained.report["seconds"])


def effects_of(heads: Heads) -> list[Feature]:
    """The distinct effects of heads that delete."""
    effects = (
        Feature(*(sum(1 << int(action) for action in np.flatnonzero(part)) for part in parts))
        for parts in zip(heads.delete, heads.add)
    )
    return sorted({each for each in effects if each.delete})
