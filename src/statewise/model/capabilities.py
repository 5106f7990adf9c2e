"""Which tasks, backbones, and objectives on which backbones, have a power that others lack.

Code that raises `LacksPower` knows a task or a predictor but no table. The names are derived from the tables: tasks
and backbones by their classes, models by building each objective on each backbone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial

import torch

from statewise.backbones import BACKBONES
from statewise.backbones.base import Backbone
from statewise.backbones.capabilities import Pretrained
from statewise.data_types import LacksPower
from statewise.decoding.predictor import Capability
from statewise.objectives import OBJECTIVES
from statewise.tasks import TASKS

VOCABULARY, CONTEXT = 8, 1024
"""Sizes of the models built for this."""


@contextmanager
def naming_who_has() -> Iterator[None]:
    """Raises `ValueError` in place of `LacksPower`, with the names of those that have the power."""
    try:
        yield
    except LacksPower as error:
        raise ValueError(f"{error}: {who_has(error.power)}") from error


def who_has(power: type) -> str:
    """In words: the tasks, the backbones, or the models with default fields, that have `power`, a type."""
    for kind, table in (("task", TASKS), ("backbone", BACKBONES)):
        if names := [name for name in table if issubclass(table[name], power)]:
            return f"such {'are' if len(names) > 1 else 'is'} the {kind}{'s' * (len(names) > 1)} {_listed(names)}"
    groups: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
    ours = [name for name in BACKBONES if not issubclass(BACKBONES[name], Pretrained)]  # others need a model first
    for objective in OBJECTIVES:
        groups[tuple(backbone for backbone in ours if model_has(objective, backbone, power))].append(objective)
    descriptions = []
    for backbones, objectives in groups.items():
        if backbones:
            alone = "" if len(backbones) == len(ours) else f" on {_listed(backbones, 'or')}"
            descriptions.append(f"the objective{'s' * (len(objectives) > 1)} {_listed(objectives)}{alone}")
    return (
        f"such are models of {_listed(descriptions)}, with default fields" if descriptions else "none of ours is such"
    )


def model_has(objective: str, backbone: str, power: type) -> bool:
    """Whether the predictor of an objective on a backbone, with default fields, has `power`."""
    kind = OBJECTIVES[objective]
    with torch.random.fork_rng(devices=[]):
        try:
            predictor = kind(kind.Config(), partial(_small, backbone)).predictor()
        except ValueError:  # the two do not go together
            return False
    return predictor.capability(power) is not None if issubclass(power, Capability) else isinstance(predictor, power)


def _small(name: str, *, extra_tokens: int = 0, embedding_of: Backbone | None = None, **fields: object) -> Backbone:
    kind = BACKBONES[name]
    config = kind.Config(**{"layers": 1, **fields})
    return kind(config, vocabulary=VOCABULARY + extra_tokens, context=CONTEXT, embedding_of=embedding_of)


def _listed(names: Iterable[str], joint: str = "and") -> str:
    *first, last = names
    return f"{', '.join(first)} {joint} {last}" if first else last
