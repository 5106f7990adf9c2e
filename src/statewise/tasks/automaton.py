"""Worlds in which it is known whether two pasts come to the same: what the metrics of world models ask."""

from __future__ import annotations

from abc import abstractmethod
from typing import NamedTuple

import numpy as np

from statewise.tasks.base import Task, World
from statewise.types import Examples


class Pairs(NamedTuple):
    """Prefixes side by side: row by row the two are equally long, and different."""

    first: Examples
    second: Examples
    asked: int
    """How many pairs were to be drawn; rows are fewer where drawing did not succeed often enough."""

    def __len__(self) -> int:
        return len(self.first)


class Automaton(World):
    """A world whose state after a token follows from the state before it.

    States are rows of k numbers, and two pasts whose states are equal have the same futures. In the notation of shapes
    `n` is how many there are and `V` the vocabulary.
    """

    longest: int
    """Tokens of its longest sequence."""

    @abstractmethod
    def states_after(self, tokens: np.ndarray) -> np.ndarray:
        """(n, k) int64: the state after prefixes (n, t) of the task's own; -1 in all columns where one is not legal."""

    @abstractmethod
    def step(self, states: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """(n, k): the states (n, k) after the tokens (n,); -1 in all columns where the token may not come, or the
        state was no more one."""

    @abstractmethod
    def allowed(self, states: np.ndarray) -> np.ndarray:
        """(n, V) bool: the tokens that may come; none behind -1."""

    @abstractmethod
    def tokens_left(self, states: np.ndarray) -> np.ndarray:
        """(n,) int64: the fewest tokens with which a sequence can be brought to its end, 0 at the end, -1 if it never
        can."""

    @abstractmethod
    def draw_pairs(self, rng: np.random.Generator, n: int, *, alike: bool) -> Pairs:
        """n pairs of prefixes after which the true state is the same, or is not; every one can be brought to its end
        within the task's context."""


def automaton(task: Task) -> Automaton:
    """The task, if it is such a world. Raises `ValueError` if not."""
    if not isinstance(task, Automaton):
        raise ValueError(
            "this analysis must know which pasts of the task come to the same state: of the tasks, manhattan does"
        )
    return task


def accepted(world: Automaton, states: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """(n, m) bool: whether each of the tokens (n, m) may come behind the states (n, k) and the tokens before it."""
    found = np.empty(tokens.shape, bool)
    for place, column in enumerate(tokens.T):
        states = world.step(states, column)
        found[:, place] = states[:, 0] >= 0
    return found


def distinguishing(world: Automaton, first: np.ndarray, second: np.ndarray, longest: int) -> list[np.ndarray]:
    """The token sequences, of at most `longest`, that may come behind the state `first` (k,) and not behind `second`,
    and of which no beginning does (the Myhill-Nerode boundary; Vafa et al. 2024), in order of length."""
    found: list[np.ndarray] = []
    tails = np.empty((1, 0), np.int64)
    ones, others = first[None], second[None]
    for _ in range(longest):
        may_first, may_second = world.allowed(ones), world.allowed(others)
        for row, token in np.argwhere(may_first & ~may_second):
            found.append(np.append(tails[row], token))
        rows, tokens = np.nonzero(may_first & may_second)
        if not len(rows):
            break
        tails = np.concatenate([tails[rows], tokens[:, None]], axis=1)
        ones, others = world.step(ones[rows], tokens), world.step(others[rows], tokens)
    return found
