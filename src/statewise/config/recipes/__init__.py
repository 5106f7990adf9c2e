"""Recipes that come with the package. The first comment line of each says what it is. Of `config` it imports `recipe`
and `trainer`."""

from __future__ import annotations

import os
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from statewise.config.recipe import unknown
from statewise.config.trainer import TWO_UNITS
from statewise.runtime.yaml_files import read_yaml


def recipe_names() -> list[str]:
    """Names of all recipes, sorted."""
    files = resources.files(__name__).iterdir()
    return sorted(file.name.removesuffix(".yaml") for file in files if file.name.endswith(".yaml"))


def recipe_text(name: str) -> str:
    """The YAML of a recipe. Raises `ValueError` with the choices if there is none of that name."""
    if name not in recipe_names():
        raise ValueError(unknown("recipe", name, recipe_names()))
    return (resources.files(__name__) / f"{name}.yaml").read_text()


def recipe_given(source: str | Path) -> tuple[str | bytes, str]:
    """The YAML and the source of a recipe: the name of one of ours, the path of a YAML file, or a run to repeat. A
    `Path` is never a name. Raises `ValueError` with the choices for an unknown name, `OSError` for a path that cannot
    be read."""
    path = Path(source)
    if isinstance(source, str) and source in recipe_names():
        return recipe_text(source), f"recipe {source}"
    is_there = os.path.isfile(source) or os.path.exists(os.path.join(source, "config.json"))
    if isinstance(source, Path) or is_there or path.suffix in (".yaml", ".yml") or len(path.parts) > 1:
        return recipe_at(path), str(source)
    raise ValueError(unknown("recipe", source, recipe_names()))


def recipe_at(path: Path) -> str | bytes:
    """The YAML of a file, or of the run of a folder. Raises `OSError` if it cannot be read."""
    if not path.is_dir():
        return path.read_bytes()
    from statewise.run import Run

    return yaml.safe_dump(Run.open(path).recipe(), sort_keys=False)


def recipe_fields(text: str | bytes, source: str) -> dict[str, Any]:
    """The keys of a recipe's YAML `text`, over those of the recipe that it names as `base`, if it names one. A part
    chosen by another name takes nothing from the base's.

    Raises `ValueError` for text that is not YAML, and for a base that is not one of the recipes.
    """
    own = read_yaml(text, source)
    if (base := own.pop("base", None)) is None:
        return own
    if not isinstance(base, str):
        raise ValueError(f"{source}: base is the name of a recipe, not {base!r}")
    try:
        below = recipe_text(base)
    except ValueError as error:
        raise ValueError(f"{source}: base: {error}") from None
    return merged(recipe_fields(below, f"recipe {base}"), own)


def merged(below: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """The keys of a recipe `own` over those of a recipe `below`, the keys of their parts, too. A part chosen by another
    name takes nothing from that below."""
    result = dict(below)
    for key, value in own.items():
        part = result.get(key)
        if isinstance(value, dict) and isinstance(part, dict) and value.get("name") in (None, part.get("name")):
            value = {**_without_other_unit(key, part, value), **value}
        result[key] = value
    return result


def _without_other_unit(group: str, below: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """The keys `below` without lengths in tokens, which take precedence over steps, where `own` gives only steps."""
    units = {steps.removeprefix(f"{group}."): tokens.removeprefix(f"{group}.") for steps, tokens in TWO_UNITS.items()}
    replaced = {tokens for steps, tokens in units.items() if steps in own and tokens not in own}
    return {key: value for key, value in below.items() if key not in replaced}


def recipe_summary(name: str) -> str:
    """The first line of a recipe's first comment."""
    return recipe_text(name).partition("\n")[0].lstrip("# ")
