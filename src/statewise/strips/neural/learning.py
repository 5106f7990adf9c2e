"""Learns an action model from traces: trains restarts of the STRIPS Transformer together, then pools their heads."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from statewise.strips.model.candidates import Candidates
from statewise.strips.model.heads import Heads, Judge
from statewise.strips.model.learned import Learned, read_checkpoint, write_checkpoint
from statewise.strips.model.traces import Traces
from statewise.strips.neural.pooling import Pool, pool
from statewise.strips.neural.settings import RestartState, Settings
from statewise.strips.verification.pruning import prune, undominated

FORMAT = 1


@dataclass
class _Work:
    """A learning run in progress."""

    settings: Settings
    judge: Judge
    results: list[RestartState]
    theta: np.ndarray
    """[R, L, A, 3] of all restarts; final for the finished ones."""
    seconds: float = 0.0
    log: list[dict[str, Any]] = field(default_factory=list)


def auto_atoms(actions: int) -> int:
    """The number of heads per restart if the number of atoms is unknown: known planning domains have fewer atoms than
    twice their actions, and spare heads help a restart to solve its traces. Pooling and pruning remove the rest."""
    return max(6, 2 * actions)


Progress = Callable[[int, int, np.ndarray, int], None]
"""Called at each check with the step, the maximum number of steps, the accuracy of each restart [R] and the number of
active restarts."""


def learn_neural(
    traces: Traces,
    settings: Settings,
    *,
    seconds: float | None = None,
    stop: Callable[[], bool] = lambda: False,
    folder: Path | None = None,
    progress: Progress | None = None,
) -> Learned:
    """Learns an action model that classifies the traces (section *Training the STRIPS Transformer* of the paper).

    Beyond the paper: restarts train together and stop early, and their sound heads are pooled (`pooling`). After
    `seconds`, or once `stop()` is true, the best model so far is returned, and `report["unfinished"]` says so. With
    `folder`, a checkpoint is written there at each check, from which the same call continues exactly. Raises
    `ValueError` without negative traces, and if the checkpoint belongs to other settings or traces."""
    if not sum(traces.labels):
        raise ValueError(
            "there are no negative traces: a model that rejects nothing would explain the positive ones alone. Add "
            "traces with label 1 whose last action is not applicable"
        )
    import torch

    from statewise.strips.neural.restarts import Restarts

    width = settings.atoms or auto_atoms(len(traces.actions))
    group = Restarts(
        traces,
        (width, len(traces.actions)),
        settings.restarts,
        seed=settings.seed,
        batch=settings.batch,
        learning_rate=settings.learning_rate,
    )
    work = _Work(settings, Judge(traces), [RestartState(number) for number in range(settings.restarts)], group.binary())
    facts = {"format": FORMAT, "settings": asdict(settings), "traces": traces.sha256}
    if folder is not None:
        _resume(work, group, folder, facts)
    began = time.monotonic() - work.seconds
    end = time.monotonic() + seconds if seconds is not None else float("inf")
    cut = False
    while len(group.numbers) and group.steps < settings.steps:
        if cut := stop() or time.monotonic() > end:
            work.seconds = time.monotonic() - began
            if folder is not None:
                _save_checkpoint(work, group, folder, facts)
            _check(work, group)  # after the checkpoint, since the check may end restarts
            break
        group.step()
        if group.steps % settings.check_every == 0 or group.steps == settings.steps:
            _check(work, group)
            work.seconds = time.monotonic() - began
            if folder is not None:
                _save_checkpoint(work, group, folder, facts)
            if progress is not None:
                accuracy = np.array([each.accuracy for each in work.results])
                progress(group.steps, settings.steps, accuracy, len(group.numbers))
    learned = _finish(work, traces, width, torch.get_num_threads())
    learned.report["unfinished"] = [f"training: {group.steps} of at most {settings.steps} steps"] if cut else []
    return learned


def _check(work: _Work, group: Any) -> None:
    """Judges the binary models of the active restarts, and stops the finished ones."""
    settings, judge = work.settings, work.judge
    theta = group.binary()
    count, width = theta.shape[:2]
    verdicts = judge.verdicts(Heads.of_theta(theta))
    alarms, catches = (each.reshape(count, width, -1) for each in (verdicts.alarms, verdicts.catches))
    accuracy = judge.right(alarms, catches).mean(1)
    active = np.ones(count, dtype=bool)
    for place, number in enumerate(group.numbers):
        result = work.results[number]
        result.record(float(accuracy[place]), group.steps, settings)
        active[place] = not result.end
        work.theta[number] = theta[place]
    work.log.append({"step": group.steps, "accuracy": [round(each.accuracy, 4) for each in work.results]})
    if not active.all():
        group.keep(np.flatnonzero(active))


def _finish(work: _Work, traces: Traces, width: int, threads: int) -> Learned:
    settings, judge = work.settings, work.judge
    began = time.monotonic()
    best = max(range(settings.restarts), key=lambda number: (work.results[number].accuracy, -number))
    alone = Heads.of_theta(work.theta[best])
    every = Heads.of_theta(work.theta)
    offered = Candidates.alone(every.only(every.unique()))
    pooled = pool(offered, judge, noise=settings.noise) if settings.pool is not False else None
    use = (
        pooled is not None
        and len(pooled.heads) > 0
        and (settings.pool or pooled.accuracy >= work.results[best].accuracy)
    )
    chosen = pooled.heads if use and pooled is not None else alone
    chosen = chosen.only(chosen.unique())
    chosen = chosen.only(undominated(chosen))
    pruned = chosen.only(prune(Candidates.alone(chosen), traces.actions))
    verdicts = judge.verdicts(pruned)
    report = {
        "method": "neural",
        "settings": asdict(settings),
        "traces": {
            "count": len(traces),
            "positive": traces.positives,
            "longest": traces.longest,
            "sha256": traces.sha256,
        },
        "actions": len(traces.actions),
        "heads": width,
        "restarts": [asdict(each) for each in work.results],
        "best_restart": best,
        "pool": _described(pooled, len(offered)),
        "pooled": bool(use),
        "heads_before_pruning": len(chosen),
        "atoms": len(pruned),
        "training_accuracy": float(judge.right(verdicts.alarms, verdicts.catches).mean()),
        "threads": threads,
        "seconds": round(work.seconds, 2),
        "seconds_of_pooling": round(time.monotonic() - began, 2),
        "log": work.log,
    }
    return Learned(pruned.model(traces.actions), work.theta, report)


def _described(pooled: Pool | None, offered: int) -> dict[str, Any] | None:
    if pooled is None:
        return None
    return {
        "offered": offered,
        "sound": pooled.sound,
        "supported": pooled.supported,
        "chosen": len(pooled.chosen),
        "negatives_caught": pooled.caught,
        "training_accuracy": pooled.accuracy,
        "cover_proven": pooled.proven,
    }


def _save_checkpoint(work: _Work, group: Any, folder: Path, facts: dict[str, Any]) -> None:
    arrays = {f"group.{name}": value for name, value in group.state().items()}
    arrays["theta"] = work.theta
    progress = {"results": [asdict(each) for each in work.results], "log": work.log, "seconds": work.seconds}
    write_checkpoint(folder, arrays, {**facts, "progress": progress})


def _resume(work: _Work, group: Any, folder: Path, facts: dict[str, Any]) -> None:
    """Resumes from the folder's checkpoint, if it has one."""
    checkpoint = read_checkpoint(folder)
    if checkpoint is None:
        return
    arrays, kept = checkpoint
    before = {key: kept.get(key) for key in facts}
    if before != json.loads(json.dumps(facts)):
        changed = [key for key in facts["settings"] if kept["settings"].get(key) != facts["settings"][key]]
        what = f"other settings ({', '.join(changed)})" if changed else "other traces"
        raise ValueError(f"{folder} holds an interrupted run with {what}: choose another --out, or give --overwrite")
    progress, state = kept["progress"], {name.removeprefix("group."): value for name, value in arrays.items()}
    try:
        theta = arrays["theta"]
        if theta.shape != work.theta.shape or len(progress["results"]) != len(work.results):
            raise ValueError(f"theta has the shape {theta.shape}, not {work.theta.shape}")
        group.restore(state)
        work.results = [RestartState(**each) for each in progress["results"]]
    except (KeyError, TypeError, ValueError, IndexError, RuntimeError) as error:
        raise ValueError(f"{folder / 'checkpoint.npz'}: damaged: {error}: start over with --overwrite") from None
    work.log, work.seconds, work.theta = progress["log"], progress["seconds"], theta
