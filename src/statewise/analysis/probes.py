"""Belief probes: what a small network reads off a frozen state.

The future (Hu et al. 2025, section 5.4 and figure 8; Teoh et al. 2026, figure 4), the prompt (Hu et al., figure 8,
bottom), and, where a task knows it, the true state of the world.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from statewise.analysis.probe_fit import UNDEFINED
from statewise.analysis.probing import Probing, ProbingConfig, Questions
from statewise.tasks.base import Task, World
from statewise.types import Examples

FARTHEST = 20
"""Offset up to which tokens are asked for by default: as far as NextLat's figure 4 goes."""


@dataclass(frozen=True)
class FutureProbeConfig(ProbingConfig):
    """Options of `statewise analyze RUN future-probe`."""

    offsets: str | None = None
    """Which tokens behind the state, 1 the next: a range like 1-8, or 1,2,4; null: 1-20, as far as sequences go."""
    positions: int = 8
    """States drawn from each sequence where there is no prompt; where there is one, the state after it is taken."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.positions < 1:
            raise ValueError(f"positions must be at least 1, not {self.positions}")
        if self.offsets is not None:
            numbers(self.offsets)


class FutureProbe(Probing):
    """Token k places behind the state, a probe for each k."""

    Config = FutureProbeConfig
    config: FutureProbeConfig
    x_name = "offset"
    x_title = "offset of the token behind the state"

    def ask(self, task: Task, examples: Examples, rng: np.random.Generator) -> Questions:
        """From the state after the prompt; in sequences without prompts, from states at random positions."""
        rows = np.flatnonzero(examples.prompt_lengths)
        places = examples.prompt_lengths[rows] - 1
        documents = examples.documents
        if not len(rows):  # every position but the last, which has no token behind it
            allowed = np.arange(examples.tokens.shape[1]) < examples.lengths[:, None] - 1
            if documents is not None:
                allowed[:, :-1] &= documents[:, 1:] == documents[:, :-1]
            rows, places = draw_positions(allowed, self.config.positions, rng)
        offsets = self._offsets()
        columns = places[:, None] + offsets
        inside = columns < examples.lengths[rows, None]
        if documents is not None:
            inside &= documents[rows[:, None], np.where(inside, columns, 0)] == documents[rows, places][:, None]
        tokens = examples.tokens[rows[:, None], np.where(inside, columns, 0)]
        return Questions(rows, places, np.where(inside, tokens, UNDEFINED), np.broadcast_to(offsets, tokens.shape))

    def choose(self, train: Questions, answerable: np.ndarray) -> tuple[np.ndarray, list[str]]:
        """All offsets that sequences reach."""
        offsets = self._offsets()
        if not answerable.any():
            raise ValueError("no sequence has a token behind the state: they are too short for a probe of the future")
        if self.config.offsets is not None and not answerable.all():
            raise ValueError(
                f"too few sequences, to train and to test on, have a token {offsets[~answerable][0]} places behind the "
                f"state: choose offsets up to {offsets[answerable].max()}, or more sequences"
            )
        return np.flatnonzero(answerable), []

    def _offsets(self) -> np.ndarray:
        return np.array(numbers(self.config.offsets or f"1-{FARTHEST}"))


@dataclass(frozen=True)
class PromptProbeConfig(ProbingConfig):
    """Options of `statewise analyze RUN prompt-probe`."""


class PromptProbe(Probing):
    """Each token of the prompt, from the state after the prompt."""

    Config = PromptProbeConfig
    x_name = "position"
    x_title = "position in the prompt"

    def ask(self, task: Task, examples: Examples, rng: np.random.Generator) -> Questions:
        """From the state after the prompt."""
        rows = np.flatnonzero(examples.prompt_lengths)
        if not len(rows):
            raise ValueError("the sequences of this task have no prompts to probe for: future-probe works without")
        prompts = examples.prompt_lengths[rows]
        columns = np.arange(task.context)
        tokens = np.full((len(rows), task.context), UNDEFINED, np.int64)
        shown = examples.tokens[rows, : task.context]
        tokens[:, : shown.shape[1]] = np.where(columns[: shown.shape[1]] < prompts[:, None], shown, UNDEFINED)
        return Questions(rows, prompts - 1, tokens, np.broadcast_to(columns + 1, tokens.shape))

    def choose(self, train: Questions, answerable: np.ndarray) -> tuple[np.ndarray, list[str]]:
        """Positions whose token is not the same in all training prompts."""
        lowest = np.where(train.labels == UNDEFINED, np.iinfo(np.int64).max, train.labels).min(0)
        varies = train.labels.max(0) > lowest
        chosen = np.flatnonzero(answerable & varies)
        if not len(chosen):
            raise ValueError("the prompts of this task are all the same: there is nothing to probe for")
        constant = np.flatnonzero(answerable & ~varies) + 1
        if not len(constant):
            return chosen, []
        listed = ", ".join(map(str, constant))
        return chosen, [f"left out, since they hold the same token in every training prompt: positions {listed}"]


@dataclass(frozen=True)
class WorldProbeConfig(ProbingConfig):
    """Options of `statewise analyze RUN world-probe`."""

    positions: int = 8
    """States drawn from each sequence, among those where the true state is defined."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.positions < 1:
            raise ValueError(f"positions must be at least 1, not {self.positions}")


class WorldProbe(Probing):
    """The task's true state, from the belief state at the same position: one probe for all positions."""

    Config = WorldProbeConfig
    config: WorldProbeConfig
    x_name = "position"
    x_title = "position in the sequence"

    def ask(self, task: Task, examples: Examples, rng: np.random.Generator) -> Questions:
        """From states at random positions that have a label."""
        if not isinstance(task, World):
            raise ValueError("this task does not know its true state: future-probe and prompt-probe need none")
        labels = task.labels(examples)
        rows, places = draw_positions(labels >= 0, self.config.positions, rng)
        return Questions(rows, places, labels[rows, places][:, None], places[:, None] + 1)

    def choose(self, train: Questions, answerable: np.ndarray) -> tuple[np.ndarray, list[str]]:
        """The one probe."""
        if not answerable.all():
            raise ValueError("the true state is defined nowhere in these sequences, or in too few of them")
        return np.array([0]), []


def draw_positions(allowed: np.ndarray, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """(rows, positions) of up to `count` random different positions a row where `allowed` (n, T), in order."""
    rank = np.where(allowed, rng.random(allowed.shape), 2.0).argsort(1).argsort(1)
    rows, places = np.nonzero(allowed & (rank < count))
    return rows, places


def numbers(text: str) -> list[int]:
    """`1-4` or `1,2,4` as numbers in order. Raises `ValueError` unless they are at least 1."""
    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if not match or int(match[1]) < 1 or int(match[2] or match[1]) < int(match[1]):
            raise ValueError(f"offsets must be a range like 1-8 or numbers like 1,2,4, not {text!r}")
        found |= set(range(int(match[1]), int(match[2] or match[1]) + 1))
    return sorted(found)
