"""Tasks whose tokens come from a known process, so that the belief about its hidden state is known exactly."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from statewise.data_types import Examples, LacksPower
from statewise.tasks.base import Task, World


class Prefixes(NamedTuple):
    """Different prefixes of sequences, m in all."""

    examples: Examples
    """Sequences that contain them."""
    rows: np.ndarray
    """(m,): the sequence of each prefix."""
    columns: np.ndarray
    """(m,): its last position."""
    weights: np.ndarray
    """(m,): the probability of each among prefixes of all lengths, with equal lengths equally likely; sums to 1."""
    exact: bool
    """Whether these are all possible prefixes with their exact probabilities, not those of drawn sequences."""


class Believed(World):
    """A world whose true state is a belief: all that past tokens tell about future ones (a mixed state).

    `C` is the number of coordinates of a belief, of several factors side by side.
    """

    widths: Sequence[int]
    """The coordinates of each factor's belief; their sum is C."""
    simplex_factors: Sequence[bool]
    """Whether the belief of each factor is a probability distribution."""
    dimensions: Sequence[int]
    """Of the affine space of each factor's beliefs, which are normalised: one less than its states."""
    row_length: int
    """Tokens of the process in a training sequence."""
    opening: int
    """Tokens of a sequence before the first one of the process: 1 for <bos>."""
    joint_states: int
    """Hidden states of all factors together."""

    @abstractmethod
    def beliefs(self, examples: Examples) -> np.ndarray:
        """(n, T, C) float64: the belief after each position; NaN after tokens that are not possible."""

    @abstractmethod
    def constrained_beliefs(self, examples: Examples) -> np.ndarray:
        """(n, T, C) float64: what a sum over tokens, each seen by itself, can know of the belief after each position
        (constrained belief updates, arXiv 2502.01954): the belief of a predictor that has read nothing, plus the change
        that each token alone makes to it, carried on to the position without reading the tokens between. Coordinates as
        in `beliefs`; they may be negative. NaN as there."""

    @abstractmethod
    def next_tokens(self, examples: Examples) -> np.ndarray:
        """(n, T, V) float64: the true probabilities of the next token after each position, for all V tokens of the
        vocabulary; NaN as in `beliefs`. They go on beyond the end of a sequence."""

    @abstractmethod
    def prefixes(self, most: int, seed: int, longest: int | None = None) -> Prefixes:
        """All possible prefixes up to the longest length for which there are at most `most` sequences; if that is less
        than half of `longest`, the prefixes, about `most`, of drawn sequences of that length. `longest`: tokens of the
        process in the longest prefix; None: the task's length."""

    @abstractmethod
    def draw(self, rng: np.random.Generator, n: int, length: int) -> Examples:
        """n sequences of `length` tokens of the process, which may be more than the task's."""

    @abstractmethod
    def vary(self, rng: np.random.Generator, factor: int, n: int) -> Examples:
        """n sequences that have the tokens of all factors but one in common."""

    @abstractmethod
    def floors(self) -> np.ndarray:
        """(T,): the mean nats of the token at each position for a predictor that knows the belief before it: no model
        can have fewer. 0 where the token is certain."""


def believed(task: Task) -> Believed:
    """The task, if its beliefs are known. Raises `ValueError` if not."""
    if not isinstance(task, Believed):
        raise LacksPower("this analysis needs a task whose beliefs are known exactly", Believed)
    return task
