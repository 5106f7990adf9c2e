"""Reading the files that a run keeps for its task, and checking the data that they name."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from statewise.runtime.json_files import Shape, parse_json


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


def checksum(path: Path) -> str:
    """The SHA-256 of a file. Raises `ValueError` if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}") from None


def joint_checksum(checksums: Iterable[str]) -> str:
    """One SHA-256 of several checksums, in their order."""
    return hashlib.sha256(" ".join(checksums).encode()).hexdigest()


def check_unchanged(path: Path, before: str) -> None:
    """Raises `ValueError` unless the file still has the checksum that the run keeps."""
    if not path.exists():
        raise ValueError(f"{path}: the data of this run no longer exists")
    if checksum(path) != before:
        raise ValueError(f"{path}: the data has changed since the run began")
