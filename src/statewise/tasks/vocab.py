"""Symbols, their token ids, and how they are written as text.

`TextFormat` describes text by regular expressions, so that tokenizers of other libraries can do the same. They use only
what Python's `re` and the Oniguruma library of the `tokenizers` package understand alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True)
class TextFormat:
    """The text of a sequence of symbols, for text that the task accepts; text that it refuses may be read
    differently."""

    symbol: str = r"\S+"
    """Pattern of one symbol; text between its matches is skipped."""
    separator: str = " "
    """Text between two symbols."""
    cut_at: str = ""
    """Literal text at which a text is cut before symbols are looked for; empty: it is not cut."""
    normalise: tuple[tuple[str, str], ...] = ()
    """Patterns in a given text with what replaces them, literally and in order, before symbols are looked for."""
    tidy: tuple[tuple[str, str], ...] = ()
    """As `normalise`, for a text of symbols with separators."""


SPACED = TextFormat()
"""Symbols without white space, separated by it."""


def separated_by(separator: str | None) -> TextFormat:
    """Symbols between separators, without white space at their ends; None: `SPACED`; empty: every character is a
    symbol."""
    if separator is None:
        return SPACED
    if not separator:
        return TextFormat(r"[\s\S]", "")
    return TextFormat(r"\S(?:[\s\S]*\S)?", separator, separator)
