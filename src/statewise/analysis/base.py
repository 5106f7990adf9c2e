"""The interface of analyses: a subject in, metrics and curves out. Analyses do not depend on the network."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from statewise.batch import Batch
from statewise.data_types import Completion, Examples
from statewise.decoding.predictor import Predictor
from statewise.reporting.figures import Drawing, Panel
from statewise.runtime.durable import write_atomically
from statewise.runtime.json_files import json_bytes
from statewise.runtime.messages import short
from statewise.runtime.overwriting import check_files, claimed_files, json_with
from statewise.tasks.base import Task

if TYPE_CHECKING:
    from torch import Tensor


PICTURES = (".png", "-drawing.png", "-drawing.html")
"""Ends of the names of pictures, after the name of their report."""


@dataclass(frozen=True)
class Origin:
    """What was analysed, and how."""

    name: str
    """Name of the report, without `.json`."""
    title: str
    """Heading of the pictures, such as `runs/nl-1, step 500, effective-rank`."""
    facts: Mapping[str, Any]
    """What a report holds before the findings: `checkpoint` and `settings`."""


@dataclass(frozen=True)
class Findings:
    """The results of an analysis, as plain data."""

    metrics: dict[str, float]
    panels: list[Panel]
    details: dict[str, Any] = field(default_factory=dict)
    """All numbers behind the panels."""
    notes: list[str] = field(default_factory=list)
    """Remarks for the reader, such as what was left out and why."""
    drawings: list[Drawing] = field(default_factory=list)
    """Drawings in addition to the panels."""
    main: list[str] = field(default_factory=list)
    """The metrics that comparisons show; the first is the most important."""
    verdict: str = field(kw_only=True)
    """The finding in one plain sentence: the figure and its reference (a control, chance, or the largest possible
    value)."""
    origin: Origin | None = field(default=None, kw_only=True, compare=False)
    """What was analysed; None for findings that `Model.analyze` did not return."""

    def __post_init__(self) -> None:
        if not self.verdict.strip() or "\n" in self.verdict:
            raise ValueError(f"the verdict of an analysis must be one sentence on one line, not {short(self.verdict)}")

    def report(self) -> dict[str, Any]:
        """The findings as a report holds them, after the facts of their origin."""
        fields = dataclasses.asdict(dataclasses.replace(self, origin=None))
        del fields["origin"]
        plain: dict[str, Any] = as_plain({**(self.origin.facts if self.origin else {}), **fields})
        return plain

    def save(self, folder: str | Path, *, name: str | None = None, overwrite: bool = False) -> list[Path]:
        """Writes what `statewise analyze --out` writes: `NAME.json`, and its pictures. Returns their paths.

        The folder is created if it is missing. `name`: that of the report, by default that of the analysis, with the
        layer, and with the step if it is not the best checkpoint of the run. Raises `FileExistsError` if one of the
        files exists, unless `overwrite` is set and `NAME.json` is such a report, and `ValueError` for findings without
        a name."""
        name = name or (self.origin.name if self.origin else "")
        if not name:
            raise ValueError("findings that no model returned have no name: give one, as in save(folder, name=...)")
        folder = Path(folder)
        with claimed_report(folder, name, overwrite) as scratch:
            write_atomically(scratch / f"{name}.json", json_bytes(self.report()))
            pictures = self.save_pictures(scratch, name)
        return [folder / f"{name}.json", *(folder / path.name for path in pictures)]

    def save_pictures(self, folder: Path, name: str) -> list[Path]:
        """Writes `NAME.png` of the panels, `NAME-drawing.png` and `NAME-drawing.html` of the drawings, each below the
        verdict, and deletes pictures of an earlier report that this one does not have. Returns the paths."""
        from statewise.reporting.drawings import save_drawings, save_page
        from statewise.reporting.plots import save_panels

        title = self.origin.title if self.origin else name
        written = []
        if self.panels:
            written.append(folder / f"{name}.png")
            save_panels(self.panels, written[-1], heading=f"{title}\n{self.verdict}")
        if self.drawings:
            written.append(folder / f"{name}-drawing.png")
            save_drawings(self.drawings, written[-1], heading=self.verdict)
            written.append(folder / f"{name}-drawing.html")
            save_page(self.drawings, written[-1], title, self.verdict)
        for end in PICTURES:
            if folder / f"{name}{end}" not in written:
                (folder / f"{name}{end}").unlink(missing_ok=True)
        return written


def claimed_report(folder: Path, name: str, overwrite: bool) -> AbstractContextManager[Path]:
    """A claim on a report and its pictures, which are one unit, in `folder` (`statewise.runtime.overwriting`), and the
    place for them. Raises `FileExistsError` if one of its files exists, unless `overwrite` is set and its report is
    there."""
    names = [f"{name}{end}" for end in (".json", *PICTURES)]

    def check() -> None:
        check_files(folder, names, {names[0]: json_with("metrics", "panels")}, overwrite)

    return claimed_files(folder, names, check, overwrite)


def as_plain(value: Any) -> Any:
    """A value in which lists and numbers take the place of NumPy's arrays and numbers, which JSON cannot hold."""
    if isinstance(value, Mapping):
        return {name: as_plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_plain(each) for each in value]
    return value.tolist() if hasattr(value, "tolist") else value


