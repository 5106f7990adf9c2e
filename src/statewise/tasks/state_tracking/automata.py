"""Finite automata as tables, and as languages with questions for their state.

A table is a preset of the state-tracking literature, or a JSON file of your own:
`{"states": ["even", "odd"], "tokens": ["0", "1"], "next": [["even", "odd"], ["odd", "even"]]}`.
Row s of `next` has, for each token, the name of the state after it, or null where the token is illegal. Optional:
`start`, the name of the first state (default: the first of the list), and `weights`, numbers in the shape of `next` in
proportion to which legal tokens are drawn (default: all alike).

A language has the tokens of its table, with questions for the state at random places, or one at the end. A question is
the symbol `=`, and its answer the name of the state. The flip-flop language (Liu et al. 2023, 2306.00946) has its own
form: pairs of an instruction and a bit, `w 1 i 0 i 1 r 1`, where `r` asks for the bit after the last `w`.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from statewise.runtime.json_files import NUMBER, TEXT, Maybe, Shape, check_keys, parse_json
from statewise.runtime.messages import short

MOST_STATES = 5000
SHAPE: Shape = {"states": [TEXT], "tokens": [TEXT], "next": [[Maybe(TEXT)]], "start?": TEXT, "weights?": [[NUMBER]]}
KEYS = ("states", "tokens", "next", "start", "weights")


@dataclass(frozen=True)
class Table:
    """A deterministic automaton with S states and A tokens, and how its tokens are drawn."""

    states: list[str]
    tokens: list[str]
    next: np.ndarray
    """(S, A) int64: the state after each token, -1 where it is illegal."""
    weights: np.ndarray
    """(S, A) probabilities of the legal tokens; rows sum to 1."""
    start: int = 0

    @classmethod
    def of(cls, states: list[str], tokens: list[str], next: np.ndarray, weights: np.ndarray | None = None) -> Table:
        """A table whose legal tokens are drawn alike, or in proportion to `weights`."""
        drawn = (next >= 0) * (1.0 if weights is None else weights)
        return cls(states, tokens, next, drawn / drawn.sum(axis=1, keepdims=True))


def parse_table(content: bytes, where: str) -> Table:
    """The table of a file named `where`. Raises `ValueError` , naming it, for anything that is not an automaton."""
    fields = parse_json(content, SHAPE, where)
    check_keys(fields, KEYS, where)
    try:
        return _checked(fields)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _checked(content: dict[str, Any]) -> Table:
    states, tokens = content["states"], content["tokens"]
    for kind, names in (("states", states), ("tokens", tokens)):
        if not 1 <= len(names) <= MOST_STATES:
            raise ValueError(f"{kind} must have 1 to {MOST_STATES:,} names, not {len(names)}")
        wrong = [name for name in names if not (re.fullmatch(r"\S{1,60}", name) and name.isprintable())]
        if wrong:
            raise ValueError(
                f"{kind}: {short(wrong[0])} is not a name: give 1 to 60 printable characters without spaces"
            )
        if len(set(names)) < len(names):
            raise ValueError(f"{kind}: a name occurs twice")
    numbers = {name: number for number, name in enumerate(states)}
    shape = (len(states), len(tokens))
    for key in ("next", "weights"):
        rows = content.get(key)
        if rows is not None and (len(rows), *{len(row) for row in rows}) != shape:
            raise ValueError(f"{key} must have a row of {shape[1]} tokens for each of {shape[0]} states")
    after = np.full(shape, -1, np.int64)
    for (state, row), (token, name) in itertools.product(enumerate(content["next"]), enumerate(tokens)):
        next_state = row[token]
        if next_state is not None and next_state not in numbers:
            raise ValueError(
                f"next: after state {states[state]} and token {name} comes {short(next_state)}, which is not a state"
            )
        after[state, token] = -1 if next_state is None else numbers[next_state]
    start = content.get("start", states[0])
    if start not in numbers:
        raise ValueError(f"start: {short(start)} is not a state")
    weights = np.array(content.get("weights", np.ones(shape)), np.float64)
    if not (np.isfinite(weights) & (weights >= 0) & (weights <= 1e9)).all():
        raise ValueError("weights must be numbers from 0 to 1e9")
    drawn = np.where(after >= 0, weights, 0.0)
    reached = _reachable(after, drawn, numbers[start])
    for state in np.flatnonzero(~reached).tolist():
        raise ValueError(f"state {states[state]} cannot be reached from {start}")
    for state in np.flatnonzero(drawn.sum(axis=1) == 0).tolist():
        raise ValueError(f"state {states[state]} has no legal token with a weight above 0")
    return Table(states, tokens, after, drawn / drawn.sum(axis=1, keepdims=True), numbers[start])


def _reachable(after: np.ndarray, drawn: np.ndarray, start: int) -> np.ndarray:
    """(S,) bool."""
    reached = np.zeros(len(after), bool)
    front = [start]
    while front:
        reached[front] = True
        follow = np.unique(after[front][drawn[front] > 0])
        front = [state for state in follow.tolist() if not reached[state]]
    return reached


def cyclic(n: int) -> Table:
    """Z_n: the sum modulo n of numbers below n. For n = 2, the parity of bits."""
    names = list(map(str, range(n)))
    numbers = np.arange(n)
    return Table.of([f"s{name}" for name in names], names, (numbers[:, None] + numbers) % n)


def permutations(n: int, *, even: bool = False) -> Table:
    """S_n, or A_n if `even`: the state is the product of the permutations read, each a token. Digit i of a name is the
    image of i; after state s, token a leads to i -> s(a(i)). The identity is the first."""
    every = np.array(list(itertools.permutations(range(n))))
    if even:
        pairs = np.array(list(itertools.combinations(range(n), 2)))
        inversions = (every[:, pairs[:, 0]] > every[:, pairs[:, 1]]).sum(axis=1)
        every = every[np.asarray(inversions) % 2 == 0]
    names = ["".join(map(str, one + 1)) for one in every]
    digits = n ** np.arange(n)
    order = np.argsort(every @ digits)
    products = every[:, every]  # [s, a, i] = s(a(i))
    after = order[np.searchsorted((every @ digits)[order], products @ digits)]
    return Table.of([f"s{name}" for name in names], names, after)


def dyck(kinds: int, depth: int) -> Table:
    """Brackets of so many kinds, nested at most so deep (Hewitt et al. 2020); the state is the stack. A bracket opens
    with probability 1/2 where it may, otherwise the last one closes."""
    stacks = [stack for length in range(depth + 1) for stack in itertools.product(range(kinds), repeat=length)]
    numbers = {stack: number for number, stack in enumerate(stacks)}
    after = np.full((len(stacks), 2 * kinds), -1, np.int64)
    weights = np.zeros(after.shape)
    for stack, number in numbers.items():
        if len(stack) < depth:
            after[number, :kinds] = [numbers[(*stack, kind)] for kind in range(kinds)]
            weights[number, :kinds] = 1 / kinds
        if stack:
            after[number, kinds + stack[-1]] = numbers[stack[:-1]]
            weights[number, kinds + stack[-1]] = 1
    tokens = [f"{kind}{side}" for side in "()" for kind in range(1, kinds + 1)]
    return Table.of(["[" + "".join(str(kind + 1) for kind in stack) + "]" for stack in stacks], tokens, after, weights)


PRESETS = {
    "parity": lambda: cyclic(2),
    "mod5": lambda: cyclic(5),
    "s3": lambda: permutations(3),
    "a5": lambda: permutations(5, even=True),
    "s5": lambda: permutations(5),
    "dyck": lambda: dyck(2, 3),
}
"""Tables by name; `flip-flop` is a language of its own, see `processes`."""


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
