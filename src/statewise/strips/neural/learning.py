"""Learns an action model from traces: trains restarts of the STRIPS Transformer together, then pools their heads.

A model accepts a trace iff all of its heads do, so heads of different restarts can be combined. The pool chooses heads
that are sound and that the traces support: a head that would reject a share f of all actions, and rejects none of V
valid ones, does so by chance with probability (1 - f)^V. If this evidence, -V log(1 - f), is several times the head's
description length (the logarithm of the number of heads of its size), its atom is real; otherwise the head may fit the
traces only because so many heads were tried. Restarts agree on real atoms but miss different ones, so all supported
heads together recover far more of the hidden model than the smallest set that explains the negatives (measured:
docs/results/strips.md).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from statewise.runtime.bounds import bounded
from statewise.strips.model.heads import EVIDENCE, Candidates, Heads, Judge, accuracy, evidence, smallest_cover, sound
from statewise.strips.model.learned import Learned, read_checkpoint, write_checkpoint
from statewise.strips.model.traces import Traces
from statewise.strips.verification.containment import prune, undominated


@dataclass(frozen=True)
class Settings:
    """Settings of training. Optimiser, batch size and learning rate are those of the paper."""

    atoms: int | None = None
    """Heads per restart. None if the number of atoms is unknown: then there are twice as many heads as actions."""
    restarts: int = 10
    """Number of restarts, which train together."""
    steps: int = 20_000
    """Maximum number of steps. A restart stops earlier once it keeps classifying all training traces correctly."""
    batch: int = 8
    """Traces per step and restart."""
    learning_rate: float = 0.02
    """Learning rate of RAdam."""
    check_every: int = 250
    """Steps between two checks of the binary models."""
    stay: int = 3
    """A restart stops when all traces were correct at this many checks in a row."""
    stall: int | None = 5_000
    """A restart stops when its accuracy has not risen for this many steps; None: it continues, as in the paper."""
    noise: float = 0.0
    """Share of the traces that may be noisy: heads that disagree with up to that many are kept."""
    pool: bool | None = None
    """Whether to pool the sound heads of all restarts. None: only if the pool classifies at least as many training
    traces correctly as the best restart alone."""
    seed: int = 1
    """Seed of the initial weights and of the order of traces."""

    def __post_init__(self) -> None:
        bounded(self, "atoms", at_least=1, reason="a model without atoms accepts all")
        bounded(self, "restarts", "atoms", at_most=100_000)
        bounded(self, "restarts", "steps", "batch", "check_every", "stay", "stall", at_least=1)
        bounded(self, "noise", at_least=0, below=0.5)
        bounded(self, "learning_rate", above=0)
        bounded(self, "seed", at_least=0)


@dataclass
class RestartState:
    """How far a restart has come."""

    number: int
    accuracy: float = 0.0
    """Share of the training traces whose every prefix its binary model classifies correctly."""
    best: float = -1.0
    best_step: int = 0
    streak: int = 0
    end: str = ""
    """`solved`, `stalled` or `steps`; empty while it is active."""
    steps: int = 0

    def record(self, accuracy: float, step: int, settings: Settings) -> None:
        """Records the accuracy at `step`, and sets `end` if the restart should stop."""
        self.accuracy, self.steps = accuracy, step
        self.streak = self.streak + 1 if accuracy == 1 else 0
        if accuracy > self.best:
            self.best, self.best_step = accuracy, step
        if self.streak >= settings.stay:
            self.end = "solved"
        elif settings.stall is not None and step - self.best_step >= settings.stall and accuracy < 1:
            self.end = "stalled"
        elif step >= settings.steps:
            self.end = "steps"


FORMAT = 1


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

    Beyond the paper: restarts train together and stop early, and their sound heads are pooled. After `seconds`, or once
    `stop()` is true, the best model so far is returned, and `report["unfinished"]` says so. With `folder`, a checkpoint
    is written there at each check, from which the same call continues exactly. Raises `ValueError` without negative
    traces, and if the checkpoint belongs to other settings or traces."""
    width = settings.atoms or auto_atoms(len(traces.actions))
    training = Training.begun(traces, settings, (width, len(traces.actions)))
    group, results = training.group, training.results
    theta, log, earlier = group.binary(), list[dict[str, Any]](), 0.0
    facts = {"format": FORMAT, "settings": asdict(settings), "traces": traces.sha256}
    if folder is not None and (checkpoint := _read_checkpoint(training, theta.shape, folder, facts)) is not None:
        theta, log, earlier = checkpoint
    began = time.monotonic() - earlier

    def record(active: np.ndarray) -> None:
        theta[group.numbers] = active
        log.append({"step": group.steps, "accuracy": [round(each.accuracy, 4) for each in results]})

    def save() -> None:
        if folder is not None:
            arrays = {"theta": theta, **{f"group.{name}": value for name, value in group.state().items()}}
            done = {"results": [asdict(each) for each in results], "log": log, "seconds": time.monotonic() - began}
            write_checkpoint(folder, arrays, {**facts, "progress": done})

    unfinished = training.run(record, save, seconds=seconds, stop=stop, progress=progress)
    report = {"heads": width, "seconds": round(time.monotonic() - began, 2), "log": log, "unfinished": unfinished}
    return _finish(training, theta, traces, report)


