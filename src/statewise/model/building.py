"""From a recipe, or a name with fields, to tasks, models, decoders and analyses."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence, Sized
from contextlib import contextmanager
from typing import Any, Protocol

import torch

from statewise.analysis import ANALYSES
from statewise.analysis.base import Analysis
from statewise.backbones import BACKBONES, with_cells
from statewise.backbones.base import Backbone
from statewise.backbones.capabilities import Pretrained
from statewise.config.recipe import Recipe, fill, parse
from statewise.config.recipes import recipe_fields
from statewise.config.registry import Table
from statewise.decoding import DECODERS
from statewise.decoding.base import Decoder, Search
from statewise.model.capabilities import naming_who_has
from statewise.objectives import OBJECTIVES
from statewise.objectives.base import Objective
from statewise.tasks import TASKS
from statewise.tasks.base import Kept, Task, consecutive_rows
from statewise.training.memory import weights_that_fit

TABLES: dict[str, Table[Any]] = {"task": TASKS, "backbone": BACKBONES, "objective": OBJECTIVES}


def read_recipe(text: str | bytes, flags: Sequence[str] = (), source: str = "recipe") -> Recipe:
    """The recipe of YAML `text` with dotted `flags` over it. Raises `ValueError` if it does not parse."""
    return parse(recipe_fields(text, source), with_cells(flags), TABLES, source)


def make_task(recipe: Recipe, kept: Kept | None = None) -> Task:
    """The recipe's task; `kept` holds the files that it left in a run."""
    return TASKS[recipe.task.name](recipe.task.config, kept)


class Symbols(Protocol):
    """What a model must know of a task."""

    @property
    def vocab(self) -> Sized:
        """As many symbols as there are token ids."""

    @property
    def context(self) -> int:
        """Tokens of the longest sequence."""


def make_objective(recipe: Recipe, task: Symbols) -> Objective:
    """The recipe's objective around its backbone, with weights drawn by the recipe's seed. Raises `ValueError` if the
    weights are more than this machine can hold, or if objective, backbone and order of rows do not go together."""

    def make_backbone(*, extra_tokens: int = 0, embedding_of: Backbone | None = None, **fields: Any) -> Backbone:
        config = dataclasses.replace(recipe.backbone.config, **fields)
        vocabulary = len(task.vocab) + extra_tokens
        return BACKBONES[recipe.backbone.name](
            config, vocabulary=vocabulary, context=task.context, embedding_of=embedding_of
        )

    with _drawing_by(recipe.seed), naming_who_has(), weights_that_fit():
        if recipe.trainer.rows == "consecutive" and isinstance(task, Task):
            consecutive_rows(task)
        objective = OBJECTIVES[recipe.objective.name](recipe.objective.config, make_backbone)
    if isinstance(task, Task):
        for module in objective.modules():
            if isinstance(module, Pretrained):
                module.check_symbols(task.vocab.symbols)
    if objective.backbones_across_rows() and recipe.trainer.rows != "consecutive":
        raise ValueError(
            "backbone.across_rows carries the state from each row to the next, but with trainer.rows "
            f"{recipe.trainer.rows} rows are not consecutive: set trainer.rows to consecutive, or backbone.across_rows "
            "to false"
        )
    return objective


@contextmanager
def _drawing_by(seed: int) -> Iterator[None]:
    """Within, what torch draws on the CPU follows from `seed`; the caller's random numbers go on unchanged."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def make_decoder(name: str, **fields: Any) -> Decoder:
    """A decoder by name. Raises `ValueError` for unknown names, fields and values."""
    kind = DECODERS[name]
    for field in sorted(fields.keys() - _fields(kind.Config)):
        having = [other for other in DECODERS if field in _fields(DECODERS[other].Config)]
        if having:
            raise ValueError(f"decoder {name} has no field {field!r}: --decoder {' or '.join(having)} has")
    return kind(fill(kind.Config, fields, f"decoder {name}"))


def _fields(config: type) -> set[str]:
    return {field.name for field in dataclasses.fields(config)}


def make_search(name: str, **fields: Any) -> Search:
    """A decoder that ranks candidates, by name. Raises `ValueError` for one that does not, else as `make_decoder`."""
    decoder = make_decoder(name, **fields)
    if not isinstance(decoder, Search):
        searches = ", ".join(other for other in DECODERS if issubclass(DECODERS[other], Search))
        raise ValueError(f"decoder {name} finds one completion and ranks nothing: for candidates choose of {searches}")
    return decoder


def check_analysis(analysis: Analysis, task: Task, objective: Objective) -> None:
    """Raises `ValueError` if the analysis cannot be made of models of the objective on the task; the weights may have
    no memory (device `meta`)."""
    with naming_who_has(), torch.device("meta"):
        analysis.check(task, objective.predictor)


def make_analysis(name: str, **fields: Any) -> Analysis:
    """An analysis by name. Raises `ValueError` for unknown names, fields and values."""
    kind = ANALYSES[name]
    return kind(fill(kind.Config, fields, f"analysis {name}"))
