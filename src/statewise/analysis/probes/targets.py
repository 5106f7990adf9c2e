"""Probes of belief states: small networks that decode information from frozen states.

Targets are the future (Hu et al. 2025, section 5.4 and figure 8; Teoh et al. 2026, figure 4), the prompt (Hu et al.,
figure 8, bottom), and the true state of the world, if the task knows it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from statewise.analysis.probes.fit import UNDEFINED
from statewise.analysis.probes.probing import LabelledStates, Probing, ProbingConfig
from statewise.data_types import Examples
from statewise.decoding.predictor import Predictor
from statewise.runtime.bounds import bounded
from statewise.runtime.messages import LacksCapability, short
from statewise.tasks.base import Task, World

FARTHEST = 20
"""Largest offset by default, as in NextLat's figure 4."""


@dataclass(frozen=True)
class FutureProbeConfig(ProbingConfig):
    """Options of `statewise analyze RUN future-probe`."""

    offsets: str | None = None
    """Offsets of the tokens to predict, 1 the next: a range like 1-8, or 1,2,4; null: 1-20, as far as sequences go."""
    positions: int = 8
    """States per sequence if there are no prompts; with prompts, the state after each is probed."""

    def __post_init__(self) -> None:
        super().__post_init__()
        bounded(self, "positions", at_least=1)
        if self.offsets is not None:
            numbers(self.offsets)


