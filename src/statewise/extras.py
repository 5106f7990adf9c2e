"""The packages of the extra `hf`, imported when they are needed."""

from __future__ import annotations

import importlib
from typing import Any


def needed(package: str, what: str) -> Any:
    """The package. Raises `ValueError` with the command that installs it; `what` names, in the plural, those who need
    it."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in (package, ""):
            raise ValueError(f"{package} is installed, but cannot be imported: {error}") from None
        raise ValueError(f"{what} need the extra `hf`: pip install 'statewise[hf]'") from None