@dataclass
class Training:
    """Restarts in training, and how far they have come."""

    group: Any
    """The `transformer.Restarts`."""
    judge: Judge
    settings: Settings
    results: list[RestartState]

    @classmethod
    def begun(
        cls, traces: Traces, settings: Settings, shape: tuple[int, ...], places: np.ndarray | None = None
    ) -> Training:
        """New restarts, with `shape` and `places` as in `transformer.Restarts`. Raises `ValueError` without negative
        traces."""
        if not sum(traces.labels):
            raise ValueError(
                "there are no negative traces: a model that rejects nothing would explain the positive ones alone. Add "
                "traces with label 1 whose last action is not applicable"
            )
        from statewise.strips.neural.transformer import Restarts

        group = Restarts(
            traces,
            shape,
            settings.restarts,
            seed=settings.seed,
            batch=settings.batch,
            learning_rate=settings.learning_rate,
            places=places,
        )
        return cls(group, Judge(traces), settings, [RestartState(number) for number in range(settings.restarts)])

    def run(
        self,
        record: Callable[[np.ndarray], None],
        save: Callable[[], None] = lambda: None,
        *,
        seconds: float | None,
        stop: Callable[[], bool],
        progress: Progress | None,
    ) -> list[str]:
        """Trains until all restarts have ended, the time is up or `stop()` is true, and returns what was not finished.
        Each check calls `record` with theta [R, L, A, 3] of the active restarts, then `save`."""
        group, steps = self.group, self.settings.steps
        end = time.monotonic() + seconds if seconds is not None else float("inf")
        while len(group.numbers) and group.steps < steps:
            if stop() or time.monotonic() > end:
                save()
                self._check(record)  # after `save`, since the check may end restarts
                return [f"training: {group.steps} of at most {steps} steps"]
            group.step()
            if group.steps % self.settings.check_every == 0 or group.steps == steps:
                self._check(record)
                save()
                if progress is not None:
                    progress(group.steps, steps, np.array([each.accuracy for each in self.results]), len(group.numbers))
        return []

    def _check(self, record: Callable[[np.ndarray], None]) -> None:
        """Judges the binary models of the active restarts, and stops the finished ones."""
        group = self.group
        theta = group.binary()
        verdicts = self.judge.verdicts(Heads.of_theta(theta))
        alarms, catches = (each.reshape(*theta.shape[:2], -1) for each in (verdicts.alarms, verdicts.catches))
        active = [self.results[number] for number in group.numbers]
        for each, right in zip(active, self.judge.right(alarms, catches).mean(1)):
            each.record(float(right), group.steps, self.settings)
        record(theta)
        if any(each.end for each in active):
            group.keep(np.flatnonzero([not each.end for each in active]))


