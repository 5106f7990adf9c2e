"""How a task writes its symbols as text, by regular expressions, so that tokenizers of other libraries can do the same.

Only expressions that Python's `re` and the Oniguruma library of the `tokenizers` package understand alike are used.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TextFormat:
    """The text of a sequence of symbols, for text that the task accepts; what it refuses may be read differently."""

    symbol: str = r"\S+"
    """Pattern of one symbol; text between its matches is skipped."""
    separator: str = " "
    """What stands between two symbols."""
    cut_at: str = ""
    """Literal text at which a text is cut before symbols are looked for; empty: it is not cut."""
    normalise: tuple[tuple[str, str], ...] = ()
    """Patterns in a given text with what replaces them, literally and in order, before symbols are looked for."""
    tidy: tuple[tuple[str, str], ...] = ()
    """The same for a text of symbols with separators."""


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
