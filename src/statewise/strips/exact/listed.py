"""The alternating features that were listed so far, kept for the next call where time ran out.

Where many features alternate, listing them takes most of the time. Features hold for the same traces in every call, so
the next call continues from them and repeats only the rest. They are kept by their signature, and by the number of
traces that a window needed."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from statewise.runtime.json_files import AMOUNT, Leaf, Shape, check
from statewise.strips.exact.features import Feature, Found, alternating
from statewise.strips.exact.slots import Signature
from statewise.strips.exact.windows import Windows
from statewise.strips.model.learned import read_checkpoint, write_checkpoint
from statewise.strips.model.traces import Traces

FORMAT = 2
_FEATURE = Leaf(
    "two numbers in hexadecimal",
    lambda value: (
        isinstance(value, list)
        and len(value) == 2
        and all(isinstance(part, str) and re.fullmatch("0x[0-9a-f]+", part) for part in value)
    ),
)
PROGRESS: Shape = {"seconds": AMOUNT, "listed": {...: [_FEATURE]}}
"""What `Listed.write` adds to `learned.CHECKPOINT`: the features by their key, each as the actions that delete and
those that add."""


@dataclass
class Listed:
    """Features by their key, as found by this call and by interrupted calls before it."""

    features: dict[str, list[Feature]] = field(default_factory=dict)
    seconds: float = 0.0
    """The time that the interrupted calls took."""
    folder: Path | None = None
    """Where the features were read from."""
    unfinished: bool = False
    """Whether the time was too short for the learner that used it last, so that another call should continue."""

    @classmethod
    def read(cls, folder: Path, traces: Traces, *, lifted: bool) -> Listed:
        """Reads what an interrupted call left in the folder, if it has a checkpoint. Raises `ValueError` if that is
        damaged, or if the traces or the kind of learning differ: `lifted` says whether schemas are learned."""
        checkpoint = read_checkpoint(folder)
        if checkpoint is None:
            return cls()
        facts, kept = _facts(traces, lifted), checkpoint[1]
        changed = [key for key in ("settings", "traces") if kept.get(key) != facts[key]]
        if changed:
            raise ValueError(
                f"{folder} holds an interrupted run with other {' and '.join(changed)}: choose another --out, or give "
                "--overwrite"
            )
        try:
            if kept.get("format") != FORMAT:
                raise ValueError(f"format {kept.get('format')}, not {FORMAT}")
            progress = check(kept["progress"], PROGRESS, "its progress")
            listed = {
                of: [Feature(int(delete, 16), int(add, 16)) for delete, add in features]
                for of, features in progress["listed"].items()
            }
        except ValueError as error:
            raise _damaged(folder, error) from None
        return cls(listed, progress["seconds"], folder)

    def copy(self) -> Listed:
        """The same features; what is added to either is not added to the other."""
        return replace(self, features=dict(self.features))

    def alternating(
        self, of: Signature | None, windows: Windows, *, support: int = 1, seconds: float, stop: Callable[[], bool]
    ) -> Found:
        """Like `features.alternating`, beginning with what was listed before, for the slots of a signature or for
        actions (None). Raises `ValueError` if the checkpoint has features of other actions."""
        key = ("actions" if of is None else " ".join(map(str, ("slots", *of.sorts)))) + f", support {support}"
        known = self.features.get(key, [])
        if self.folder is not None and any(part >> windows.actions for each in known for part in each):
            raise _damaged(self.folder, "a feature has unknown actions")
        found = alternating(windows, known=known, seconds=seconds, stop=stop)
        self.features[key] = found.features
        return found

    def write(self, folder: Path, traces: Traces, seconds: float, *, lifted: bool) -> None:
        """Writes the checkpoint that `read` reads; `seconds` is the total time so far."""
        listed = {of: [[hex(part) for part in each] for each in some] for of, some in self.features.items()}
        progress: dict[str, Any] = {"results": [], "log": [], "seconds": seconds, "listed": listed}
        write_checkpoint(folder, {}, {**_facts(traces, lifted), "progress": progress})


def _facts(traces: Traces, lifted: bool) -> dict[str, Any]:
    settings = {"method": "exact", **({"lifted": True} if lifted else {})}
    return {"format": FORMAT, "settings": settings, "traces": traces.sha256}


def _damaged(folder: Path, why: object) -> ValueError:
    return ValueError(f"{folder / 'checkpoint.npz'}: damaged: {why}: start over with --overwrite")
