"""statewise train: one run, or one for each of several seeds; new or resumed."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from statewise.cli import cluster_options
from statewise.config.recipe import KINDS
from statewise.runtime import launchers as processes
from statewise.runtime.arguments import Parser, at_least
from statewise.runtime.messages import in_words, say

if TYPE_CHECKING:
    from statewise.config.recipe import Recipe
    from statewise.config.registry import Table
    from statewise.experiments.jobs import RunsOutcome
    from statewise.experiments.launch import Listener

DESCRIPTION = """Trains a run from a recipe, or resumes one.

  statewise train path-star-small --objective next_latent --out runs/nl-1
  statewise train my.yaml --trainer.steps 2000 --out runs/x
  statewise train --resume runs/nl-1
  statewise train path-star-small --seeds 1-5 --jobs 2 --out runs/nl
  statewise train path-star-small --seeds 1-20 --on slurm --out runs/nl
  statewise train tinystories --dry-run --vocabulary 1000 --length 256

Dotted flags set the fields of the recipe; `statewise train RECIPE --help` explains them."""


NEEDED = (
    ("checkpoint", "resume", "--checkpoint is for --resume: the step of a run to continue from"),
    ("vocabulary", "dry_run", "--vocabulary replaces the data of a dry run: give it with --dry-run"),
    ("length", "dry_run", "--length replaces the data of a dry run: give it with --dry-run"),
    ("vocabulary", "length", "--vocabulary and --length replace the data of a dry run together: give both"),
    ("length", "vocabulary", "--vocabulary and --length replace the data of a dry run together: give both"),
    ("json", "dry_run", "--json is for --dry-run; `statewise evaluate RUN --json` prints JSON on a finished run"),
)
"""Options that need another one, and what to say without it."""
NEW = (
    *("recipe", "config", "out", "seeds", "overwrite", "print_config", "resume_if_there"),
    *("dry_run", "json", "vocabulary", "length"),
)
"""Options of a new run."""


def run(words: list[str]) -> int:
    """Runs the command."""
    parser = _parser()
    options, flags = parser.split(words, [f"--{kind}" for kind in (*KINDS, "seed")])
    if options.help:
        return _help(parser, options, flags)
    if options.resume is not None:
        return _resume(options, flags)
    for given, needed, message in NEEDED:
        if getattr(options, given) not in (None, False) and getattr(options, needed) in (None, False):
            raise ValueError(message)
    if options.resume_if_there and options.overwrite:
        raise ValueError("give --resume-if-there or --overwrite, not both")
    if options.seeds is None:
        _refuse_for_one(options, "give --seeds, such as --seeds 1")
    text, source = _recipe(options)
    if not (options.dry_run or options.print_config or options.out is not None):
        raise ValueError("--out is missing: the directory of the new run")
    if not (options.print_config or options.json):
        _begin(f"dry run of {source}" if options.dry_run else f"{source} into {options.out}")
    from statewise.model.recipes import read_recipe

    recipe = read_recipe(text, flags, source)
    if options.print_config:
        say(yaml.safe_dump(recipe.as_dict(), sort_keys=False), end="")
        return 0
    if options.dry_run:
        return _dry_run(recipe, options)
    return _train(recipe, options) if options.seeds is None else _train_seeds(recipe, options, flags)


def _train(recipe: Recipe, options: argparse.Namespace) -> int:
    from statewise.experiments.launch import train, train_or_resume

    def work(listener: Listener) -> Any:
        if options.resume_if_there:
            return train_or_resume(recipe, options.out, listener=listener)
        return train(recipe, options.out, overwrite=options.overwrite, listener=listener)

    return _watched(work, options.out)


def _train_seeds(recipe: Recipe, options: argparse.Namespace, flags: list[str]) -> int:
    from statewise.experiments import seeds

    slurm = cluster_options.read(options)
    if any(flag.partition("=")[0] == "--seed" for flag in flags):
        raise ValueError("give --seed or --seeds, not both")
    out, numbers = Path(options.out), seeds.parse(options.seeds)
    if options.resume_if_there:
        outcome = seeds.train_or_resume(recipe, out, numbers, jobs=options.jobs, slurm=slurm, progress=True)
    else:
        outcome = seeds.train(
            recipe, out, numbers, jobs=options.jobs, overwrite=options.overwrite, slurm=slurm, progress=True
        )
    return _end_of_seeds(out, outcome)


def _refuse_for_one(options: argparse.Namespace, instead: str) -> None:
    """Raises `ValueError` for options that a single run would ignore."""
    ignored = [*cluster_options.set_in(options), *(["--jobs"] if options.jobs != 1 else [])]
    if ignored:
        raise ValueError(f"{ignored[0]} is for the runs of --seeds: {instead}")


def _dry_run(recipe: Recipe, options: argparse.Namespace) -> int:
    """Prints what a run will need."""
    from statewise.cli.dry_run import as_json, as_text
    from statewise.experiments.dry_run import make_plan, random_data, task_data

    if options.vocabulary is not None:
        data = random_data(recipe, options.vocabulary, options.length)
    else:
        try:
            data = task_data(recipe)
        except (ValueError, OSError) as error:
            path = getattr(recipe.task.config, "path", None)
            if isinstance(error, ValueError) and (path is None or Path(path).exists()):
                raise  # the task reads no file, or what is wrong is in it
            hint = "Without these data give --vocabulary N --length T: rows of T random tokens, of a vocabulary of N"
            raise ValueError(f"{in_words(error)}. {hint}") from None
    plan = make_plan(recipe, data)
    if options.json:
        say(as_json(plan))
        return 0
    say(f"{recipe.objective.name} on {recipe.task.name}, backbone {recipe.backbone.name}\n\n{as_text(plan)}")
    return 0


def _begin(what: str) -> None:
    """Prints the first line before the slow imports."""
    if processes.rank() == 0:
        say(f"{what}: loading PyTorch", flush=True)


def _parser() -> Parser:
    parser = Parser("train", DESCRIPTION, add_help=False)
    parser.add_argument("recipe", nargs="?", help="name of a recipe (`statewise list` shows them), or a YAML file")
    parser.add_argument("--config", metavar="FILE", help="a YAML recipe, or a run to repeat")
    parser.add_argument("--out", metavar="DIR", help="new run directory")
    parser.add_overwrite("replace the run in --out")
    parser.add_argument("--resume", metavar="DIR", help="continue the run, or the runs of several seeds, in DIR")
    parser.add_argument(
        "--resume-if-there",
        action="store_true",
        help="continue the run in --out if it is one of this recipe: for jobs that are restarted (torchrun, Slurm)",
    )
    parser.add_argument("--checkpoint", metavar="STEP", help="with --resume: the step to continue from (default: last)")
    parser.add_argument("--seeds", metavar="1-5", help="one run per seed: a range, or numbers with commas")
    parser.add_argument(
        "--jobs", type=at_least(1), default=1, metavar="N", help="with --seeds: parallel runs (default: 1)"
    )
    cluster_options.add_options(parser)
    parser.add_argument("--print_config", action="store_true", help="print the resolved recipe and exit")
    parser.add_argument(
        "--dry-run", action="store_true", help="print parameters, FLOPs, memory and time; writes nothing"
    )
    parser.add_argument("--json", action="store_true", help="with --dry-run: print JSON instead of a table")
    parser.add_argument(
        "--vocabulary", type=at_least(2), metavar="N", help="with --dry-run: random tokens of N in place of the data"
    )
    parser.add_argument("--length", type=at_least(2), metavar="T", help="with --vocabulary: tokens of each row")
    parser.add_argument("-h", "--help", action="store_true", help="show this help; with a recipe, also its fields")
    return parser


def _recipe(options: argparse.Namespace) -> tuple[str | bytes, str]:
    """The recipe's YAML and its source."""
    from statewise.config.recipes import recipe_at, recipe_given, recipe_names

    if (options.recipe is None) == (options.config is None):
        raise ValueError(
            f"name one recipe, or give --config FILE or --resume DIR; recipes: {', '.join(recipe_names())}"
        )
    if options.config is None:
        return recipe_given(options.recipe)
    return recipe_at(Path(options.config)), options.config


