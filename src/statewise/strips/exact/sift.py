"""SIFT (Gösgens, Jansen and Geffner, 2024), for comparison: all alternating atoms, with all that they can require.

From valid actions alone. An atom is kept if its effect alternates in them; an action requires it if the atom was never
known to be false before the action. Here a SAT solver lists what SIFT enumerates. What is not done is to weigh whether
the traces speak for an atom: with few traces, atoms that alternate by chance make the model reject what is valid. Our
own methods (`ground`, `lifted`) weigh it.

For an action that requires the atom to be false, the complement of the atom, which alternates too, is required."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from statewise.strips.exact.features import MOST, alternating
from statewise.strips.exact.ground import SECONDS, Clock
from statewise.strips.exact.lifted import ARITY, Predicate, all_predicates, as_schemas
from statewise.strips.exact.preconditions import as_heads
from statewise.strips.exact.windows import Windows
from statewise.strips.head_arrays import Judge
from statewise.strips.learned import Learned, claim, write_schemas
from statewise.strips.lifted import LiftedModel
from statewise.strips.pooling import Candidates, prune, undominated
from statewise.strips.random_traces import Traces


def learn_sift(
    traces: Traces,
    *,
    seconds: float = SECONDS,
    stop: Callable[[], bool] = lambda: False,
    folder: Path | None = None,
    overwrite: bool = False,
    progress: Callable[[str], None] = lambda text: None,
) -> Learned:
    """The ground model of all alternating atoms; of labelled traces the valid actions alone are read.

    After `seconds`, or once `stop()` is true, the atoms found so far are returned, and `report["unfinished"]` says so.
    With `folder` the model is written there. Raises `FileExistsError` if the folder holds anything else, `ValueError`
    without python-sat."""
    clock = Clock(seconds, stop)
    if folder is not None:
        claim(folder, overwrite, resumes=False)
    windows = Windows.of(traces)
    found = alternating(windows, seconds=clock.left() / 2, stop=stop)
    if not found.complete:
        clock.cut.append("listing the alternating features" + (f": more than {MOST}" if len(found.features) >= MOST
                                                               else ""))  # fmt: skip
    progress(f"{len(found.features)} alternating features")
    heads = as_heads(found.features, [windows.required(*each) for each in found.features], len(traces.actions))
    heads = heads.only(np.flatnonzero(heads.pre.any(1)))
    heads = heads.only(heads.unique())
    heads = heads.only(undominated(heads))
    kept = heads.only(prune(Candidates.alone(heads), traces.actions, min(30.0, clock.left())))
    judge = Judge(traces)
    verdicts = judge.verdicts(kept)
    report = {**_facts(traces, clock), "actions": len(traces.actions), "windows": len(windows),
              "features": len(found.features), "best_restart": 0, "heads_before_pruning": len(heads),
              "atoms": len(kept),
              "training_accuracy": float(judge.right(verdicts.alarms, verdicts.catches).mean())}  # fmt: skip
    learned = Learned(kept.model(traces.actions), kept.theta()[None], report)
    if folder is not None:
        learned.save(folder)
    return learned


def learn_lifted_sift(
    traces: Traces,
    *,
    arity: int = ARITY,
    seconds: float = SECONDS,
    stop: Callable[[], bool] = lambda: False,
    folder: Path | None = None,
    overwrite: bool = False,
    progress: Callable[[str], None] = lambda text: None,
) -> LiftedModel:
    """The schemas of all alternating predicates of up to `arity` arguments, as `learn_sift`. Raises `ValueError` also
    if a schema occurs with different numbers of arguments."""
    clock = Clock(seconds, stop)
    if folder is not None:
        claim(folder, overwrite, resumes=False)
    found: list[Predicate] = []
    counts: dict[int, int] = {}
    for wanted in range(arity + 1):
        new = all_predicates(traces, wanted, clock)
        counts[wanted] = len(new)
        found += new
        progress(f"{len(new)} alternating predicates of {wanted} arguments")
    chosen = [each for place, each in enumerate(found)
              if not any(other.covers(each) and (not each.covers(other) or at < place)
                         for at, other in enumerate(found) if at != place)]  # fmt: skip
    schemas = as_schemas(chosen, traces.actions)
    learned = LiftedModel(schemas, {})
    model = learned.ground(traces.actions)
    right = sum(model.first_rejected(row) == (len(row) - 1 if label else None)
                for row, label in zip(traces.rows, traces.labels))  # fmt: skip
    learned.report.update(_facts(traces, clock), by_arity=counts, offered=len(found), predicates=len(chosen),
                          training_accuracy=right / len(traces))  # fmt: skip
    if folder is not None:
        write_schemas(folder, schemas, model, learned.report)
    return learned


def _facts(traces: Traces, clock: Clock) -> dict[str, Any]:
    return {
        "method": "sift",
        "settings": {"seconds": clock.seconds},
        "traces": {"count": len(traces), "positive": traces.positives, "longest": traces.longest,
                   "sha256": traces.sha256},
        "unfinished": clock.cut,
        "seconds": round(time.monotonic() - clock.begun, 2),
    }  # fmt: skip
