"""Noise as a function of (seed, row, position, token), so that a row's draws do not depend on its batch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def gumbel(seed: int | Sequence[int], rows: np.ndarray, positions: np.ndarray, vocabulary: int) -> Tensor:
    """(B, V) float64 standard Gumbel noise, on the host: the token with the largest log-probability + noise is a draw
    from the distribution (Gumbel 1954). `rows`, `positions` (B,) int64. `seed`: one for all rows, or one for each."""
    seeds = (seed,) if isinstance(seed, int) else tuple(seed)
    # NumPy: its operations on a few numbers cost less than PyTorch's, and uint64 shifts without a sign.
    key = _row_keys(seeds, np.asarray(rows, np.int64).tobytes())
    key = _mixed(key ^ _mixed(np.asarray(positions, np.int64).view(np.uint64)))
    uniform = (_mixed(key[:, None] + _steps(vocabulary)) >> np.uint64(11)).astype(np.float64)
    uniform += 0.5
    uniform *= 2.0**-53
    for _ in range(2):
        np.negative(np.log(uniform, out=uniform), out=uniform)
    return torch.from_numpy(uniform)


@lru_cache(maxsize=64)
def _row_keys(seeds: tuple[int, ...], rows: bytes) -> np.ndarray:
    """(B,): what seeds and rows say, of rows in 8 bytes each. The same at every position."""
    key = _mixed(np.array([one % 2**64 for one in seeds], np.uint64))
    return _mixed(key ^ _mixed(np.frombuffer(rows, np.uint64)))


@lru_cache(maxsize=4)
def _steps(vocabulary: int) -> np.ndarray:
    """(V,): multiples of the counter's step."""
    return np.arange(1, vocabulary + 1, dtype=np.uint64) * _GOLDEN


def _mixed(x: np.ndarray) -> np.ndarray:
    """SplitMix64 (Steele, Lea and Flood 2014): a step of its counter and its finaliser; uint64 wraps."""
    x = x + _GOLDEN
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x
