"""What an analysis is: a subject in, numbers and curves out. It sees no network."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np

from statewise.decoding.base import Predictor
from statewise.tasks.base import Task
from statewise.types import Completion, Examples

Role = Literal["line", "series", "control", "raw"]


@dataclass(frozen=True)
class Curve:
    """A line of a plot."""

    label: str
    x: list[float]
    y: list[float]
    role: Role = "line"
    """`series`: one of a family in its order, coloured by rank; `control`: what the others are measured against;
    `raw`: what the line before it smooths."""


@dataclass(frozen=True)
class Panel:
    """Curves that share their axes."""

    x_title: str
    y_title: str
    curves: list[Curve]
    shares: bool = False
    """Whether y lies between 0 and 1."""


@dataclass(frozen=True)
class Layer:
    """Lines of a drawing that are drawn alike."""

    label: str
    lines: list[list[list[float]]]
    """Of each its two ends, each (x, y)."""
    names: list[str]
    """What each is, for those who point at it."""
    stands_out: bool = False
    """Whether they are what the drawing is about."""


@dataclass(frozen=True)
class Drawing:
    """A picture of lines, such as a map; units are alike in both directions."""

    title: str
    layers: list[Layer]


@dataclass(frozen=True)
class Findings:
    """What an analysis found, as plain data."""

    metrics: dict[str, float]
    panels: list[Panel]
    details: dict[str, Any] = field(default_factory=dict)
    """Every number behind the panels, for those who compute with them."""
    notes: list[str] = field(default_factory=list)
    """What a reader must know: what was left out, and why."""
    drawings: list[Drawing] = field(default_factory=list)
    """Pictures beside the panels."""
    main: list[str] = field(default_factory=list)
    """The metrics by which models are compared, of all; the first is what the analysis is about."""


def make_anew(key: str, make: Callable[[], np.ndarray]) -> np.ndarray:
    """Remembers nothing."""
    return make()


@dataclass(frozen=True)
class Model:
    """A model that an analysis looks at, with frozen weights."""

    label: str
    predictor: Predictor
    step: int | None = None
    """Training step of its checkpoint; None: it was not trained."""
    remember: Callable[[str, Callable[[], np.ndarray]], np.ndarray] = make_anew
    """`remember(key, make)`: the array kept for this model under `key`; else what `make()` gives, which is kept."""


@dataclass(frozen=True)
class Subject:
    """What an analysis looks at: a model, its task, and other models, made when asked for."""

    task: Task
    model: Model
    """The model at the chosen checkpoint."""
    checkpoints: Callable[[str], Iterator[Model]]
    """The model at `all` checkpoints of its run, or at some (`100,200`), one after another. Raises `ValueError` or
    `FileNotFoundError` for those that do not exist."""
    untrained: Callable[[], Model]
    """A model of the same recipe with fresh weights, drawn with another seed."""
    complete: Callable[[Examples], list[Completion]]
    """What the model at the chosen checkpoint answers to the prompts of examples, greedily, in their order."""
    device: str = "cpu"
    """Where an analysis may compute."""


class Analysis(ABC):
    """Built as `cls(config)`. Examples it draws itself, from the subject's task."""

    Config: ClassVar[type]
    """Dataclass of its fields."""

    config: Any
    """Its fields: they are kept with what it finds."""

    @abstractmethod
    def analyze(self, subject: Subject) -> Findings:
        """What there is to see. Raises `ValueError` if the task or its examples do not suffice."""
