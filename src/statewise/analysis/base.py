"""What an analysis is: a predictor and examples in, numbers and curves out. It sees no network."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from statewise.decoding.base import Predictor
from statewise.tasks.base import Task
from statewise.types import Examples


@dataclass(frozen=True)
class Curve:
    """A line of a plot."""

    label: str
    x: list[float]
    y: list[float]


@dataclass(frozen=True)
class Findings:
    """What an analysis found, as plain data."""

    metrics: dict[str, float]
    curves: list[Curve]
    x_title: str
    y_title: str


class Analysis(ABC):
    """Built as `cls(config)`."""

    Config: ClassVar[type]
    """Dataclass of its fields."""

    sequences: int
    """Held-out examples that it wants."""

    @abstractmethod
    def analyze(self, predictor: Predictor, task: Task, examples: Examples) -> Findings:
        """The findings on `examples`. Raises `ValueError` if they do not suffice."""
