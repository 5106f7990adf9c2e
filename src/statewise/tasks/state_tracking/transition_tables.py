"""Finite automata as tables: presets of the state-tracking literature, and files of your own.

A table file is JSON: `{"states": ["even", "odd"], "tokens": ["0", "1"], "next": [["even", "odd"], ["odd", "even"]]}`.
Row s of `next` has, for each token, the name of the state after it, or null where the token is illegal. Optional:
`start`, the name of the first state (default: the first of the list), and `weights`, numbers in the shape of `next` in
proportion to which legal tokens are drawn (default: all alike).
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import Any

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
    found = parse_json(content, SHAPE, where)
    check_keys(found, KEYS, where)
    try:
        return _checked(found)
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
        found = row[token]
        if found is not None and found not in numbers:
            raise ValueError(
                f"next: after state {states[state]} and token {name} comes {short(found)}, which is not a state"
            )
        after[state, token] = -1 if found is None else numbers[found]
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
