"""Models, new from a recipe or loaded from a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from statewise.model.building import make_objective, make_task, parts_of_run
from statewise.model.model import Model
from statewise.run import CONVERTED, Run
from statewise.training.checkpoint import load_weights, save
from statewise.training.machine import choose_device, describe

if TYPE_CHECKING:
    from statewise.config.recipe import Recipe


def new_model(recipe: Recipe) -> Model:
    """An untrained model. Raises `ValueError` if the task's data are not as they must be."""
    task = make_task(recipe)
    return Model(recipe, task, make_objective(recipe, task))


def model_of_run(run: Run, flags: Sequence[str] = ()) -> Model:
    """An untrained model of the recipe of a run, with `flags` over it. Raises `ValueError` if the run's files are
    damaged, or for wrong flags."""
    return Model(*parts_of_run(run, flags), run)


def load_model(folder: str | Path, checkpoint: str = "best", device: str = "auto") -> Model:
    """The model of a run, at the checkpoint `best`, `last` or that of a step.

    Raises `FileNotFoundError` or `ValueError` if there is no such run or its files are damaged.
    """
    run = Run.open(Path(folder))
    found = run.find_checkpoint(checkpoint)
    model = model_of_run(run)
    load_weights(found, model.objective)
    model.objective.to(choose_device(device))
    model.checkpoint = found
    return model


def keep_model(model: Model, folder: Path, *, overwrite: bool) -> None:
    """Writes a model whose weights come from elsewhere as a run without training, at step 0. Raises `FileExistsError`
    if something is there already."""
    recipe, task = model.recipe, model.task
    environment = {**describe(recipe.trainer), "steps": 0}
    with Run.claimed(folder, overwrite):
        run = Run.create(folder, recipe.as_dict(), task.files(), environment, task.data_identity(), overwrite=overwrite)
        with run.lock():
            save(run, 0, model.objective.state_dict(), {})
            run.log({"kind": "end", "step": 0, "reason": CONVERTED, "seconds": 0.0})
