"""The recipes of runs, so that those that say the same are the same: of any version, however numbers are written."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

Defaults = Callable[[str, str], Mapping[str, Any]]
"""From a part of a recipe, such as `objective`, and its name, to the defaults of its fields by dotted name."""


def no_defaults(part: str, name: str) -> Mapping[str, Any]:
    """None are known."""
    return {}


def completed(recipe: Mapping[str, Any], defaults: Defaults) -> dict[str, Any]:
    """A recipe with the default of every field that it lacks, as one does that was written before there was the
    field."""
    whole = dict(recipe)
    for part, fields in recipe.items():
        if not isinstance(fields, dict):
            continue
        whole[part] = dict(fields)
        for name, value in defaults(part, str(fields.get("name", ""))).items():
            group, _, inner = name.rpartition(".")
            into = whole[part]
            if group:
                into = whole[part][group] = dict(into.get(group) or {})
            into.setdefault(inner, value)
    return whole


def flat(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe with dotted keys, without the seed."""
    found: dict[str, Any] = {}
    for group, value in recipe.items():
        if isinstance(value, dict):
            for key, item in value.items():
                below = item if isinstance(item, dict) else {"": item}
                name = group if key == "name" else f"{group}.{key}"
                found |= {f"{name}.{inner}".removesuffix("."): leaf for inner, leaf in below.items()}
    return found


def identity(recipe: Mapping[str, Any]) -> str:
    """Text that is the same for recipes of one group: null is what a field is that is missing."""
    return canonical({key: value for key, value in flat(recipe).items() if value is not None})


def canonical(value: Any) -> str:
    """Text that is the same for equal values, such as 1 and 1.0, or tuples and lists."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(key)}: {canonical(value[key])}" for key in sorted(value)) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(canonical, value)) + "]"
    return json.dumps(int(value) if isinstance(value, float) and value.is_integer() else value)
