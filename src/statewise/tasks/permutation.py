"""Random orders of row numbers.

The order of a very large set is computed by formula, so that it takes no memory: a Feistel network (Luby and Rackoff
1988) on the numbers below the next power of two, applied again to results that are not row numbers (cycle walking:
Black and Rogaway 2002, "Ciphers with arbitrary finite domains").
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

LISTED = 2**22
"""Most rows whose order is held as an array, of 32 MB."""
ROUNDS = 8


def shuffled(rows: int, seed: Sequence[int]) -> np.ndarray | Permutation:
    """A random order of the numbers below `rows`, a function of the seed alone: `order[places]` are the numbers at the
    places (m,) int64."""
    return np.random.default_rng(seed).permutation(rows) if rows <= LISTED else Permutation(rows, seed)


class Permutation:
    """A random permutation of the numbers below `size`, at most 2^62, by formula."""

    def __init__(self, size: int, seed: Sequence[int]) -> None:
        if not 0 <= size <= 2**62:
            raise ValueError(f"a permutation has 0 to 2^62 numbers, not {size}")
        self.size = size
        bits = max(0, size - 1).bit_length()
        self._low = np.uint64(bits // 2)
        self._masks = np.uint64(2 ** (bits - bits // 2) - 1), np.uint64(2 ** (bits // 2) - 1)
        self._keys = np.random.default_rng(seed).integers(2**64, size=ROUNDS, dtype=np.uint64)

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, places: np.ndarray) -> np.ndarray:
        """(m,) int64: the numbers at the places (m,) int64. Raises `IndexError` for places that do not exist."""
        if len(places) and not (places.min() >= 0 and places.max() < self.size):
            raise IndexError(f"places of a permutation of {self.size} are 0 to {self.size - 1}")
        numbers = self._network(places.astype(np.uint64))
        while len(beyond := np.flatnonzero(numbers >= self.size)):
            numbers[beyond] = self._network(numbers[beyond])
        return numbers.astype(np.int64)

    def _network(self, numbers: np.ndarray) -> np.ndarray:
        """Permutes the numbers of as many bits as `size` - 1 has. Each half is changed by a function of the other."""
        halves = [numbers >> self._low, numbers & self._masks[1]]
        for turn, key in enumerate(self._keys):
            changed = turn % 2
            halves[changed] = halves[changed] ^ (_mixed(halves[1 - changed] ^ key) & self._masks[changed])
        return (halves[0] << self._low) | halves[1]


def _mixed(words: np.ndarray) -> np.ndarray:
    """The finalizer of splitmix64: every bit of a result depends on every bit of the word."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