class FutureProbe(Probing):
    """The token k positions after the state, one probe per k."""

    Config = FutureProbeConfig
    config: FutureProbeConfig
    of_prefix = False
    x_name = "offset"
    x_title = "offset of the token after the state"
    target = "the later tokens"

    def labelled_states(self, task: Task, examples: Examples, rng: np.random.Generator) -> LabelledStates:
        """At the end of the prompt; without prompts, at random positions."""
        rows = np.flatnonzero(examples.prompt_lengths)
        positions = examples.prompt_lengths[rows] - 1
        documents = examples.documents
        if not len(rows):  # every position but the last, which has no next token
            allowed = np.arange(examples.tokens.shape[1]) < examples.lengths[:, None] - 1
            if documents is not None:
                allowed[:, :-1] &= documents[:, 1:] == documents[:, :-1]
            rows, positions = draw_positions(allowed, self.config.positions, rng)
        offsets = self._offsets()
        if self.config.offsets is not None and offsets[-1] >= task.context:
            raise ValueError(
                f"the longest sequence has {task.context} tokens, so no token is {offsets[-1]} positions after a "
                f"state: choose offsets up to {task.context - 1}"
            )
        columns = positions[:, None] + offsets
        inside = columns < examples.lengths[rows, None]
        if documents is not None:
            inside &= documents[rows[:, None], np.where(inside, columns, 0)] == documents[rows, positions][:, None]
        tokens = examples.tokens[rows[:, None], np.where(inside, columns, 0)]
        return LabelledStates(
            rows, positions, np.where(inside, tokens, UNDEFINED), np.broadcast_to(offsets, tokens.shape)
        )

    def choose(self, train: LabelledStates, answerable: np.ndarray) -> tuple[np.ndarray, list[str]]:
        """All offsets within the sequences."""
        offsets = self._offsets()
        if not answerable.any():
            raise ValueError("no sequence has a token after the state: they are too short for future-probe")
        if self.config.offsets is not None and not answerable.all():
            raise ValueError(
                f"too few training or held-out sequences have a token {offsets[~answerable][0]} positions after the "
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
    target = "the prompt's tokens"

    def labelled_states(self, task: Task, examples: Examples, rng: np.random.Generator) -> LabelledStates:
        """At the end of the prompt."""
        rows = np.flatnonzero(examples.prompt_lengths)
        if not len(rows):
            raise ValueError("the sequences of this task have no prompts: use future-probe")
        prompts = examples.prompt_lengths[rows]
        columns = np.arange(task.context)
        tokens = np.full((len(rows), task.context), UNDEFINED, np.int64)
        shown = examples.tokens[rows, : task.context]
        tokens[:, : shown.shape[1]] = np.where(columns[: shown.shape[1]] < prompts[:, None], shown, UNDEFINED)
        return LabelledStates(rows, prompts - 1, tokens, np.broadcast_to(columns + 1, tokens.shape))

    def choose(self, train: LabelledStates, answerable: np.ndarray) -> tuple[np.ndarray, list[str]]:
        """Positions whose token varies over training prompts."""
        lowest = np.where(train.labels == UNDEFINED, np.iinfo(np.int64).max, train.labels).min(0)
        varies = train.labels.max(0) > lowest
        chosen = np.flatnonzero(answerable & varies)
        if not len(chosen):
            raise ValueError("the prompts of this task are all the same: there is nothing to probe")
        constant = np.flatnonzero(answerable & ~varies) + 1
        if not len(constant):
            return chosen, []
        listed = ", ".join(map(str, constant))
        return chosen, [f"positions with the same token in every training prompt are left out: {listed}"]


@dataclass(frozen=True)
class WorldProbeConfig(ProbingConfig):
    """Options of `statewise analyze RUN world-probe`."""

    positions: int = 8
    """States per sequence, drawn among those where the true state is defined."""

    def __post_init__(self) -> None:
        super().__post_init__()
        bounded(self, "positions", at_least=1)


class WorldProbe(Probing):
    """The task's true state, from the belief state at the same position: one probe for all positions."""

    Config = WorldProbeConfig
    config: WorldProbeConfig
    x_name = "position"
    x_title = "position in the sequence"
    target = "the true states"

    @override
    def check(self, task: Task, predictor: Callable[[], Predictor]) -> None:
        world_of(task, "world-probe")

    def labelled_states(self, task: Task, examples: Examples, rng: np.random.Generator) -> LabelledStates:
        """At random positions that have a label."""
        labels = known_states(world_of(task, "world-probe"), examples)
        rows, positions = draw_positions(labels >= 0, self.config.positions, rng)
        return LabelledStates(rows, positions, labels[rows, positions][:, None], positions[:, None] + 1)

    def choose(self, train: LabelledStates, answerable: np.ndarray) -> tuple[np.ndarray, list[str]]:
        """The single probe."""
        if not answerable.all():
            raise ValueError("the true state is undefined in all or too many of these sequences")
        return np.array([0]), []


def world_of(task: Task, analysis: str) -> World:
    """The task, if it knows its true state, which `analysis` needs. Raises `LacksCapability` if not."""
    if not isinstance(task, World):
        raise LacksCapability(f"{analysis} needs a task that knows its true state", World)
    return task


def known_states(task: World, examples: Examples) -> np.ndarray:
    """`World.labels`. Raises `ValueError` if no position has one."""
    labels = task.labels(examples)
    if not (labels >= 0).any():
        raise ValueError(
            "the task knows the true state at no position of these sequences; a process of the task hmm has states "
            "only if its beliefs are finitely many, as those of rrxor, z1r, even and checksum"
        )
    return labels


def draw_positions(allowed: np.ndarray, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """(rows, positions): up to `count` random distinct positions per row where `allowed` (n, T), in order."""
    rank = np.where(allowed, rng.random(allowed.shape), 2.0).argsort(1).argsort(1)
    rows, positions = np.nonzero(allowed & (rank < count))
    return rows, positions


def numbers(text: str) -> list[int]:
    """`1-4` or `1,2,4` as sorted numbers. Raises `ValueError` unless they are at least 1 and below 1,000,000."""
    chosen: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,6})(?:-(\d{1,6}))?\s*", part)
        if not match or int(match[1]) < 1 or int(match[2] or match[1]) < int(match[1]):
            raise ValueError(
                f"offsets must be a range like 1-8 or numbers like 1,2,4 below 1,000,000, not {short(text)}"
            )
        chosen |= set(range(int(match[1]), int(match[2] or match[1]) + 1))
    return sorted(chosen)
