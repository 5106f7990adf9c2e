"""statewise train: one run, or one for each of several seeds; new or resumed."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from statewise.cli.arguments import Parser

if TYPE_CHECKING:
    from statewise.launch import Listener

DESCRIPTION = """Trains a run from a recipe, or goes on with one.

  statewise train path-star-small --objective next_latent --objective.horizon 2 --seed 1 --out runs/nl-1
  statewise train --config my.yaml --trainer.steps 2000 --out runs/x
  statewise train --resume runs/nl-1
  statewise train path-star-small --seeds 1-5 --jobs 2 --out runs/nl

Every field of the recipe can be set as a dotted flag; `statewise train RECIPE --help` shows them all."""


def run(words: list[str]) -> int:
    """Runs the verb."""
    parser = _parser()
    options, flags = parser.split(words)
    if options.help:
        return _help(parser, options, flags)
    if options.resume is not None:
        return _resume(options, flags)
    text, source = _recipe(options)
    from statewise.experiment import read_recipe

    recipe = read_recipe(text, flags, source)
    if options.print_config:
        print(yaml.safe_dump(recipe.as_dict(), sort_keys=False), end="")
        return 0
    if options.out is None:
        raise ValueError("--out is missing: the directory of the new run")
    if options.seeds is not None:
        from statewise.cli import seeds

        if any(flag.partition("=")[0] == "--seed" for flag in flags):
            raise ValueError("give --seed or --seeds, not both")

        return seeds.train(recipe, Path(options.out), seeds.parse(options.seeds), options.jobs, options.overwrite)
    from statewise.launch import train

    return _watched(lambda listener: train(recipe, options.out, overwrite=options.overwrite, listener=listener),
                    options.out)  # fmt: skip


def _parser() -> Parser:
    parser = Parser("train", DESCRIPTION, add_help=False)
    parser.add_argument("recipe", nargs="?", help="name of a recipe; `statewise list` shows them")
    parser.add_argument("--config", metavar="FILE", help="a recipe of your own, as YAML")
    parser.add_argument("--out", metavar="DIR", help="directory of the new run")
    parser.add_argument("--overwrite", action="store_true", help="replace the run in --out")
    parser.add_argument("--resume", metavar="DIR", help="go on with the run (or the runs of several seeds) in DIR")
    parser.add_argument("--checkpoint", default="last", help="with --resume: the step to go on from (default: last)")
    parser.add_argument("--seeds", metavar="1-5", help="a run for each seed: a range, or numbers with commas")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="with --seeds: runs at a time (default 1)")
    parser.add_argument("--print_config", action="store_true", help="print the resolved recipe and stop")
    parser.add_argument("-h", "--help", action="store_true", help="show this; with a recipe, its fields too")
    return parser


def _recipe(options: argparse.Namespace) -> tuple[str, str]:
    """The recipe's YAML and where it came from."""
    from statewise.recipes import recipe_names, recipe_text

    if (options.recipe is None) == (options.config is None):
        raise ValueError(
            f"name one recipe, or give --config FILE or --resume DIR; recipes: {', '.join(recipe_names())}"
        )
    if options.config is None:
        return recipe_text(options.recipe), f"recipe {options.recipe}"
    return Path(options.config).read_text(), options.config


def _resume(options: argparse.Namespace, flags: list[str]) -> int:
    others = (options.recipe, options.config, options.out, options.seeds, options.overwrite, options.print_config)
    if any(others) or flags:
        raise ValueError("--resume goes on with a run exactly as it is: no recipe, no --out and no fields beside it")
    from statewise.cli import seeds

    folder = Path(options.resume)
    if seeds.is_group(folder):
        if options.checkpoint != "last":
            raise ValueError(f"--checkpoint goes with one run: resume that one by itself, {folder}/seed-...")
        return seeds.resume(folder, options.jobs)
    from statewise.launch import resume

    return _watched(lambda listener: resume(folder, checkpoint=options.checkpoint, listener=listener), folder)


def _watched(work: Callable[[Listener], Any], folder: str | Path) -> int:
    """Runs `work(listener)` with a display; says how to go on if it was told to stop."""
    from statewise.cli.progress import Display
    from statewise.launch import Listener

    with Display() as display:
        listener = Listener(display.begin, display.note, display.record, display.step, display.report)
        outcome = work(listener)
    if os.environ.get("LOCAL_RANK", "0") != "0":  # the other processes of a distributed run keep quiet
        return 0
    if outcome is None:
        print(f"{folder} is complete: nothing to resume")
        return 0
    if outcome.signal is not None:
        print(
            f"stopped at step {outcome.step} and saved; go on with: statewise train --resume {folder}", file=sys.stderr
        )
        return 128 + int(outcome.signal)
    return 0


def _help(parser: Parser, options: argparse.Namespace, flags: list[str]) -> int:
    parser.print_help()
    if options.recipe is None and options.config is None:
        return 0
    from statewise.config import field_help, read_yaml
    from statewise.experiment import TABLES

    text, source = _recipe(options)
    print("\nfields of this recipe, with its values:")
    print(field_help(read_yaml(text, source), flags, TABLES, source))
    return 0
