"""Builds the task and the objective of a recipe, or of a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence, Sized
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import torch

from statewise.backbones import BACKBONES
from statewise.config.recipe import Recipe, parse
from statewise.model.recipes import TABLES, explaining_missing_capability
from statewise.objectives import OBJECTIVES
from statewise.run import CONFIG
from statewise.tasks import TASKS
from statewise.tasks.base import ComparedBySymbol, Task, consecutive_rows
from statewise.training.machine import weights_that_fit

if TYPE_CHECKING:
    from statewise.analysis.base import Analysis
    from statewise.backbones.base import Backbone
    from statewise.decoding.predictor import Predictor
    from statewise.objectives.base import Objective
    from statewise.run import Run
    from statewise.tasks.base import Kept


def recipe_of_run(run: Run, flags: Sequence[str] = ()) -> Recipe:
    """The recipe of a run, with `flags` over it; fields that an earlier version did not know have their defaults.
    Raises `ValueError` if it is damaged, or for wrong flags."""
    return parse(run.recipe(), flags, TABLES, source=str(run.folder / CONFIG))


def make_task(recipe: Recipe, kept: Kept | None = None) -> Task:
    """The recipe's task; `kept` holds the files that it left in a run."""
    return TASKS[recipe.task.name](recipe.task.config, kept)


class Symbols(Protocol):
    """The part of a task that a model must know."""

    @property
    def vocab(self) -> Sized:
        """The symbols, one for each token id."""

    @property
    def context(self) -> int:
        """Tokens of the longest sequence."""


def make_objective(recipe: Recipe, task: Symbols) -> Objective:
    """The recipe's objective with its backbone, and new weights by the recipe's seed. Raises `ValueError` if the
    weights do not fit this machine's memory, or if objective, backbone and order of rows do not go together."""

    def make_backbone(*, extra_tokens: int = 0, embedding_of: Backbone | None = None, **fields: Any) -> Backbone:
        config = dataclasses.replace(recipe.backbone.config, **fields)
        vocabulary = len(task.vocab) + extra_tokens
        return BACKBONES[recipe.backbone.name](
            config, vocabulary=vocabulary, context=task.context, embedding_of=embedding_of
        )

    with _drawing_by(recipe.seed), explaining_missing_capability(), weights_that_fit():
        if recipe.trainer.rows == "consecutive" and isinstance(task, Task):
            consecutive_rows(task)
        objective = OBJECTIVES[recipe.objective.name](recipe.objective.config, make_backbone)
    if isinstance(task, Task):
        objective.check_symbols(task.vocab.symbols)
    if objective.backbones_across_rows() and recipe.trainer.rows != "consecutive":
        raise ValueError(
            "backbone.across_rows carries the state from each row to the next, but with trainer.rows "
            f"{recipe.trainer.rows} rows are not consecutive: set trainer.rows to consecutive, or backbone.across_rows "
            "to false"
        )
    return objective


@contextmanager
def _drawing_by(seed: int) -> Iterator[None]:
    """Within, torch's random numbers on the CPU follow from `seed`; the caller's generator is restored afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def parts_of_run(run: Run, flags: Sequence[str] = ()) -> tuple[Recipe, Task, Objective]:
    """The recipe of a run, with `flags` over it, its task, and its objective with new weights. Raises `ValueError` if
    the run's files are damaged, or for wrong flags."""
    recipe = recipe_of_run(run, flags)
    task = make_task(recipe, run.task_files())
    if isinstance(task, ComparedBySymbol):
        task.remember = run.remember
    try:
        return recipe, task, make_objective(recipe, task)
    except ValueError as error:
        raise ValueError(f"{run.folder / CONFIG}: {error}") from None


@contextmanager
def inference(objective: Objective, precision: str) -> Iterator[Predictor]:
    """The predictor of an objective. Within, it computes in `precision`, fp32 or bf16, and if the model or its task
    lacks a capability, a `ValueError` says which models or tasks have it."""
    device = next(objective.parameters()).device.type
    with torch.autocast(device, torch.bfloat16, enabled=precision == "bf16"), explaining_missing_capability():
        yield objective.checked_predictor()


def check_analysis(analysis: Analysis, task: Task, objective: Objective) -> None:
    """Raises `ValueError` if the analysis does not suit models of the objective on the task. The objective may be on
    the device `meta`, without weights."""
    with explaining_missing_capability(), torch.device("meta"):
        analysis.check(task, objective.predictor)
