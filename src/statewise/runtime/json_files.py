"""Reads JSON files and checks their content against a shape.

A shape is a `Leaf`, a list of one shape, or keys with their shapes. `{"step": COUNT, "reason?": TEXT, ...: NUMBER}` is
an object with a step and perhaps a reason, whose further values are numbers; without `...`, other keys may have any
value. The value of `...` may also be a function from a key to its shape. A `Maybe` may be null.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import EllipsisType
from typing import Any, TypeAlias

from statewise.runtime.bounds import LARGEST
from statewise.runtime.messages import short, suggestion, without_advice
from statewise.runtime.text_files import not_utf8

DEEPEST = 100
"""Most levels of nested lists and objects."""


@dataclass(frozen=True)
class Leaf:
    """One value."""

    what: str
    """What it must be, in words."""
    holds: Callable[[Any], bool]


@dataclass(frozen=True)
class Maybe:
    """What `shape` says, or null."""

    shape: Shape


Keys: TypeAlias = "Mapping[str | EllipsisType, Shape | Callable[[str], Shape]]"
Shape: TypeAlias = "Leaf | Maybe | list[Shape] | Keys"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


ANYTHING = Leaf("anything", lambda value: True)
TEXT = Leaf("text", lambda value: isinstance(value, str))
WORD = Leaf("a word without blanks", lambda value: isinstance(value, str) and value.split() == [value])
FLAG = Leaf("true or false", lambda value: isinstance(value, bool))
COUNT = Leaf(
    "a whole number of at least 0",
    lambda value: isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LARGEST,
)
POSITIVE = Leaf("a whole number of at least 1", lambda value: COUNT.holds(value) and value > 0)
NUMBER = Leaf("a finite number", lambda value: _is_number(value) and abs(value) <= LARGEST**16)
MEASURED = Leaf("a number", lambda value: isinstance(value, float) or NUMBER.holds(value))
"""A computed number, which may be NaN."""

AMOUNT = Leaf("a number of at least 0", lambda value: NUMBER.holds(value) and value >= 0)
SHARE = Leaf("a number from 0 to 1", lambda value: _is_number(value) and not (value < 0 or value > 1 + 1e-9))
"""A share of what was counted; NaN if nothing was."""


def metric(name: str) -> Leaf:
    """Values allowed for a metric of this name: accuracies are shares; scaled by chance they may be below 0."""
    if name.startswith("scaled_"):
        return MEASURED
    share = name.endswith(("accuracy", "exact_match")) or name.startswith(("accuracy_", "legal_next", "legal_traces"))
    return SHARE if share else MEASURED


def one_of(*choices: str) -> Leaf:
    """A leaf that must be one of the words `choices`."""
    return Leaf(f"one of {', '.join(choices)}", lambda value: isinstance(value, str) and value in choices)


def read_json(path: Path, shape: Shape) -> Any:
    """The content of a file. Raises `ValueError`, naming the file, unless it has the shape, and `OSError` if it cannot
    be read."""
    return parse_json(path.read_bytes(), shape, str(path))


def parse_json(content: str | bytes, shape: Shape, where: str) -> Any:
    """The value of JSON text; `where` names it in errors. Raises `ValueError` unless it has the shape, or if it
    contains half of a surrogate pair, which cannot be written to a file."""
    try:
        value = loads(content)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    escaped = "\\ud" if isinstance(content, str) else b"\\ud"
    if escaped in content.lower():  # type: ignore[operator]
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError(f"{where}: it contains half of a surrogate pair, which is not a character") from None
    return check(value, shape, where)


def check_keys(keys: Iterable[str], known: Collection[str], where: str) -> None:
    """Raises `ValueError`, with near misses, for a key that is not `known`: a misspelt one would be ignored."""
    for key in keys:
        if key not in known:
            raise ValueError(f"{where}: unknown key {short(key)}: {suggestion(key, known)}keys: {', '.join(known)}")


def finite(value: Any) -> Any:
    """A value with null in place of numbers that are not finite, which JSON cannot express."""
    if isinstance(value, Mapping):
        return {key: finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def printable(value: Any, indent: int | None = 2) -> str:
    """A value as JSON that any program reads: with null for each number that is not finite."""
    return json.dumps(finite(value), indent=indent, allow_nan=False)


def json_bytes(value: Any) -> bytes:
    """A value as the content of a JSON file of ours; numbers that are not finite are written as Python does."""
    return (json.dumps(value, indent=2) + "\n").encode()


class _Repeated(ValueError):
    """An object has a key twice."""


def _with_unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise _Repeated(f"the key {short(twice)} occurs twice in one object: give it once")
    return members


def loads(content: str | bytes, *, parse_float: Callable[[str], Any] | None = None) -> Any:
    """The value of JSON text, of any shape; `parse_float` makes numbers that are not whole (None: floats). Raises
    `ValueError`, also for nesting deeper than `DEEPEST`, and for an object with a key twice, of which Python would
    silently use the last."""
    try:
        if content.strip():
            value = json.loads(content, parse_float=parse_float, object_pairs_hook=_with_unique_keys)
            inner = [value] if isinstance(value, list | dict) else []
            for _ in range(DEEPEST):
                inner = [
                    one
                    for each in inner
                    for one in (each.values() if isinstance(each, dict) else each)
                    if isinstance(one, list | dict)
                ]
                if not inner:
                    return value
            raise RecursionError
    except UnicodeDecodeError as error:
        raise ValueError(not_utf8("not JSON", error.start, error.reason)) from None
    except RecursionError:
        raise ValueError("not JSON: brackets are nested too deeply") from None
    except _Repeated:
        raise
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg.removesuffix(' at')} {_place(error)}") from None
    except ValueError as error:
        raise ValueError(f"not JSON: {without_advice(error)}") from None
    raise ValueError("not JSON: it is empty")


def _place(error: json.JSONDecodeError) -> str:
    """The place of the error. A text of one line may be a line of a file, so its line number is left out."""
    text = error.doc.rstrip()
    if error.pos >= len(text):
        return "at the end"
    return f"at line {error.lineno}, column {error.colno}" if "\n" in text else f"at column {error.colno}"


def check(value: Any, shape: Shape, where: str, place: str = "") -> Any:
    """The value itself. Raises `ValueError`, which begins with `where`, unless it has the shape."""
    if isinstance(shape, Leaf):
        if not shape.holds(value):
            raise ValueError(f"{_must_be(where, place)} {shape.what}, not {short(value)}")
    elif isinstance(shape, Maybe):
        return value if value is None else check(value, shape.shape, where, place)
    elif isinstance(shape, list):
        if not isinstance(value, list):
            raise ValueError(f"{_must_be(where, place)} a list, not {short(value)}")
        for number, item in enumerate(value):
            check(item, shape[0], where, f"{place}[{number}]")
    else:
        if not isinstance(value, dict):
            raise ValueError(f"{_must_be(where, place)} an object with keys, not {short(value)}")
        inside = f"{place}." if place else ""
        named = {key.removesuffix("?") for key in shape if isinstance(key, str)}
        for key, inner in shape.items():
            if isinstance(key, EllipsisType):
                for name in value.keys() - named:
                    if not isinstance(name, str):
                        raise ValueError(
                            f"{_must_be(where, place)} keyed by text, not by {short(name)}: put the key in quotes"
                        )
                    check(value[name], inner(name) if callable(inner) else inner, where, inside + name)
                continue
            assert not callable(inner)
            if key.removesuffix("?") in value:
                check(value[key.removesuffix("?")], inner, where, inside + key.removesuffix("?"))
            elif not key.endswith("?"):
                raise ValueError(f"{where}: {inside}{key} is missing")
    return value


def _must_be(where: str, place: str) -> str:
    return f"{where}: {place or 'the content'} must be"
