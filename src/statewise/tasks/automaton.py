"""Worlds that are deterministic automata, as the metrics of world models (Vafa et al. 2024) need them."""

from __future__ import annotations

from abc import abstractmethod
from typing import NamedTuple

import numpy as np

from statewise.data_types import Examples
from statewise.runtime.messages import LacksCapability
from statewise.tasks.base import Task, World

MOST_WORDS = 100_000
"""Most words of one length, legal after both of two states, that are searched for one that distinguishes the states."""


class Pairs(NamedTuple):
    """Pairs of prefixes: in each row the two are different and equally long."""

    first: Examples
    second: Examples
    requested: int
    """Number of requested pairs; there are fewer rows if drawing failed too often."""

    def __len__(self) -> int:
        return len(self.first)


class Automaton(World):
    """A world whose state after a token follows from the state before it.

    States are rows of k numbers; equal states have the same continuations. `n` is a number of states and `V` the
    vocabulary.
    """

    longest: int
    """Tokens of the longest sequence."""
    every_choice_scored = True
    """Whether training scores every position where several tokens are legal, so that a model learns which are."""

    @abstractmethod
    def states_after(self, tokens: np.ndarray) -> np.ndarray:
        """(n, k) int64: the state after each of the prefixes (n, t); -1 in all columns where one is not legal."""

    @abstractmethod
    def step(self, states: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """(n, k): the states (n, k) after the tokens (n,); -1 in all columns where the token is illegal or the state
        was already invalid."""

    @abstractmethod
    def allowed(self, states: np.ndarray) -> np.ndarray:
        """(n, V) bool: the legal next tokens; none in an invalid state."""

    @abstractmethod
    def tokens_left(self, states: np.ndarray) -> np.ndarray:
        """(n,) int64: fewest tokens to the end of a sequence, 0 at the end, -1 where it cannot be reached."""

    @abstractmethod
    def draw_pairs(self, rng: np.random.Generator, n: int, *, same_state: bool) -> Pairs:
        """n pairs of prefixes that lead to the same state, or to different ones; each can be completed within the
        task's context."""


def automaton(task: Task) -> Automaton:
    """The task, if it is an automaton. Raises `ValueError` if not."""
    if not isinstance(task, Automaton):
        raise LacksCapability("this analysis needs a task that knows which prefixes lead to the same state", Automaton)
    return task


def accepted(world: Automaton, states: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """(n, m) bool: whether each of the tokens (n, m) is legal after the states (n, k) and the tokens before it."""
    legal = np.empty(tokens.shape, bool)
    for position, column in enumerate(tokens.T):
        states = world.step(states, column)
        legal[:, position] = states[:, 0] >= 0
    return legal


def most_legal(world: Automaton, prefixes: Examples) -> int:
    """The most tokens that are legal after one of the prefixes."""
    counts = [
        world.allowed(world.states_after(prefixes.tokens[prefixes.lengths == length][:, :length])).sum(1).max()
        for length in np.unique(prefixes.lengths)
    ]
    return int(max(counts, default=0))


def completed(world: Automaton, states: np.ndarray, tails: list[np.ndarray]) -> np.ndarray:
    """(n,) bool: whether each of the n `tails` (m,) is legal after its row of the states (n, k) and ends the
    sequence."""
    legal = np.empty(len(tails), bool)
    lengths = np.array([len(tail) for tail in tails], np.int64)
    for length in np.unique(lengths):
        rows = np.flatnonzero(lengths == length)
        now = states[rows]
        for column in np.stack([tails[row] for row in rows]).T:
            now = world.step(now, column)
        legal[rows] = world.tokens_left(now) == 0
    return legal


def up_to_end(world: Automaton, states: np.ndarray, tails: list[np.ndarray]) -> list[np.ndarray]:
    """The n `tails` (m,), each legal or not after its row of the states (n, k), without the tokens after the end of the
    sequence, where it may end and no token is legal."""
    kept = np.array([len(tail) for tail in tails], np.int64)
    tokens = np.zeros((len(tails), max(kept, default=0) + 1), np.int64)
    for row, tail in enumerate(tails):
        tokens[row, : len(tail)] = tail
    for place, column in enumerate(tokens.T):
        over = (world.tokens_left(states) == 0) & ~world.allowed(states).any(axis=1)
        kept[over & (place < kept)] = place
        states = world.step(states, column)
    return [tail[:length] for tail, length in zip(tails, kept)]


def distinguishing(world: Automaton, first: np.ndarray, second: np.ndarray, longest: int) -> list[np.ndarray]:
    """The shortest suffixes, of at most `longest` tokens, that are legal after the state `first` (k,) and not after
    `second` (the Myhill-Nerode boundary; Vafa et al. 2024), by length. No proper prefix of one distinguishes them.
    Raises `ValueError` if there are too many words to search."""
    suffixes: list[np.ndarray] = []
    tails = np.empty((1, 0), np.int64)
    ones, others = first[None], second[None]
    for length in range(longest):
        if len(tails) > MOST_WORDS:
            raise ValueError(
                f"there are {len(tails):,} words of {length} tokens to search for those that tell two states apart: "
                f"set `length` to {length} or lower"
            )
        may_first, may_second = world.allowed(ones), world.allowed(others)
        for row, token in np.argwhere(may_first & ~may_second):
            suffixes.append(np.append(tails[row], token))
        rows, tokens = np.nonzero(may_first & may_second)
        if not len(rows):
            break
        tails = np.concatenate([tails[rows], tokens[:, None]], axis=1)
        ones, others = world.step(ones[rows], tokens), world.step(others[rows], tokens)
    return suffixes
