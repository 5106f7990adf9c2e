"""Automata as languages: their tokens, with questions for the state at random places, or one at the end.

A question is the symbol `=`, and its answer the name of the state. The flip-flop language (Liu et al. 2023, 2306.00946)
has its own form: pairs of an instruction and a bit, `w 1 i 0 i 1 r 1`, where `r` asks for the bit after the last `w`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from statewise.tasks.state_tracking.transition_tables import Table

Ask = Literal["reveals", "query"]


@dataclass(frozen=True)
class Process:
    """A deterministic automaton over S states and V symbols, which draws sequences."""

    symbols: list[str]
    next: np.ndarray
    """(S, V) int64: the state after each symbol, -1 where it is illegal."""
    weights: np.ndarray
    """(S, V) probabilities by which symbols are drawn, questions left out; rows of ready states sum to 1."""
    question: np.ndarray
    """(S,) int64: the symbol that asks for the state; -1 where nothing may be asked."""
    asked: np.ndarray
    """(S,) bool: the next symbol is an answer, the only legal one."""
    known: np.ndarray
    """(S,) int64: the state of the table, by number, -1 where it is not defined."""
    start: int
    unit: int
    """Symbols of one step of the table: questions may be asked at its multiples."""
    ends: bool
    """Whether the answer ends the sequence."""

    def draw(self, rng: np.random.Generator, lengths: np.ndarray, rate: float) -> tuple[np.ndarray, np.ndarray]:
        """Tokens (n, T), 0 after the end, and whether each is an answer, for sequences of `lengths` (n,), at least unit
        + 2 and multiples of the unit. Each ends with a question and its answer; before, `rate` is the probability of a
        question where one may be asked."""
        n, T = len(lengths), int(lengths.max())
        tokens, answers = np.zeros((T, n), np.int64), np.zeros((T, n), bool)  # written a place at a time
        drawing = np.where(self.asked[:, None], self.next >= 0, self.weights)
        cumulative = np.cumsum(drawing, axis=1)
        later = np.cumsum(drawing[:, ::-1], axis=1)[:, ::-1] - drawing
        cumulative[later <= 0] = 2.0  # rounding must leave no room above the last symbol that may come
        by_symbol = np.ascontiguousarray(cumulative.T)
        draws = rng.random((T, 2, n))
        state = np.full(n, self.start)
        for place in range(T):
            left, question = lengths - place, self.question[state]
            # A question takes two symbols, so with steps of one symbol none fits where three are left.
            asks = (question >= 0) & ((left == 2) | ((draws[place, 0] < rate) & (left != 3)))
            drawn = (by_symbol.take(state, axis=1) <= draws[place, 1]).sum(axis=0)
            tokens[place] = np.where(asks, question, drawn)
            answers[place] = self.asked[state]
            state = np.where(left <= 1, self.start, self.next[state, tokens[place]])
        there = np.arange(T) < lengths[:, None]
        return np.ascontiguousarray(tokens.T) * there, np.ascontiguousarray(answers.T) & there

    def chance(self, least: int, most: int, rate: float) -> float:
        """The share of the most common answer in sequences as `draw` draws them, of lengths that are multiples of the
        unit, uniform from `least` to `most`."""
        size = len(self.next)
        drawing = np.where(self.asked[:, None], self.next >= 0, self.weights)
        plain, asking = np.zeros((2, size, size))
        rows, symbols = np.nonzero(drawing)
        np.add.at(plain, (rows, self.next[rows, symbols]), drawing[rows, symbols])
        ready = np.flatnonzero(self.question >= 0)
        asking[ready, self.next[ready, self.question[ready]]] = 1.0

        def step(now: np.ndarray, rate: float) -> tuple[np.ndarray, np.ndarray]:
            """The questions asked in each state, and the distribution of states after one more symbol."""
            asked = now * (self.question >= 0) * rate
            return asked, (now - asked) @ plain + asked @ asking

        # What is asked with four symbols left and more does not depend on the length: only the last three places do.
        now, before, answers = np.eye(size)[self.start], np.zeros(size), np.zeros(size)
        for place in range(most - 2):
            length = place + 3
            if length >= least and length % self.unit == 0:
                ends, last = step(now, 0.0)[1], before
                answers += last + step(ends, 1.0)[0]
            asked, now = step(now, rate)
            before = before + asked
        by_state = np.bincount(self.known[ready], answers[ready])
        return float(by_state.max() / by_state.sum())


def of_table(table: Table, ask: Ask) -> Process:
    """The language of a table. Raises `ValueError` if a name is both a state and a token, or `=`."""
    S, A = table.next.shape
    symbols = [*table.tokens, "=", *table.states]
    for name in sorted({*table.tokens} & {*table.states} | ({"="} & {*table.tokens, *table.states})):
        raise ValueError(f"the name {name!r} must not be a state and a token, nor the sign of a question: rename one")
    states, ready = 2 * S + (ask == "query"), np.arange(S)
    after = np.full((states, len(symbols)), -1, np.int64)
    after[:S, :A] = table.next
    after[:S, A] = S + ready
    after[S + ready, A + 1 + ready] = ready if ask == "reveals" else 2 * S
    weights = np.zeros(after.shape)
    weights[:S, :A] = table.weights
    place = np.arange(states)
    return Process(
        symbols,
        after,
        weights,
        question=np.where(place < S, A, -1),
        asked=(place >= S) & (place < 2 * S),
        known=np.where(place < 2 * S, place % S, -1),
        start=table.start,
        unit=1,
        ends=ask == "query",
    )


def flip_flop(ask: Ask, rate: float) -> Process:
    """The flip-flop language: `rate`, at most 1/2, is the probability of `r`, and of `w`; the rest of the instructions
    are `i`, whose bits do not matter. The first instruction is `w`."""
    write, read, ignore, zero, one = range(5)
    start, written, ended = 0, 1, 8
    ready, ignored, asked = np.array([2, 3]), np.array([4, 5]), np.array([6, 7])
    states = 8 + (ask == "query")
    after, weights = np.full((states, 5), -1, np.int64), np.zeros((states, 5))
    after[start, write], weights[start, write] = written, 1.0
    after[written, [zero, one]], weights[written, [zero, one]] = ready, 0.5
    after[ready, write], weights[ready, write] = written, rate / (1 - rate)
    after[ready, ignore], weights[ready, ignore] = ignored, (1 - 2 * rate) / (1 - rate)
    after[ready, read] = asked
    after[ignored[:, None], [zero, one]], weights[ignored[:, None], [zero, one]] = ready[:, None], 0.5
    after[asked, [zero, one]] = ready if ask == "reveals" else ended
    place = np.arange(states)
    return Process(
        ["w", "r", "i", "0", "1"],
        after,
        weights,
        question=np.where(np.isin(place, ready), read, -1),
        asked=np.isin(place, asked),
        known=np.where((place >= 2) & (place < 8), place % 2, -1),
        start=start,
        unit=2,
        ends=ask == "query",
    )
