"""Lists of names as text: line breaks stand between names only, though names hold spaces."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from statewise.reporting.tables import narrowed, widened

PAGE = 100
"""Width of text in characters, unless another is asked for."""


def wrapped(before: str, names: Sequence[str], width: int, indent: int = 0) -> list[str]:
    """`before` and the names, separated by commas, as lines of at most `width` characters if no name is longer; all but
    the first are indented."""
    blank = "\N{NO-BREAK SPACE}"
    text = before.replace(" ", blank) + ", ".join(name.replace(" ", blank) for name in names)
    lines = textwrap.wrap(
        widened(text),
        max(width, indent + 1),
        break_long_words=False,
        break_on_hyphens=False,
        subsequent_indent=" " * indent,
    )
    return [narrowed(line).replace(blank, " ") for line in lines]


def literal_lines(name: str, parts: Sequence[tuple[str, Sequence[str]]], width: int) -> list[str]:
    """An action's name, and below it a line each for what it requires, adds and deletes."""
    return [
        name,
        *(
            line
            for title, names in parts
            for line in wrapped(f"  {title}  ", list(names) or ["-"], width, len(title) + 4)
        ),
    ]
