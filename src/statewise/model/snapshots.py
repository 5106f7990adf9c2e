"""Snapshots of a model for analyses: the current model, other checkpoints of its run, and the untrained model."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial

from statewise.analysis.base import Snapshot, Subject
from statewise.config.recipe import Recipe
from statewise.data_types import Completion, Examples
from statewise.decoding import make_decoder
from statewise.evaluation.evaluate import complete
from statewise.model.building import make_objective
from statewise.objectives.activations import backbone_of, read
from statewise.objectives.base import Objective
from statewise.run import Checkpoint, Run
from statewise.runtime.progress import announced
from statewise.runtime.version import __version__
from statewise.tasks.base import Task
from statewise.training.checkpoint import fingerprint, load_weights


def snapshot(objective: Objective, step: int | None = None, run: Run | None = None) -> Snapshot:
    """A model at training step `step`; None: untrained. `run` caches the arrays of `Snapshot.remember` under keys that
    contain the digest of the weights; None: nothing is cached."""
    predictor, label = objective.eval().predictor(), "new model" if step is None else f"step {step}"
    made = Snapshot(label, predictor, step, activations=lambda batch, names: read(backbone_of(predictor), batch, names))
    if run is None:
        return made
    device = next(objective.parameters()).device.type
    made_by = f"{__version__} {device} {run.precision()} {fingerprint(objective)}"
    return dataclasses.replace(made, remember=lambda key, make: run.remember(f"{made_by} {key}", make))


def subject(
    recipe: Recipe, task: Task, objective: Objective, step: int | None, run: Run | None, *, patched: bool
) -> Subject:
    """The subject of an analysis of `objective`. `patched`: nothing is cached, since activations do not follow from the
    weights alone."""
    device = next(objective.parameters()).device
    itself = snapshot(objective, step, None if patched else run)

    def load(checkpoint: Checkpoint) -> Snapshot:
        other = make_objective(recipe, task)
        load_weights(checkpoint, other)
        return snapshot(other.to(device), checkpoint.step, run)

    def checkpoints(which: str) -> Iterator[tuple[int, Callable[[], Snapshot]]]:
        if run is None:
            raise ValueError("this model does not belong to a run: it has no other checkpoints")
        every = [str(checkpoint.step) for checkpoint in run.checkpoints()]
        names = every if which == "all" else which.replace(" ", "").split(",")
        for wanted in announced(names, "checkpoints", len(names)):
            at = run.find_checkpoint(wanted)
            yield at.step, partial(load, at)

    def untrained() -> Snapshot:
        other = make_objective(dataclasses.replace(recipe, seed=recipe.seed + 1), task).to(device)
        # Backbones that change during training keep its progress in buffers: the control is at the same point.
        other.load_state_dict(dict(objective.named_buffers()), strict=False)
        return snapshot(other, run=run)

    def completed(examples: Examples) -> list[Completion]:
        return complete(task, itself.predictor, make_decoder("greedy"), examples, block=256)

    return Subject(task, itself, checkpoints, untrained, completed, str(device))
