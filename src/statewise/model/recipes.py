"""Recipes, and the parts that they name: tables of tasks, backbones and objectives, and what only some of them can do.

Code that raises `LacksCapability` knows a task or a predictor but no table, so the names are added here. What tasks and
backbones can do is read off their classes. What a model can do depends on its objective and its backbone; a test builds
them all, and compares. Needs torch only to read a recipe.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

from statewise.backbones import BACKBONES, with_cells
from statewise.config.recipe import Recipe, parse
from statewise.config.registry import Table
from statewise.objectives import OBJECTIVES
from statewise.runtime.messages import LacksCapability, series
from statewise.tasks import TASKS

TABLES: dict[str, Table[Any]] = {"task": TASKS, "backbone": BACKBONES, "objective": OBJECTIVES}

_ON_THE_READOUT = "the objectives next_token, next_latent, token_order, future_summary and semantic_tube"
_BRANCHES = "the objectives multi_token and latent_multi_token"
MODELS = {
    "CausalPredictor": "the objectives next_token, belief_state, joint_multi_token, teacherless, next_latent, "
    f"token_order, future_summary and semantic_tube, or {_BRANCHES} on deltanet, gpt or recurrent",
    "Drafter": f"the objectives joint_multi_token and next_latent, or {_BRANCHES} on deltanet, gpt or recurrent",
    "FutureReader": "the objective belief_state, or the objective next_latent on belief_slots, deltanet, gpt or "
    "recurrent",
    "StateDynamics": "the objective next_latent",
    "Traceable": f"{_ON_THE_READOUT} on gpt or two_stream, or {_BRANCHES} on gpt",
    "Fetcher": f"{_ON_THE_READOUT} on two_stream",
    "StateLimiter": f"{_ON_THE_READOUT} on two_stream",
    "Carrier": f"{_ON_THE_READOUT} on belief_slots",
    "GoalScorer": "the objective belief_state",
    "Reversible": "the objective belief_state",
    "SuffixEncoder": "the objective belief_state",
}
"""The models with default fields that have a capability of predictors, by its name. Models of the backbone `hf`
depend on the model that it loads and are left out."""


def read_recipe(text: str | bytes, flags: Sequence[str] = (), source: str = "recipe") -> Recipe:
    """The recipe of YAML `text` with dotted `flags` over it. Raises `ValueError` if it does not parse."""
    from statewise.config.recipes import recipe_fields

    return parse(recipe_fields(text, source), with_cells(flags), TABLES, source)


@cache
def declared_defaults(part: str, name: str) -> dict[str, Any]:
    """The defaults of a part's fields by dotted name, as its source declares them; empty for a part of another package,
    whose source may be anywhere."""
    from statewise.config.field_help import declared_fields

    if part == "trainer":
        target = "statewise.config.trainer:TrainerConfig"
    elif part in TABLES and name in TABLES[part]:
        target = TABLES[part].target(name)
    else:
        return {}
    return {field: declared.default for field, declared in declared_fields(target).items()}


@contextmanager
def explaining_missing_capability() -> Iterator[None]:
    """Raises `ValueError` in place of `LacksCapability`, with the names of those that have the capability."""
    try:
        yield
    except LacksCapability as error:
        raise ValueError(f"{error}: {who_has(error.capability)}") from error


def who_has(capability: type) -> str:
    """Names the tasks, the backbones or the models that have `capability`, in words."""
    for kind, table in (("task", TASKS), ("backbone", BACKBONES)):
        names = [name for name in table if issubclass(table[name], capability)]
        if names:
            return f"such {kind}s are {series(names)}" if len(names) > 1 else f"such a {kind} is {names[0]}"
    if capability.__name__ in MODELS:
        return f"such models, with default fields, have {MODELS[capability.__name__]}"
    return "none of ours has this capability"