def _finish(training: Training, theta: np.ndarray, traces: Traces, report: dict[str, Any]) -> Learned:
    """The model of the pool, or of the best restart; adds to the report."""
    import torch

    settings, judge, results = training.settings, training.judge, training.results
    began = time.monotonic()
    best = max(range(settings.restarts), key=lambda number: (results[number].accuracy, -number))
    every = Heads.of_theta(theta)
    offered = Candidates.alone(every.only(every.unique()))
    pooled = pool(offered, judge, noise=settings.noise) if settings.pool is not False else None
    heads = Heads.of_theta(theta[best])
    use_pool = False
    if pooled is not None and len(pooled.heads) and (settings.pool or pooled.accuracy >= results[best].accuracy):
        heads, use_pool = pooled.heads, True
    heads = heads.only(heads.unique())
    heads = heads.only(undominated(heads))
    pruned = heads.only(prune(Candidates.alone(heads), traces.actions))
    report |= {
        "method": "neural",
        "settings": asdict(settings),
        "traces": traces.summary(),
        "actions": len(traces.actions),
        "restarts": [asdict(each) for each in results],
        "best_restart": best,
        "pool": _described(pooled, len(offered)),
        "pooled": use_pool,
        "heads_before_pruning": len(heads),
        "atoms": len(pruned),
        "training_accuracy": accuracy(pruned, judge),
        "threads": torch.get_num_threads(),
        "seconds_of_pooling": round(time.monotonic() - began, 2),
    }
    return Learned(pruned.model(traces.actions), theta, report)


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


def _read_checkpoint(
    training: Training, shape: tuple[int, ...], folder: Path, facts: dict[str, Any]
) -> tuple[np.ndarray, list[dict[str, Any]], float] | None:
    """Restores training from the folder's checkpoint, if it has one; returns theta, of this shape, log and seconds."""
    checkpoint = read_checkpoint(folder)
    if checkpoint is None:
        return None
    arrays, kept = checkpoint
    if {key: kept.get(key) for key in facts} != json.loads(json.dumps(facts)):
        changed = [key for key in facts["settings"] if kept["settings"].get(key) != facts["settings"][key]]
        what = f"other settings ({', '.join(changed)})" if changed else "other traces"
        raise ValueError(f"{folder} holds an interrupted run with {what}: choose another `out`, or give `overwrite`")
    progress = kept["progress"]
    try:
        theta = arrays["theta"]
        if theta.shape != shape or len(progress["results"]) != len(training.results):
            raise ValueError(f"theta has the shape {theta.shape}, not {shape}")
        training.group.restore({name.removeprefix("group."): value for name, value in arrays.items()})
        training.results[:] = [RestartState(**each) for each in progress["results"]]
    except (KeyError, TypeError, ValueError, IndexError, RuntimeError) as error:
        raise ValueError(f"{folder / 'checkpoint.npz'}: damaged: {error}: start over with `overwrite`") from None
    return theta, progress["log"], progress["seconds"]


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
    is_chosen = worth >= threshold
    supported = int(is_chosen.sum())
    negative = judge.labels == 1
    alarms, catches = able.verdicts(judge)
    proven = True
    uncaught = catches[:, negative].any(0) & ~catches[is_chosen][:, negative].any(0)
    if uncaught.sum() > noise * negative.sum():
        rest = np.flatnonzero(~is_chosen)
        cover, proven = smallest_cover(catches[rest][:, negative][:, uncaught], worth[rest])
        is_chosen[rest[cover]] = True
    caught = float(catches[is_chosen][:, negative].any(0).mean()) if negative.any() else 1.0
    accuracy = float(judge.right(alarms[is_chosen], catches[is_chosen]).mean())
    chosen = np.flatnonzero(is_chosen)
    return Pool(places[chosen], able.only(chosen).heads, len(able), supported, caught, accuracy, proven)
