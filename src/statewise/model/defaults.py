"""Defaults of the fields of recipes as their sources declare them, read without torch."""

from __future__ import annotations

from functools import cache
from typing import Any

from statewise.backbones import BACKBONES
from statewise.config.field_help import declared_fields
from statewise.config.registry import Table
from statewise.objectives import OBJECTIVES
from statewise.tasks import TASKS

TABLES: dict[str, Table[Any]] = {"task": TASKS, "backbone": BACKBONES, "objective": OBJECTIVES}


@cache
def declared_defaults(part: str, name: str) -> dict[str, Any]:
    """By dotted field; empty for what is not of this package, whose source may be anywhere."""
    if part == "trainer":
        target = "statewise.config.trainer:TrainerConfig"
    elif part in TABLES and name in TABLES[part]:
        target = TABLES[part].target(name)
    else:
        return {}
    return {field: declared.default for field, declared in declared_fields(target).items()}
