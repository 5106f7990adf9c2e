"""Reading the files that a run keeps for its task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from statewise.json_files import Shape, parse_json


def kept_text(kept: Mapping[str, bytes], name: str) -> str:
    """The text of a file. Raises `ValueError` if it is missing or not UTF-8."""
    where = f"task/{name} of this run"
    if name not in kept:
        raise ValueError(f"{where} is missing; the run cannot be loaded without it")
    try:
        return kept[name].decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{where}: damaged: byte {error.start} is not UTF-8 text") from None


def kept_json(kept: Mapping[str, bytes], name: str, shape: Shape) -> Any:
    """The content of a JSON file. Raises `ValueError` if it is missing or has another shape."""
    return parse_json(kept_text(kept, name), shape, f"task/{name} of this run")
