"""Symbols and their token ids."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from statewise.runtime.messages import cut


class Vocab:
    """A fixed list of symbols; a symbol's token id is its index in the list."""

    def __init__(self, symbols: Iterable[str]) -> None:
        self.symbols = list(symbols)
        self.ids = {symbol: token for token, symbol in enumerate(self.symbols)}
        if len(self.ids) != len(self.symbols):
            raise ValueError("a vocabulary must not contain a symbol twice")

    def __len__(self) -> int:
        return len(self.symbols)

    def encode(self, symbols: Sequence[str]) -> np.ndarray:
        """(m,) int64 ids. Raises `ValueError` naming the first unknown symbol."""
        try:
            return np.fromiter(map(self.ids.__getitem__, symbols), np.int64, len(symbols))
        except KeyError as error:
            unknown = cut(repr(error.args[0]))
            some = ", ".join(cut(repr(symbol), 20) for symbol in self.symbols[:8]) + ", ..." * (len(self) > 8)
            raise ValueError(f"unknown symbol {unknown}: it is not in the vocabulary of {len(self)} ({some})") from None

    def decode(self, tokens: Iterable[int]) -> list[str]:
        """Symbols of token ids."""
        return [self.symbols[token] for token in tokens]
