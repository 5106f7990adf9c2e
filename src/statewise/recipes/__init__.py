"""Recipes that come with the package. The first comment line of each says what it is."""

from __future__ import annotations

from importlib import resources
from typing import Any

from statewise.config import read_yaml, unknown


def recipe_names() -> list[str]:
    """Names of all recipes, sorted."""
    files = resources.files(__name__).iterdir()
    return sorted(file.name.removesuffix(".yaml") for file in files if file.name.endswith(".yaml"))


def recipe_text(name: str) -> str:
    """The YAML of a recipe. Raises `ValueError` with the choices if there is none of that name."""
    if name not in recipe_names():
        raise ValueError(unknown("recipe", name, recipe_names()))
    return (resources.files(__name__) / f"{name}.yaml").read_text()


def recipe_fields(text: str | bytes, source: str) -> dict[str, Any]:
    """The keys of a recipe's YAML `text`, over those of the recipe that it names as `base`, if it names one. A part
    chosen by another name takes nothing from the base's.

    Raises `ValueError` for what is no YAML, and for a base that is no recipe of ours.
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
    found = dict(below)
    for key, value in own.items():
        part = found.get(key)
        if isinstance(value, dict) and isinstance(part, dict) and value.get("name") in (None, part.get("name")):
            value = {**part, **value}
        found[key] = value
    return found


def recipe_summary(name: str) -> str:
    """The first line of a recipe's first comment."""
    return recipe_text(name).partition("\n")[0].lstrip("# ")
