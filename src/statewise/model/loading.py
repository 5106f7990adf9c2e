"""Models, new from a recipe or loaded from a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from statewise.config.recipe import Recipe, parse
from statewise.model.building import TABLES, make_objective, make_task
from statewise.model.model import Model
from statewise.run import CONFIG, CONVERTED, Run
from statewise.training import machine
from statewise.training.checkpoint import load_weights, save


def new_model(recipe: Recipe) -> Model:
    """An untrained model. Raises `ValueError` if the task's data are not as they must be."""
    task = make_task(recipe)
    return Model(recipe, task, make_objective(recipe, task))


def recipe_of_run(run: Run, flags: Sequence[str] = ()) -> Recipe:
    """The recipe of a run, with `flags` over it; fields that an earlier version did not know have their defaults.
    Raises `ValueError` if it is damaged, or for wrong flags."""
    return parse(run.recipe(), flags, TABLES, source=str(run.folder / CONFIG))


def model_of_run(run: Run, flags: Sequence[str] = ()) -> Model:
    """An untrained model of the recipe of a run, with `flags` over it. Raises `ValueError` if the run's files are
    damaged, or for wrong flags."""
    recipe = recipe_of_run(run, flags)
    task = make_task(recipe, run.task_files())
    try:
        return Model(recipe, task, make_objective(recipe, task), run)
    except ValueError as error:
        raise ValueError(f"{run.folder / CONFIG}: {error}") from None


def keep_model(model: Model, folder: Path, *, overwrite: bool) -> None:
    """Writes a model whose weights come from elsewhere as a run without training, at step 0. Raises `FileExistsError`
    if something is there already."""
    environment = {**machine.describe(model.recipe.trainer), "steps": 0}
    with Run.claimed(folder, overwrite):
        run = Run.create(
            folder,
            model.recipe.as_dict(),
            model.task.files(),
            environment,
            model.task.data_identity(),
            overwrite=overwrite,
        )
        with run.lock():
            save(run, 0, model.objective.state_dict(), {})
            run.log({"kind": "end", "step": 0, "reason": CONVERTED, "seconds": 0.0})


def load_model(folder: str | Path, checkpoint: str = "best", device: str = "auto") -> Model:
    """The model of a run, at the checkpoint `best`, `last` or that of a step.

    Raises `FileNotFoundError` or `ValueError` if there is no such run or its files are damaged.
    """
    run = Run.open(Path(folder))
    found = run.find_checkpoint(checkpoint)
    model = model_of_run(run)
    load_weights(found, model.objective)
    model.objective.to(machine.choose_device(device))
    model.checkpoint = found
    return model
