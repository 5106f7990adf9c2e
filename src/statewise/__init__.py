"""Train sequence models that keep a belief state, compare them, and see the world model they learned.

import statewise
run = statewise.load("runs/nl-1")
run.states(["3,4|4,5/3,5="]).state      # belief states, (B, T, D)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from statewise.experiment import Experiment
    from statewise.training.trainer import Outcome

__version__ = "0.1.0"


def load(folder: str, checkpoint: str = "best") -> Experiment:
    """The model of a run directory; see `statewise.experiment.Experiment.load`."""
    from statewise.experiment import Experiment

    return Experiment.load(folder, checkpoint)


def build(recipe: str, *flags: str) -> Experiment:
    """An untrained model of a named recipe, with dotted flags: `build("path-star-small", "--seed=2")`."""
    from statewise.experiment import Experiment, read_recipe
    from statewise.recipes import recipe_text

    return Experiment.build(read_recipe(recipe_text(recipe), flags, recipe))


def train(recipe: str, *flags: str, out: str, **options: Any) -> Outcome:
    """Trains a named recipe into the run directory `out`; options as in `statewise.launch.train`."""
    from statewise.experiment import read_recipe
    from statewise.launch import train as train_recipe
    from statewise.recipes import recipe_text

    return train_recipe(read_recipe(recipe_text(recipe), flags, recipe), out, **options)
