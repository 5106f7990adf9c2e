"""Train sequence models that keep a belief state, compare them, and analyse what they have learned.

import statewise
model = statewise.load("runs/nl-1")
model.states(["3,4|4,5/3,5="]).state      # belief states, (B, T, D)
"""

from __future__ import annotations

import importlib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from statewise.runtime.version import __version__

if TYPE_CHECKING:
    from statewise.analysis.base import Findings as Findings
    from statewise.analysis.beliefs.given_states import Probed as Probed
    from statewise.analysis.beliefs.given_states import probe_beliefs as probe_beliefs
    from statewise.backbones.leaks.checks import Leaks as Leaks
    from statewise.deploy.export.export import Format
    from statewise.deploy.export.folder_files import Exported as Exported
    from statewise.experiments.cluster import SlurmOptions as SlurmOptions
    from statewise.experiments.jobs import RunsOutcome as RunsOutcome
    from statewise.experiments.launch import Listener as Listener
    from statewise.experiments.status import Status as Status
    from statewise.experiments.suite import SuiteOutcome as SuiteOutcome
    from statewise.model.model import Model as Model
    from statewise.reporting.comparison import Comparison as Comparison
    from statewise.training.trainer import Outcome as Outcome

__all__ = [
    "Comparison",
    "Exported",
    "Findings",
    "Leaks",
    "Listener",
    "Model",
    "Outcome",
    "Probed",
    "RunsOutcome",
    "SlurmOptions",
    "Status",
    "SuiteOutcome",
    "__version__",
    "build",
    "compare",
    "export",
    "leaks",
    "load",
    "probe_beliefs",
    "seeds",
    "status",
    "suite",
    "train",
]

_MODULES = {
    "Comparison": "reporting.comparison",
    "Exported": "deploy.export.folder_files",
    "Findings": "analysis.base",
    "Leaks": "backbones.leaks.checks",
    "Listener": "experiments.launch",
    "Model": "model.model",
    "Outcome": "training.trainer",
    "Probed": "analysis.beliefs.given_states",
    "probe_beliefs": "analysis.beliefs.given_states",
    "RunsOutcome": "experiments.jobs",
    "SlurmOptions": "experiments.cluster",
    "Status": "experiments.status",
    "SuiteOutcome": "experiments.suite",
}
"""The modules of names that are imported on first use: `import statewise` loads no torch."""

if not TYPE_CHECKING:  # type checkers get the names from the imports above

    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})


def load(folder: str | Path, checkpoint: str | int = "best", device: str = "auto") -> Model:
    """The model of a run directory; see `statewise.model.model.load_model`."""
    from statewise.model.model import load_model

    return load_model(folder, str(checkpoint), device)


