"""How the data of runs differ."""

from __future__ import annotations

from collections.abc import Mapping

PATHS = (
    *("task.path", "task.held_out_path", "task.tokenizer", "task.training_file", "task.held_out_file"),
    *("task.process", "task.map"),
)
"""Fields that say where data are, which may have been moved."""


def differing(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """Which of `data` and `tokenizer` differ, of those that both runs identify (`Run.data_identity`)."""
    return [key for key in ("data", "tokenizer") if key in one and key in other and one[key] != other[key]]
