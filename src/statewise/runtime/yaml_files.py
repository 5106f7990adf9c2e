"""Reads YAML of users: only plain data, of bounded size, with errors that name the line."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from statewise.runtime.messages import short, without_advice

DEEPEST = 50
"""Most levels of nested keys and lists in a file."""
MOST_VALUES = 100_000
"""Most keys and values of a file."""


@lru_cache
def _loader() -> Any:
    """Reads plain data only, as `yaml.SafeLoader` does, but refuses repeated keys.

    Text that YAML 1.1 reads as something else (`no`, `010`, `1:30`, a date) stays text, to be read by the field's type
    as flags are: a separator `no` is not `false`, and a number of steps `1:30` is refused.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            seen = set()
            for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
                if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                    if key.value in seen:
                        said = f"the key {short(key.value)} occurs twice"
                        raise yaml.constructor.ConstructorError(None, None, said, key.start_mark)
                    seen.add(key.value)
            return super().construct_mapping(node, deep)

        def flatten_mapping(self, node: Any) -> None:
            super().flatten_mapping(node)
            if len(node.value) > MOST_VALUES:
                said = f"more than {MOST_VALUES:,} merged keys"
                raise yaml.constructor.ConstructorError(None, None, said, node.start_mark)

    def left_as_text(kind: str, pattern: str) -> None:
        def construct(loader: Any, node: Any) -> Any:
            text = isinstance(node, yaml.ScalarNode) and re.fullmatch(pattern, node.value)
            return node.value if text else getattr(yaml.SafeLoader, f"construct_yaml_{kind}")(loader, node)

        Loader.add_constructor(f"tag:yaml.org,2002:{kind}", construct)

    left_as_text("bool", "(?i:yes|no|on|off)")
    left_as_text("int", "[-+]?0[0-9_]+|.*:.*")
    left_as_text("float", ".*:.*")
    left_as_text("timestamp", ".*")
    return Loader


def _check(content: Any) -> None:
    """Raises `ValueError` for data that contain themselves, are nested too deeply, or have too many values (aliases of
    aliases can stand for any number), and for text that cannot be written to a file."""
    left, count = [(content, 0)], 0
    while left:
        value, depth = left.pop()
        count += 1
        if depth > DEEPEST:
            raise ValueError("keys and lists are nested too deeply, or contain themselves")
        if count > MOST_VALUES:
            raise ValueError(f"more than {MOST_VALUES:,} keys and values, with aliases counted each time")
        if isinstance(value, str):
            try:
                value.encode()
            except UnicodeEncodeError:
                raise ValueError(
                    f"{short(value)} contains half of a surrogate pair, which is not a character"
                ) from None
        inner = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else ()
        left += [(each, depth + 1) for each in inner]


def read_yaml(text: str | bytes, source: str, what: str = "a recipe") -> dict[str, Any]:
    """The mapping in YAML `text`. Raises `ValueError` with the line if it is not YAML, or not a mapping."""
    import yaml

    try:
        mapping = yaml.load(text, _loader()) or {}
        _check(mapping)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{source}:{mark.line + 1}" if mark else source
        problem = " ".join(str(getattr(error, "problem", error)).split())
        raise ValueError(f"{where}: not YAML: {problem}") from None
    except (KeyError, IndexError, AttributeError, TypeError):  # of PyYAML, for `!!bool maybe` and the like
        raise ValueError(f"{source}: not YAML: a value does not match its tag, or is not plain data") from None
    except RecursionError:
        raise ValueError(f"{source}: not YAML: brackets are nested too deeply") from None
    except ValueError as error:  # of a number or a date
        raise ValueError(f"{source}: {without_advice(error)}") from None
    if not isinstance(mapping, dict):
        raise ValueError(f"{source}: {what} must be keys with values, not {short(mapping)}")
    return mapping