def finite_or_none(values: np.ndarray) -> list[Any]:
    """An array as nested lists, with None in place of NaN and infinities, which JSON cannot hold."""
    plain = values.astype(object)
    plain[~np.isfinite(values)] = None
    numbers: list[Any] = plain.tolist()
    return numbers


def no_names(batch: Batch, names: Sequence[str]) -> dict[str, Tensor]:
    """Raises `ValueError`."""
    raise ValueError("the activations of this model have no names")


def recompute(key: str, make: Callable[[], np.ndarray]) -> np.ndarray:
    """Caches nothing."""
    return make()


@dataclass(frozen=True)
class Snapshot:
    """A model at one checkpoint, or untrained."""

    label: str
    predictor: Predictor
    step: int | None = None
    """Training step of its checkpoint; None: untrained."""
    remember: Callable[[str, Callable[[], np.ndarray]], np.ndarray] = recompute
    """`remember(key, make)`: the array cached under `key`, else the result of `make()`, which is then cached."""
    activations: Callable[[Batch, Sequence[str]], dict[str, Tensor]] = no_names
    """`activations(batch, names)`: named activations, (B, T, ...) each; see `statewise.objectives.activations.read`."""


@dataclass(frozen=True)
class Subject:
    """The input of an analysis: a model, its task, and other snapshots, which are loaded on demand."""

    task: Task
    snapshot: Snapshot
    """The model at the chosen checkpoint."""
    checkpoints: Callable[[str], Iterator[tuple[int, Callable[[], Snapshot]]]]
    """The steps of `all` checkpoints of its run, or given ones (`100,200`), each with what loads the model there.
    Raises `ValueError` or `FileNotFoundError` for missing ones."""
    untrained: Callable[[], Snapshot]
    """A model of the same recipe before training: with random weights of another seed, or those it was published with
    (backbone `hf`)."""
    complete: Callable[[Examples], list[Completion]]
    """The model's greedy completions of the examples' prompts, in order."""
    device: str = "cpu"
    """Device for computations of the analysis."""

    def each_step(self, checkpoints: str | None) -> Iterator[Snapshot]:
        """The snapshot, then those of `checkpoints`, if any, each step once: one after another, so that never two need
        be in memory."""
        yield self.snapshot
        seen = {self.snapshot.step}
        for step, load in self.checkpoints(checkpoints) if checkpoints is not None else ():
            if step not in seen:
                seen.add(step)
                yield load()


def report_name(analysis: str, config: Any) -> str:
    """The name of the report of an analysis. It contains the layer, if there is one, and a checksum if a file name
    cannot contain some of its characters."""
    name, layer = analysis.replace(":", "."), getattr(config, "layer", None)
    if layer is None:
        return name
    plain = re.sub(r"[^\w.-]", "_", layer)[:100]
    return f"{name}-layer-{plain}" + (f"-{hashlib.sha256(layer.encode()).hexdigest()[:8]}" if plain != layer else "")


class Analysis(ABC):
    """Built as `cls(config)`. Takes its examples from the subject's task."""

    Config: ClassVar[type]
    """Dataclass of its options, which are saved with its findings."""

    def __init__(self, config: Any) -> None:
        self.config = config

    def check(self, task: Task, predictor: Callable[[], Predictor]) -> None:
        """Raises `LacksCapability` if the task, or the model that `predictor` makes, lacks what the analysis needs:
        suites check before training, with weights on the device `meta`."""
        return

    @abstractmethod
    def analyze(self, subject: Subject) -> Findings:
        """Runs the analysis. Raises `ValueError` if the task or its examples are not suitable."""
