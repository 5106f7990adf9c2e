"""Noise as a function of (seed, row, position, token), so that a row's draws do not depend on its batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)

AT_ONCE = 2**13
"""Values that `NoiseAhead` computes in a call beyond the requested ones, at most: 64 KiB, which stay in a cache of the
processor."""


def gumbel(seed: int | Sequence[int], rows: np.ndarray, positions: np.ndarray, vocabulary: int) -> np.ndarray:
    """(B, V) float64 standard Gumbel noise: the token with the largest log-probability + noise is a draw
    from the distribution (Gumbel 1954). `rows`, `positions` (B,) int64. `seed`: one for all rows, or one for each."""
    seeds = (seed,) if isinstance(seed, int) else tuple(seed)
    # NumPy: its operations on a few numbers cost less than PyTorch's, and uint64 shifts without a sign.
    key = _row_keys(seeds, np.asarray(rows, np.int64).tobytes())
    key = _mixed(key ^ _mixed(np.asarray(positions, np.int64).view(np.uint64)))
    bits = _scrambled(key[:, None] + _steps(vocabulary))
    bits >>= np.uint64(11)
    uniform = bits.astype(np.float64)
    uniform += 0.5
    uniform *= 2.0**-53
    for _ in range(2):
        np.negative(np.log(uniform, out=uniform), out=uniform)
    return uniform


class NoiseAhead:
    """Noise of rows that are decoded together, at the positions that follow each other in each. A call costs as much as
    several thousand values, so those of further positions are computed in advance."""

    def __init__(self, make: Callable[[np.ndarray, np.ndarray, int], np.ndarray], vocabulary: int) -> None:
        """`make`: from B rows, positions and V to (B, V), as `gumbel` with a seed."""
        self.make, self.vocabulary = make, vocabulary
        self._rows: list[int] = []
        self._first: list[int] = []
        self._known = np.empty((0, 0, vocabulary))  # (B, n, V), from the first positions on

    def at(self, rows: list[int], first: list[int], count: int, left: int) -> np.ndarray:
        """(B, count, V): the noise of `rows` at `count` positions, of row b from `first[b]` on. In all, no more than
        `left` positions of a row will be needed from there on."""
        known = self._known[:, :0]
        if rows == self._rows:
            passed = [now - before for now, before in zip(first, self._first)]
            if passed.count(passed[0]) == len(passed):
                known = self._known[:, passed[0] :] if passed[0] >= 0 else known
            elif min(passed) >= 0 and max(passed) + count <= self._known.shape[1]:
                columns = np.array(passed)[:, None] + np.arange(count)
                return self._known[np.arange(len(rows))[:, None], columns]
        if known.shape[1] < count:
            self._rows, self._first = list(rows), list(first)
            self._known = known = self._further(known, max(count, min(left, AT_ONCE // (len(rows) * self.vocabulary))))
        return known[:, :count]

    def _further(self, known: np.ndarray, count: int) -> np.ndarray:
        """(B, count, V): `known` (B, n, V) from the first positions on, and what follows."""
        B, n = len(self._rows), known.shape[1]
        positions = np.array(self._first, np.int64)[:, None] + np.arange(n, count)
        made = self.make(np.array(self._rows, np.int64).repeat(count - n), positions.reshape(-1), self.vocabulary)
        new = made.reshape(B, count - n, self.vocabulary)
        return np.concatenate([known, new], 1) if n else new


@lru_cache(maxsize=64)
def _row_keys(seeds: tuple[int, ...], rows: bytes) -> np.ndarray:
    """(B,): the keys of seeds and rows, given as 8 bytes each, which are the same at every position."""
    key = _mixed(np.array([one % 2**64 for one in seeds], np.uint64))
    return _mixed(key ^ _mixed(np.frombuffer(rows, np.uint64)))


@lru_cache(maxsize=4)
def _steps(vocabulary: int) -> np.ndarray:
    """(V,): the terms that `_mixed` adds to the counters of a row, including its own step."""
    return np.arange(2, vocabulary + 2, dtype=np.uint64) * _GOLDEN


def _mixed(x: np.ndarray) -> np.ndarray:
    """SplitMix64 (Steele, Lea and Flood 2014): a step of its counter and its finaliser; uint64 wraps."""
    return _scrambled(x + _GOLDEN)


def _scrambled(x: np.ndarray) -> np.ndarray:
    """The finaliser, in place."""
    shifted = x >> np.uint64(30)
    x ^= shifted
    x *= np.uint64(0xBF58476D1CE4E5B9)
    np.right_shift(x, np.uint64(27), out=shifted)
    x ^= shifted
    x *= np.uint64(0x94D049BB133111EB)
    np.right_shift(x, np.uint64(31), out=shifted)
    x ^= shifted
    return x