def build(recipe: str | Path, *flags: str, **fields: Any) -> Model:
    """An untrained model of a recipe: `build("path-star-small", objective="next_latent", seed=2)`. The recipe is the
    name of one of ours, the path of a YAML file, or a run to repeat.

    `fields` are as in `statewise.config.recipe.as_flags`; `flags` are those of the command, such as
    `--backbone.width=64`.
    """
    from statewise.config.recipe import as_flags
    from statewise.config.recipes import recipe_given
    from statewise.model.model import new_model
    from statewise.model.recipes import read_recipe

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
    `statewise.Listener` is called instead. Raises `FileExistsError` if there is something at `out`
    already, unless `overwrite` says to replace a run.
    """
    if progress and listener is not None:
        raise ValueError("give progress or a listener, not both: a listener takes the place of the display")
    from statewise.config.recipe import as_flags
    from statewise.config.recipes import recipe_given
    from statewise.experiments.launch import train as train_recipe
    from statewise.model.recipes import read_recipe

    field_flags = as_flags(fields, besides=("out", "overwrite", "progress", "listener"))
    text, source = recipe_given(recipe)
    read = read_recipe(text, [*flags, *field_flags], source)
    folder = out or _new_folder(Path(recipe).resolve())
    if not progress:
        return train_recipe(read, folder, overwrite=overwrite, listener=listener)
    from statewise.experiments.progress import Display

    with Display() as display:
        return train_recipe(read, folder, overwrite=overwrite, listener=display.listener)


def seeds(
    recipe: str | Path,
    out: str | Path,
    *flags: str,
    seeds: str | Sequence[int] = "1-5",
    jobs: int = 1,
    slurm: SlurmOptions | None = None,
    overwrite: bool = False,
    resume: bool = False,
    progress: bool = False,
    **fields: Any,
) -> RunsOutcome:
    """Trains a recipe once for each seed, in processes of their own: `seeds("path-star-small", "runs/nl", seeds="1-3",
    objective="next_latent")`. Each run is a folder of `out`: `seed-1`, and so on.

    `recipe`, `flags` and `fields` are as in `build`; `seeds` are numbers, or text such as `1-3,7`. `jobs` runs train at
    a time, or with `slurm` all as jobs of a Slurm cluster. `resume` continues runs of this recipe and these seeds in
    `out`, `progress` prints lines as the command does. A run that fails does not stop the others: see the `failed` of
    what is returned. Raises `FileExistsError` if `out` holds anything, unless `overwrite` says to replace such runs.
    """
    from statewise.config.recipe import as_flags
    from statewise.config.recipes import recipe_given
    from statewise.experiments import seeds as group
    from statewise.experiments.jobs import RunsOutcome
    from statewise.model.recipes import read_recipe

    if overwrite and resume:
        raise ValueError("give overwrite or resume, not both")
    besides = ("seeds", "jobs", "slurm", "overwrite", "resume", "progress")
    text, source = recipe_given(recipe)
    read = read_recipe(text, [*flags, *as_flags(fields, besides=besides)], source)
    numbers = group.parse(seeds if isinstance(seeds, str) else ",".join(map(str, seeds)), "seeds")
    if resume:
        outcome = group.train_or_resume(read, Path(out), numbers, jobs=jobs, slurm=slurm, progress=progress)
        return outcome or RunsOutcome(Path(out), [])
    return group.train(read, Path(out), numbers, jobs=jobs, overwrite=overwrite, slurm=slurm, progress=progress)


def suite(
    suite: str | Path,
    out: str | Path,
    *,
    seeds: str | None = None,
    only: Sequence[str] = (),
    jobs: int = 1,
    slurm: SlurmOptions | None = None,
    report_only: bool = False,
    progress: bool = False,
    saved: str | Path | None = None,
    smoke: bool = False,
) -> SuiteOutcome:
    """Trains the runs of a suite that are not finished, and writes the report on all runs in `out`: `suite("belief",
    "runs/suite", seeds="1-3", only=["parity/"])`.

    `suite` is the name of one of ours, or a YAML file; `only` and `seeds` choose combinations and seeds, as for the
    command. `jobs`, `slurm` and `progress` are as in `seeds`; `report_only` trains nothing. `saved`: a folder in
    which finished runs of the same recipes and seeds are looked for, to which `out` gets links. `smoke`: the tiny form
    of a suite that has one. Raises `ValueError` for a suite that does not fit together, `FileExistsError` for an `out`
    that holds anything else.
    """
    from statewise.experiments.suite import Chosen
    from statewise.experiments.suite import train as train_suite

    chosen = Chosen.of(str(suite), seeds, only, smoke=smoke)
    return train_suite(
        chosen,
        Path(out),
        jobs=jobs,
        slurm=slurm,
        report_only=report_only,
        progress=progress,
        saved=None if saved is None else Path(saved),
    )


def status(folder: str | Path) -> list[Status]:
    """How far a run, the runs of several seeds, or those of a suite are; see
    `statewise.experiments.status.statuses`."""
    from statewise.experiments.status import statuses

    return statuses(folder)


def compare(
    runs: Sequence[str | Path],
    out: str | Path | None = None,
    *,
    better: str | Path | None = None,
    margin: float | None = None,
    metrics: str = "evaluation",
    relative: bool = False,
    overwrite: bool = False,
) -> Comparison:
    """Compares runs, and with `out` writes the report into that folder: `compare(["runs/gpt", "runs/nl"])`. The
    `finding()` of what is returned is one sentence, `as_text()` has the tables. See
    `statewise.experiments.compare.compare`."""
    from statewise.experiments.compare import compare as compare_runs

    return compare_runs(
        runs, out, better=better, margin=margin, metrics=metrics, relative=relative, overwrite=overwrite
    )


def export(
    run: str | Path | Model, out: str | Path, to: Format = "hf", *, checkpoint: str = "best", overwrite: bool = False
) -> Exported:
    """Writes a run's model, or a loaded one, for other libraries, or a folder of transformers as GGUF; see
    `statewise.deploy.export.export.export`."""
    from statewise.deploy.export.export import export as written
    from statewise.deploy.export.export import of_transformers

    if isinstance(run, (str, Path)):
        return written(
            Path(run) if of_transformers(Path(run)) else load(run, checkpoint, "cpu"), out, to, overwrite=overwrite
        )
    return written(run, out, to, overwrite=overwrite)


def leaks(
    model: Any,
    checks: Collection[str] | None = None,
    *,
    length: int | None = None,
    vocabulary: int | None = None,
    checkpoint: str | int = "best",
    device: str = "auto",
) -> Leaks:
    """Whether anything but the past changes a state of a causal model: `leaks("runs/nl-1")`, `leaks(my_module,
    ["packed"])`. The `as_text()` of what is returned has the tables, `clean` says whether nothing leaks. See
    `statewise.deploy.leaks.leaks`."""
    from statewise.deploy.leaks import leaks as found

    return found(model, checks, length=length, vocabulary=vocabulary, checkpoint=str(checkpoint), device=device)


def _new_folder(recipe: Path) -> Path:
    """`runs/NAME` with the name of the recipe, or the first of `runs/NAME-2`, ... that does not exist."""
    name = recipe.stem if recipe.suffix in (".yaml", ".yml") else recipe.name
    folder, number = Path("runs", name), 1
    while folder.exists():
        number += 1
        folder = folder.with_name(f"{name}-{number}")
    return folder
