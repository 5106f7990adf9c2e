"""Recipes that come with the package. The first comment line of each says what it is."""

from __future__ import annotations

from importlib import resources

from statewise.config import unknown


def recipe_names() -> list[str]:
    """Names of all recipes, sorted."""
    files = resources.files(__name__).iterdir()
    return sorted(file.name.removesuffix(".yaml") for file in files if file.name.endswith(".yaml"))


def recipe_text(name: str) -> str:
    """The YAML of a recipe. Raises `ValueError` with the choices if there is none of that name."""
    if name not in recipe_names():
        raise ValueError(unknown("recipe", name, recipe_names()))
    return (resources.files(__name__) / f"{name}.yaml").read_text()


def recipe_summary(name: str) -> str:
    """The first line of a recipe's first comment."""
    return recipe_text(name).partition("\n")[0].lstrip("# ")
