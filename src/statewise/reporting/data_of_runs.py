"""What a run keeps that identifies its data, and how the data of runs differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from statewise.json_files import TEXT, Shape, parse_json
from statewise.run import Run

_SOURCES: Shape = {...: TEXT}
KEPT: dict[str, Shape] = {
    "corpus.json": {"fingerprint?": TEXT, "tokenizer?": TEXT},
    "stories.json": {"sources?": _SOURCES, "tokenizer?": TEXT},
    "sequences.json": {"sha256?": _SOURCES},
    "path_star.json": {"sha256?": _SOURCES},
}
"""Files of tasks that read data, and the checksums that they hold."""
PATHS = ("task.path", "task.held_out_path", "task.tokenizer", "task.training_file", "task.held_out_file")
"""Fields that say where data are, which may have been moved."""


def identity_of(run: Run) -> dict[str, Any]:
    """Checksums of the run's data and of its tokenizer, as far as it keeps them. Raises `ValueError` for damaged
    files."""
    found: dict[str, Any] = {}
    for name, content in run.task_files().items():
        if name in KEPT:
            kept = parse_json(content, KEPT[name], f"{run.folder / 'task' / name}")
            for key in ("fingerprint", "sources", "sha256"):
                if key in kept:  # paths of files may differ between machines
                    found["data"] = list(kept[key].values()) if isinstance(kept[key], dict) else [kept[key]]
            if "tokenizer" in kept:
                found["tokenizer"] = kept["tokenizer"]
    return found


def differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Which of `data` and `tokenizer` differ, of those that both runs identify."""
    return [key for key in ("data", "tokenizer") if key in one and key in other and one[key] != other[key]]
