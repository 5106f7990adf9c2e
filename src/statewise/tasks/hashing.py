"""Numbers that rows of tokens have for good: what is held out is chosen by them."""

from __future__ import annotations

import numpy as np


def hash_rows(rows: np.ndarray) -> np.ndarray:
    """(n,) uint64 of the rows (n, m) of integers >= 0 (Fowler-Noll-Vo, then mixed); the higher bits are the better."""
    value = np.full(len(rows), 0xCBF29CE484222325, np.uint64)
    for column in rows.T.astype(np.uint64):
        value = (value ^ column) * np.uint64(0x100000001B3)
    value ^= value >> np.uint64(29)
    return value * np.uint64(0xBF58476D1CE4E5B9)
