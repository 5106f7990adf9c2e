"""The arithmetic of Countdown on arrays: whole numbers are combined two at a time by + - * / until one is left.

An equation is four integers: left operand, operator (its index in `OPERATORS`), right operand, result. Results are
between 0 and a largest number, and divisions have no remainder.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

OPERATORS = "+-*/"


class Solved(NamedTuple):
    """n problems of N numbers, each with a solution of E = N - 1 equations."""

    inputs: np.ndarray
    """(n, N) int64 in random order."""
    equations: np.ndarray
    """(n, E, 4) int64."""

    @property
    def targets(self) -> np.ndarray:
        """(n,) the last result."""
        return self.equations[:, -1, 3]

    def chosen(self, rows: np.ndarray) -> Solved:
        """The problems selected by row numbers or a mask."""
        return Solved(self.inputs[rows], self.equations[rows])


def results(left: np.ndarray, right: np.ndarray, largest: int) -> np.ndarray:
    """(4, ...): the result of each operator on two numbers >= 0; -1 where it is not allowed."""
    quotient, rest = np.divmod(left, np.maximum(right, 1))
    exact = (right > 0) & (rest == 0)
    found = np.stack([left + right, left - right, left * right, np.where(exact, quotient, -1)])
    return np.where((found >= 0) & (found <= largest), found, -1)


def moves(numbers: np.ndarray, largest: int) -> np.ndarray:
    """(m, 4): every equation with two of `numbers` (k,) as operands."""
    first, second = np.nonzero(~np.eye(len(numbers), dtype=bool))
    left, right = numbers[first], numbers[second]
    found = results(left, right, largest)
    operator, pair = np.nonzero(found >= 0)
    return np.stack([left[pair], operator, right[pair], found[operator, pair]], axis=1)


def draw(
    rng: np.random.Generator, n: int, numbers: int, *, largest_input: int, largest: int, targets: np.ndarray
) -> Solved:
    """Draws n random problems, and drops those whose solutions do not end in one of `targets`.

    `numbers` inputs are uniform over 1 .. `largest_input`. Each equation takes two of the available numbers, uniform
    over pairs, and an operator, uniform over those allowed; in the last equation, over those that reach a target. The
    left operand of - and / is the greater one; the operands of + and * are in random order.
    """
    is_target = np.zeros(largest + 1, bool)
    is_target[targets] = True
    inputs = rng.integers(1, largest_input + 1, (n, numbers))
    pool, rows = inputs.copy(), np.arange(n)  # the first `left` columns are the available numbers
    equations = np.empty((n, numbers - 1, 4), np.int64)
    for step, left in enumerate(range(numbers, 1, -1)):
        column = rng.integers(left, size=n)
        one, pool[rows, column] = pool[rows, column], pool[:, left - 1]
        column = rng.integers(left - 1, size=n)
        other = pool[rows, column]
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
        pool[rows, column] = result
    return Solved(inputs, equations).chosen(np.flatnonzero(usable.any(axis=0)))


def holds(equations: np.ndarray, largest: int) -> np.ndarray:
    """(...) bool: whether each equation (..., 4) holds; False if a part is negative, which marks what is not a number
    or an operator."""
    left, operator, right, result = np.moveaxis(equations, -1, 0)
    found = results(left, right, largest)
    made = np.take_along_axis(found, np.maximum(operator, 0)[None], axis=0)[0]
    return (equations >= 0).all(axis=-1) & (made == result)


class Pools(NamedTuple):
    """The available numbers before and after each equation."""

    numbers: np.ndarray
    """(n, E + 1, N) before the first equation and after each, ascending; -1 for used ones."""
    available: np.ndarray
    """(n, E) bool: both operands of the equation are available, as two numbers."""
    origins: np.ndarray
    """(n, E + 1) origins of the available numbers, as bits: N inputs in their order, then E results."""


def pools(inputs: np.ndarray, equations: np.ndarray) -> Pools:
    """Removes the operands of each equation (n, E, 4) from the available numbers, initially `inputs` (n, N), and adds
    its result. After an unavailable operand the values of that row are meaningless."""
    n, E = equations.shape[:2]
    numbers = np.empty((n, E + 1, inputs.shape[1]), np.int64)
    available = np.ones((n, E), bool)
    pool, rows = inputs.copy(), np.arange(n)
    origin = np.tile(1 << np.arange(inputs.shape[1]), (n, 1))
    origins = np.empty((n, E + 1), np.int64)
    numbers[:, 0], origins[:, 0] = pool, origin.sum(axis=1)
    for step in range(E):
        for operand in (equations[:, step, 0], equations[:, step, 2]):
            matches = (pool == operand[:, None]) & (operand >= 0)[:, None]
            slot = matches.argmax(axis=1)
            available[:, step] &= matches.any(axis=1)
            pool[rows, slot], origin[rows, slot] = -1, 0
        pool[rows, slot], origin[rows, slot] = equations[:, step, 3], 1 << (inputs.shape[1] + step)
        numbers[:, step + 1], origins[:, step + 1] = pool, origin.sum(axis=1)
    return Pools(np.sort(numbers, axis=2), available, origins)
