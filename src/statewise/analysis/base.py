"""The interface of analyses: a subject in, metrics and curves out. Analyses do not depend on the network."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from statewise.data_types import Batch, Completion, Examples
from statewise.decoding.predictor import Predictor
from statewise.reporting.figures import Drawing, Panel
from statewise.runtime.messages import short
from statewise.tasks.base import Task

if TYPE_CHECKING:
    from torch import Tensor


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

    def __post_init__(self) -> None:
        if not self.verdict.strip() or "\n" in self.verdict:
            raise ValueError(f"the verdict of an analysis must be one sentence on one line, not {short(self.verdict)}")


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


class Analysis(ABC):
    """Built as `cls(config)`. Takes its examples from the subject's task."""

    Config: ClassVar[type]
    """Dataclass of its options, which are saved with its findings."""

    def __init__(self, config: Any) -> None:
        self.config = config

    def check(self, task: Task, predictor: Callable[[], Predictor]) -> None:
        """Raises `LacksPower` if the task, or the model that `predictor` makes, lacks what the analysis needs: a suite
        asks before training, with weights that have no memory."""
        return

    @abstractmethod
    def analyze(self, subject: Subject) -> Findings:
        """Runs the analysis. Raises `ValueError` if the task or its examples are not suitable."""


def percent(share: float) -> str:
    """A share as a percentage: `86%`, `99.6%`, `0.4%`; 0% and 100% only if exact."""
    if math.isnan(share):
        return "an undefined share"
    whole = f"{share:.0%}"
    if (whole == "100%" and share != 1) or (whole in ("0%", "-0%") and share != 0):
        if 0 < share < 0.0005:
            return "less than 0.1%"
        return "more than 99.9%" if 0.9995 <= share < 1 else f"{share:.1%}"
    return whole


def explained(r2: float) -> str:
    """The share of a variance that a fit with this R^2 explains; `none` if R^2 is at most 0, where the mean is as
    good."""
    return "none" if r2 <= 0 else percent(r2)
