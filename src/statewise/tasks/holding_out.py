"""Held-out sets of tasks that draw fresh examples: a share of all possible examples, chosen by a hash, which training
skips."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

ONE_IN = 16
"""One in `ONE_IN` possible examples is held out."""
START, PRIME = 0xCBF29CE484222325, np.uint64(0x100000001B3)
"""Constants of the Fowler-Noll-Vo hash."""


def chosen(hashes: np.ndarray) -> np.ndarray:
    """(n,) bool: which of the examples with these hashes (n,) uint64 are held out. The upper 32 bits decide."""
    return (hashes >> np.uint64(32)) % np.uint64(ONE_IN) == 0


def hash_rows(rows: np.ndarray) -> np.ndarray:
    """(n,) uint64 hashes of the rows (n, m) of integers >= 0 (Fowler-Noll-Vo, then mixed); use their upper bits."""
    value = np.full(len(rows), START, np.uint64)
    for column in rows.T.astype(np.uint64):
        value = (value ^ column) * PRIME
    return _mixed(value)


def hash_prefixes(rows: np.ndarray) -> np.ndarray:
    """(n, m) uint64: `hash_rows` of the first 1, 2, ..., m numbers of each row (n, m)."""
    values, value = np.empty(rows.shape, np.uint64), np.full(len(rows), START, np.uint64)
    for place, column in enumerate(rows.T.astype(np.uint64)):
        value = (value ^ column) * PRIME
        values[:, place] = value
    return _mixed(values)


def _mixed(values: np.ndarray) -> np.ndarray:
    values ^= values >> np.uint64(29)
    return values * np.uint64(0xBF58476D1CE4E5B9)


def collect(
    draw: Callable[[int], np.ndarray], n: int, *, width: int, different: bool = False, patience: int = 100
) -> np.ndarray:
    """(n, width) rows from repeated calls of `draw(missing)`; if `different`, without duplicates. Fewer than n if
    `patience` calls in a row yield nothing new."""
    rows, fruitless = np.empty((0, width), np.int64), 0
    while len(rows) < n and fruitless < patience:
        before = len(rows)
        rows = np.concatenate([rows, draw(n - before)])
        if different:
            rows = rows[np.sort(np.unique(rows, axis=0, return_index=True)[1])]
        fruitless = 0 if len(rows) > before else fruitless + 1
    return rows[:n]


def numbers_of(option: str, value: str) -> list[int]:
    """The value of an option of `held_out_by`, such as `512,1024`, as numbers in ascending order. Raises `ValueError`
    for anything but different numbers."""
    parts = [part.strip() for part in value.split(",")]
    numbers = [int(part) for part in parts if part.isascii() and part.isdigit() and len(part) < 10]
    if len({*numbers}) < len(parts):
        raise ValueError(f"`{option}` {value}: give different numbers with commas, such as 512,1024,2048")
    return sorted(numbers)
