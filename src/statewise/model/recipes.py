"""Recipes from YAML, and the defaults of their fields. Needs torch only to read a recipe."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from statewise.backbones import with_cells
from statewise.config.field_help import declared_fields
from statewise.config.recipe import Recipe, parse
from statewise.config.recipes import recipe_fields
from statewise.model.parts import TABLES


def read_recipe(text: str | bytes, flags: Sequence[str] = (), source: str = "recipe") -> Recipe:
    """The recipe of YAML `text` with dotted `flags` over it. Raises `ValueError` if it does not parse."""
    return parse(recipe_fields(text, source), with_cells(flags), TABLES, source)


@cache
def declared_defaults(part: str, name: str) -> dict[str, Any]:
    """The defaults of a part's fields by dotted name, as its source declares them; empty for a part of another package,
    whose source may be anywhere."""
    if part == "trainer":
        target = "statewise.config.trainer:TrainerConfig"
    elif part in TABLES and name in TABLES[part]:
        target = TABLES[part].target(name)
    else:
        return {}
    return {field: declared.default for field, declared in declared_fields(target).items()}
