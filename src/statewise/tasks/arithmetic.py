"""Whole numbers that are combined two at a time by + - * / until one is left: what Countdown is about, as arrays.

An equation is four integers: left operand, operator (its place in `OPERATORS`), right operand, result. No result is
negative, none is above a largest one, and a division leaves no rest.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

OPERATORS = "+-*/"


class Solved(NamedTuple):
    """n problems of N numbers, each with a solution of E = N - 1 equations."""

    inputs: np.ndarray
    """(n, N) int64 in no order."""
    equations: np.ndarray
    """(n, E, 4) int64."""

    @property
    def targets(self) -> np.ndarray:
        """(n,) the last result."""
        return self.equations[:, -1, 3]

    def chosen(self, rows: np.ndarray) -> Solved:
        """Those of the given numbers, or those marked."""
        return Solved(self.inputs[rows], self.equations[rows])


def results(left: np.ndarray, right: np.ndarray, largest: int) -> np.ndarray:
    """(4, ...): what each operator makes of two numbers >= 0; -1 where it may not be used."""
    quotient, rest = np.divmod(left, np.maximum(right, 1))
    exact = (right > 0) & (rest == 0)
    found = np.stack([left + right, left - right, left * right, np.where(exact, quotient, -1)])
    return np.where((found >= 0) & (found <= largest), found, -1)


def moves(numbers: np.ndarray, largest: int) -> np.ndarray:
    """(m, 4): every equation whose operands are two of `numbers` (k,)."""
    first, second = np.nonzero(~np.eye(len(numbers), dtype=bool))
    left, right = numbers[first], numbers[second]
    found = results(left, right, largest)
    operator, pair = np.nonzero(found >= 0)
    return np.stack([left[pair], operator, right[pair], found[operator, pair]], axis=1)


def draw(
    rng: np.random.Generator, n: int, numbers: int, *, largest_input: int, largest: int, targets: np.ndarray
) -> Solved:
    """n random problems, but those whose solutions do not end in one of `targets`.

    `numbers` inputs are uniform over 1 .. `largest_input`. An equation takes two of the numbers that are there, all
    pairs alike, and an operator, all alike that may be used on them; the last equation, of the operators that lead to
    a target. The greater number is the left one where the order matters, and either where it does not.
    """
    is_target = np.zeros(largest + 1, bool)
    is_target[targets] = True
    inputs = rng.integers(1, largest_input + 1, (n, numbers))
    pool, rows = inputs.copy(), np.arange(n)  # the first `left` columns are the numbers that are there
    equations = np.empty((n, numbers - 1, 4), np.int64)
    for step, left in enumerate(range(numbers, 1, -1)):
        place = rng.integers(left, size=n)
        one, pool[rows, place] = pool[rows, place], pool[:, left - 1]
        place = rng.integers(left - 1, size=n)
        other = pool[rows, place]
        greater, smaller = np.maximum(one, other), np.minimum(one, other)
        found = results(greater, smaller, largest)
        usable = found >= 0
        if left == 2:
            usable &= is_target[found]
        operator = np.where(usable, rng.random((4, n), dtype=np.float32), -1).argmax(axis=0)
        commutes = operator % 2 == 0  # + and *
        result = found[operator, rows]
        equations[:, step, 0] = np.where(commutes, one, greater)
        equations[:, step, 1] = operator
        equations[:, step, 2] = np.where(commutes, other, smaller)
        equations[:, step, 3] = result
        pool[rows, place] = result
    return Solved(inputs, equations).chosen(np.flatnonzero(usable.any(axis=0)))


def holds(equations: np.ndarray, largest: int) -> np.ndarray:
    """(...): whether the right side of each equation (..., 4) is what the left side makes; no if a part is negative,
    which stands for what is no number or no operator."""
    left, operator, right, result = np.moveaxis(equations, -1, 0)
    found = results(left, right, largest)
    made = np.take_along_axis(found, np.maximum(operator, 0)[None], axis=0)[0]
    return (equations >= 0).all(axis=-1) & (made == result)


class Pools(NamedTuple):
    """What is there to be combined while equations are gone through."""

    numbers: np.ndarray
    """(n, E + 1, N) before the first equation and after each, ascending; -1 in place of what is used up."""
    available: np.ndarray
    """(n, E) bool: both operands of the equation are there, as two numbers."""
    origins: np.ndarray
    """(n, E + 1) where the numbers that are there come from, as bits: N inputs in their order, then E results."""


def pools(inputs: np.ndarray, equations: np.ndarray) -> Pools:
    """Takes the operands of each equation (n, E, 4) away from the numbers that are there, `inputs` (n, N) at first, and
    adds its result. Where operands are not there, what follows has no meaning."""
    n, E = equations.shape[:2]
    numbers = np.empty((n, E + 1, inputs.shape[1]), np.int64)
    available = np.ones((n, E), bool)
    pool, rows = inputs.copy(), np.arange(n)
    origin = np.tile(1 << np.arange(inputs.shape[1]), (n, 1))
    origins = np.empty((n, E + 1), np.int64)
    numbers[:, 0], origins[:, 0] = pool, origin.sum(axis=1)
    for step in range(E):
        for operand in (equations[:, step, 0], equations[:, step, 2]):
            there = (pool == operand[:, None]) & (operand >= 0)[:, None]
            place = there.argmax(axis=1)
            available[:, step] &= there.any(axis=1)
            pool[rows, place], origin[rows, place] = -1, 0
        pool[rows, place], origin[rows, place] = equations[:, step, 3], 1 << (inputs.shape[1] + step)
        numbers[:, step + 1], origins[:, step + 1] = pool, origin.sum(axis=1)
    return Pools(np.sort(numbers, axis=2), available, origins)