def _resume(options: argparse.Namespace, flags: list[str]) -> int:
    others = [getattr(options, name) for name in NEW]
    changed = [flag for flag in flags if flag.removeprefix("--").partition("=")[0] not in processes.PLACING]
    if any(others) or changed:
        raise ValueError(
            "--resume continues a run unchanged: with it, only fields about the machine, such as --trainer.device, may "
            "be given, and no recipe or --out; to change something else, "
            f"begin a new run: train --config {shlex.quote(options.resume)} ... --out NEW"
        )
    from statewise.experiments import seeds

    folder = Path(options.resume)
    if seeds.is_group(folder):
        if options.checkpoint not in (None, "last"):
            raise ValueError(f"--checkpoint needs a single run: resume {folder}/seed-... by itself")
        if flags:
            raise ValueError(f"{flags[0].partition('=')[0]} needs a single run: resume {folder}/seed-... by itself")
        slurm = cluster_options.read(options)
        return _end_of_seeds(folder, seeds.resume(folder, jobs=options.jobs, slurm=slurm, progress=True))
    if (folder / "recipe.yaml").is_file() and seeds.is_begun(folder):
        raise FileNotFoundError(
            f"{folder} holds no runs yet: its creation was interrupted; run the command that created it again"
        )
    _refuse_for_one(options, f"{folder} does not hold several")
    _begin(f"resuming {folder}")
    from statewise.experiments.launch import resume

    return _watched(
        lambda listener: resume(folder, checkpoint=options.checkpoint or "last", flags=flags, listener=listener), folder
    )


