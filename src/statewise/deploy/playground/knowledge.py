"""What a task knows about the true state after each token, in one form for all tasks.

A state is a vector of C coordinates: the exact belief where the task has one, else 1 at the state's number and 0
elsewhere. So both are read off a model's states by the same least squares.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from typing_extensions import override

from statewise.analysis.beliefs.least_squares import r2
from statewise.analysis.beliefs.pictures import Plane, planes
from statewise.data_types import Examples
from statewise.tasks.base import Believed, Task, World

Weighted = list[tuple[int, float]]
"""Numbers of tokens or states, each with a log-probability or a weight."""

MOST_STATES = 1024
"""With more different states, none are read off: there are too few examples of each."""
SHOWN = 8
"""Maximum number of coordinates shown of a long state."""
LEAST = 0.01
"""Smaller coordinates of a long state are not shown."""
FEW = 16
"""Length of states whose coordinates are all shown, in their order."""
DOTS = 1500
"""Maximum number of exact beliefs in a picture."""


class Knowledge(ABC):
    """Built as `cls(task, examples)` from held-out examples. C is the number of coordinates."""

    names: list[str]
    """(C,) names of the coordinates."""
    measure: str
    """Name of the measure that `quality` returns."""
    colours: np.ndarray | None = None
    """(n, T) colours of the states of `examples`, as in `pictures`, empty where a state is unknown; None: no picture
    has colours."""

    @abstractmethod
    def states(self, examples: Examples) -> np.ndarray:
        """(n, T, C): the true state after each position; NaN where it is unknown."""

    @abstractmethod
    def quality(self, read: np.ndarray, true: np.ndarray) -> float:
        """How good readings (m, C) of true states (m, C) are; 1 is perfect."""

    def places(self, states: np.ndarray) -> list[list[tuple[float, float]]] | None:
        """Places of states (m, C) on each plane of `pictures`, (m) lists; None if there is no plane."""
        return None

    def pictures(self) -> list[dict[str, Any]]:
        """Planes as JSON values: `name`, `frame` as lines, `points` with their `colours`."""
        return []

    def next_tokens(self, examples: Examples) -> np.ndarray | None:
        """(n, T, V): true probabilities of the next token; None: unknown."""
        return None

    def shown(self, state: np.ndarray) -> Weighted:
        """The coordinates of a state (C,) that are worth showing, in order, or of many the largest first."""
        if len(state) <= FEW:
            return [(index, float(value)) for index, value in enumerate(state)]
        order = np.argsort(-state, kind="stable")[:SHOWN]
        return [(int(index), float(state[index])) for index in order if state[index] >= LEAST]


class Labels(Knowledge):
    """The knowledge of a world whose state is known: 1 at its number among those that occur in `examples`."""

    measure = "accuracy"

    def __init__(self, task: World, examples: Examples) -> None:
        self.task = task
        labels = task.labels(examples)
        self.labels = np.unique(labels[labels >= 0])
        self.names = [task.state_name(int(label)) for label in self.labels]

    def states(self, examples: Examples) -> np.ndarray:
        """See `Knowledge.states`; unknown, too, for states that are not among those known."""
        labels = self.task.labels(examples)
        index = np.searchsorted(self.labels, labels).clip(max=len(self.labels) - 1)
        known = self.labels[index] == labels
        return np.where(known[..., None], np.eye(len(self.labels))[index], np.nan)

    def quality(self, read: np.ndarray, true: np.ndarray) -> float:
        """The share of readings whose largest coordinate is the true state."""
        return float((read.argmax(1) == true.argmax(1)).mean())


class Beliefs(Knowledge):
    """The knowledge of a task with exact beliefs."""

    measure = "R2"

    def __init__(self, task: Believed, examples: Examples) -> None:
        self.task = task
        factors = len(task.widths)
        self.names = [
            f"factor {factor + 1}, state {state + 1}" if factors > 1 else f"state {state + 1}"
            for factor, width in enumerate(task.widths)
            for state in range(width)
        ]
        every = task.beliefs(examples)
        known = np.isfinite(every).all(2)
        self.every = every[known]
        self.planes: list[Plane] = planes(task, self.every, np.full(len(self.every), 1 / len(self.every)))
        self.colours = np.full(known.shape, "", dtype="U7")
        self.colours[known] = self.planes[0].colours

    @override
    def states(self, examples: Examples) -> np.ndarray:
        return self.task.beliefs(examples)

    def quality(self, read: np.ndarray, true: np.ndarray) -> float:
        """The share of the variance of `true` that `read` explains."""
        return r2(read, true, np.ones(len(true)))

    @override
    def next_tokens(self, examples: Examples) -> np.ndarray:
        return self.task.next_tokens(examples)

    @override
    def places(self, states: np.ndarray) -> list[list[tuple[float, float]]]:
        on_planes = np.stack([plane.place(states[:, plane.columns]) for plane in self.planes], axis=1)
        return [[(float(x), float(y)) for x, y in row] for row in on_planes]

    @override
    def pictures(self) -> list[dict[str, Any]]:
        pictures = []
        for plane in self.planes:
            drawing = plane.draw("", self.every)
            points = drawing.points[0]
            _, first = np.unique(np.array(points.places).round(3), axis=0, return_index=True)
            few = first[np.linspace(0, len(first) - 1, min(DOTS, len(first))).round().astype(int)].tolist()
            pictures.append(
                {
                    "name": plane.name.rstrip(", "),
                    "kind": plane.kind,
                    "frame": drawing.layers[0].lines,
                    "points": [points.places[row] for row in few],
                    "colours": [points.colours[row] for row in few],
                }
            )
        return pictures


def knowledge(task: Task, examples: Examples) -> Knowledge | None:
    """What the task knows about its true state; None: nothing, or there are too many states."""
    if isinstance(task, Believed):
        return Beliefs(task, examples)
    if not isinstance(task, World):
        return None
    labels = Labels(task, examples)
    return labels if 2 <= len(labels.names) <= MOST_STATES else None
