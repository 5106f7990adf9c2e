"""What an export wrote."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Exported(NamedTuple):
    """What was written."""

    path: Path
    architecture: str
    parameters: int
    bytes: int
    notes: list[str]
    """What a user should know, in sentences."""