def _end_of_seeds(folder: Path, outcome: RunsOutcome | None) -> int:
    """Says how the runs of several seeds ended, and how to continue them; returns the exit code."""
    if outcome is None:
        say(f"{folder} is complete: nothing to resume")
        return 0
    again = f"statewise train --resume {shlex.quote(str(folder))}"
    if outcome.in_cluster:
        say(f"the jobs continue: statewise status {shlex.quote(str(folder))}", file=sys.stderr)
    elif outcome.signal is not None:
        say(f"stopped and saved; continue with: {again}", file=sys.stderr)
    elif outcome.failed:
        say(f"failed: seeds {', '.join(outcome.failed)}; continue with: {again}", file=sys.stderr)
    return outcome.exit_code


def _watched(work: Callable[[Listener], Any], folder: str | Path) -> int:
    """Runs `work(listener)` with a display, and says how to resume if a signal stopped it."""
    from statewise.experiments.progress import Display

    with Display() as display:
        outcome = work(display.listener)
    if processes.rank() != 0:  # only the first process prints
        return 0
    if outcome is None:
        say(
            f"{folder} is complete: nothing to resume. For longer training begin a new run: "
            f"statewise train --config {shlex.quote(str(folder))} --trainer.steps N --out NEW"
        )
        return 0
    if outcome.signal is not None:
        again = f"statewise train --resume {shlex.quote(str(folder))}"
        say(f"stopped at step {outcome.step}, saved; continue with: {again}", file=sys.stderr)
        return 128 + int(outcome.signal)
    return 0


def _help(parser: Parser, options: argparse.Namespace, flags: list[str]) -> int:
    parser.print_help()
    if options.recipe is None and options.config is None:
        return 0
    from statewise.backbones import BACKBONES, with_cells
    from statewise.config.recipe import field_help
    from statewise.config.recipes import recipe_fields
    from statewise.objectives import OBJECTIVES
    from statewise.tasks import TASKS

    tables: dict[str, Table[Any]] = {"task": TASKS, "backbone": BACKBONES, "objective": OBJECTIVES}
    text, source = _recipe(options)
    say("\nfields of this recipe, with its values:")
    say(
        field_help(recipe_fields(text, source), with_cells(flags), lambda kind, name: tables[kind].target(name), source)
    )
    return 0
