"""Train sequence models that keep a belief state, compare them, and analyse what they have learned.

import statewise
model = statewise.load("runs/nl-1")
model.states(["3,4|4,5/3,5="]).state      # belief states, (B, T, D)
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from statewise.deploy.export.export import Format
    from statewise.deploy.export.folder_files import Exported
    from statewise.experiments.launch import Listener
    from statewise.model.model import Model
    from statewise.training.trainer import Outcome

__version__ = "0.1.0"


def load(folder: str | Path, checkpoint: str | int = "best", device: str = "auto") -> Model:
    """The model of a run directory; see `statewise.model.loading.load_model`."""
    from statewise.model.loading import load_model

    return load_model(folder, str(checkpoint), device)


def build(recipe: str | Path, *flags: str, **fields: Any) -> Model:
    """An untrained model of a recipe: `build("path-star-small", objective="next_latent", seed=2)`. The recipe is the
    name of one of ours, the path of a YAML file, or a run to repeat.

    `fields` are as in `statewise.config.recipe.as_flags`; `flags` are those of the command, such as
    `--backbone.width=64`.
    """
    from statewise.config.recipe import as_flags
    from statewise.config.recipes import recipe_given
    from statewise.model.building import read_recipe
    from statewise.model.loading import new_model

    text, source = recipe_given(recipe)
    return new_model(read_recipe(text, [*flags, *as_flags(fields)], source))


def train(
    recipe: str | Path,
    *flags: str,
    out: str | Path | None = None,
    overwrite: bool = False,
    progress: bool = False,
    listener: Listener | None = None,
    **fields: Any,
) -> Outcome:
    """Trains a recipe: `train("path-star-small", objective="next_latent", steps=20)`, `train("my.yaml")`.

    `recipe`, `flags` and `fields` are as in `build`. The run directory is `out`, by default a new one in `runs` that
    bears the recipe's name; `load` takes the `folder` of what is returned. `progress` shows it as the command does; a
    `statewise.experiments.launch.Listener` is told instead. Raises `FileExistsError` if there is something at `out`
    already, unless `overwrite` says to replace a run.
    """
    if progress and listener is not None:
        raise ValueError("give progress or a listener, not both: a listener shows what it likes")
    from statewise.config.recipe import as_flags
    from statewise.config.recipes import recipe_given
    from statewise.experiments.launch import train as train_recipe
    from statewise.model.building import read_recipe

    given = as_flags(fields, besides=("out", "overwrite", "progress", "listener"))
    text, source = recipe_given(recipe)
    read = read_recipe(text, [*flags, *given], source)
    folder = out or _new_folder(Path(recipe).resolve())
    if not progress:
        return train_recipe(read, folder, overwrite=overwrite, listener=listener)
    from statewise.experiments.progress import Display

    with Display() as display:
        return train_recipe(read, folder, overwrite=overwrite, listener=display.listener)


def export(
    run: str | Path | Model, out: str | Path, to: Format = "hf", *, checkpoint: str = "best", overwrite: bool = False
) -> Exported:
    """Writes a run's model, or a loaded one, for other libraries; see `statewise.deploy.export.export.export`."""
    from statewise.deploy.export.export import export as written

    model = load(run, checkpoint, "cpu") if isinstance(run, (str, Path)) else run
    return written(model, out, to, overwrite=overwrite)


def _new_folder(recipe: Path) -> Path:
    """`runs/NAME` with the name of the recipe, or the first of `runs/NAME-2`, ... that is not there."""
    name = recipe.stem if recipe.suffix in (".yaml", ".yml") else recipe.name
    folder, number = Path("runs", name), 1
    while folder.exists():
        number += 1
        folder = folder.with_name(f"{name}-{number}")
    return folder
