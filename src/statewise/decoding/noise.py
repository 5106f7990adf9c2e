"""Noise as a function of (seed, row, position, token), so that a row's draws do not depend on its batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15 - 2**64


def gumbel(seed: int | Sequence[int], rows: np.ndarray, positions: np.ndarray, vocabulary: int) -> Tensor:
    """(B, V) float64 standard Gumbel noise, on the host: the token with the largest log-probability + noise is a draw
    from the distribution (Gumbel 1954). `rows`, `positions` (B,) int64. `seed`: one for all rows, or one for each."""
    key = _mixed(torch.tensor(_signed(seed) if isinstance(seed, int) else [_signed(one) for one in seed]))
    for part in (rows, positions):
        key = _mixed(key ^ _mixed(torch.from_numpy(np.asarray(part, np.int64))))
    bits = _mixed(key[:, None] + torch.arange(1, vocabulary + 1) * _GOLDEN)
    uniform = (_shifted(bits, 11).double() + 0.5) * 2.0**-53
    return -(-uniform.log()).log_()


def _mixed(x: Tensor) -> Tensor:
    """SplitMix64 (Steele, Lea and Flood 2014): a step of its counter and its finaliser; int64 wraps as uint64."""
    x = x + _GOLDEN
    x = (x ^ _shifted(x, 30)) * (0xBF58476D1CE4E5B9 - 2**64)
    x = (x ^ _shifted(x, 27)) * (0x94D049BB133111EB - 2**64)
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, by: int) -> Tensor:
    """A logical right shift of 64 bits, which torch treats as signed."""
    return (x >> by) & ((1 << (64 - by)) - 1)


def _signed(number: int) -> int:
    """The number modulo 2^64, as a signed 64-bit integer."""
    return (number + 2**63) % 2**64 - 2**63
