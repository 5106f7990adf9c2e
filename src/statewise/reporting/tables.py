"""Tables as aligned text and as Markdown."""

from __future__ import annotations

import html
import math
import textwrap
from collections.abc import Collection, Mapping, Sequence
from unicodedata import east_asian_width

Rows = Sequence[Sequence[str]]

_REST = "\ufdd0"
"""Placeholder for the second column of a wide character while a table is laid out: a code point that no text has."""


def widened(text: str) -> str:
    """The text with one character for each column in a terminal, for `ljust`, `textwrap` and `len`; `narrowed` undoes
    it. Accents without a column of their own are counted."""
    if text.isascii():
        return text
    return "".join(character + _REST * (east_asian_width(character) in "WF") for character in text)


def narrowed(text: str) -> str:
    """Undoes `widened`."""
    return text.replace(_REST, "")


def number(value: float | int | None) -> str:
    """Four decimals, none for integers; scientific notation for very small and large values; a dash for None or NaN."""
    if isinstance(value, int):
        return f"{value:,}"
    if value is None or value != value:
        return "-"
    if value != 0 and (abs(value) < 1e-3 or abs(value) >= 1e6):
        return f"{value:.2e}"
    return f"{value:.4f}"


def spread(mean: float, interval: tuple[float, float] | None) -> str:
    """A mean with half the width of its interval, in as many decimals, if it has one; a dash for NaN."""
    if interval is None or not all(map(math.isfinite, (mean, *interval))):
        return number(mean)
    half, shown = (interval[1] - interval[0]) / 2, number(mean)
    if "e" in shown or half >= 1e6:
        return f"{shown} ±{number(half)}"
    return f"{shown} ±{half:.4f}" if half >= 5e-5 or half == 0 else f"{shown} ±<0.0001"


def text_table(header: Sequence[str], rows: Rows, left: Collection[int] | None = None) -> str:
    """Aligned columns: those numbered in `left` to the left, the others to the right. None: columns of numbers and
    dashes to the right, the others and the first to the left."""
    left = _of_text(header, rows) if left is None else left
    header, *rows = ([widened(cell) for cell in row] for row in (header, *rows))
    widths = [max(len(row[place]) for row in (header, *rows)) for place in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        padded = (
            cell.ljust(width) if place in left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(cells, widths))
        )
        return narrowed("  ".join(padded).rstrip())

    return "\n".join([line(header), "  ".join("-" * width for width in widths), *(line(row) for row in rows)])


def fitted_tables(header: Sequence[str], rows: Rows, width: int, keys: int = 1) -> str:
    """`text_table`, split into as few tables as fit into `width` characters, each with the first `keys` columns.

    Rows that hold nothing but dashes in a part are left out of it, and parts without any row. Keys that fill more than
    half of `width`, and single columns that do not fit beside them, overflow.
    """
    sizes = [2 + max(len(widened(row[column])) for row in (header, *rows)) for column in range(len(header))]
    room = width + 2 - min(sum(sizes[:keys]), width // 2)
    parts: list[list[int]] = []
    left = 0
    for column in range(keys, len(header)):
        if not parts or sizes[column] > left:
            parts.append([])
            left = room
        parts[-1].append(column)
        left -= sizes[column]
    tables = []
    for part in parts:
        columns = [*range(keys), *part]
        kept = [[row[column] for column in columns] for row in rows if any(row[column] != "-" for column in part)]
        if kept or not rows:
            tables.append(text_table([header[column] for column in columns], kept))
    return "\n\n".join(tables)


def with_texts(header: Sequence[str], rows: Rows, width: int | None) -> str:
    """`text_table` whose last column holds long texts, to the left; those go on in further lines where the table has
    at most `width` characters, though a text has 20 at least. None: each in one line."""
    *keys, title = header
    wrapped = [list(row) for row in rows]
    if width is not None:
        key_width = sum(2 + max(len(widened(row[place])) for row in (header, *rows)) for place in range(len(keys)))
        wrapped = []
        for *before, text in rows:
            lines = textwrap.wrap(widened(text), max(width - key_width, 20), break_on_hyphens=False)
            first, *more = map(narrowed, lines or [""])
            wrapped += [[*before, first], *([*[""] * len(keys), line] for line in more)]
    return text_table([*keys, title], wrapped, left=(len(keys),))


def fitted_notes(notes: Sequence[str], width: int) -> str:
    """Sentences below a table, each on lines of its own of at most `width` characters (20 at least); all but the first
    of them are indented. Longer words, such as paths, overflow."""
    filled = (
        textwrap.fill(
            widened(note), max(width, 20), subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
        )
        for note in notes
    )
    return narrowed("\n".join(filled))


def markdown_table(header: Sequence[str], rows: Rows) -> str:
    """A Markdown table: columns of numbers and dashes to the right, the others and the first to the left."""
    text = _of_text(header, rows)
    lines = [header, ["---" if column in text else "---:" for column in range(len(header))], *rows]
    return "\n".join("| " + " | ".join(markdown_text(cell) for cell in line) + " |" for line in lines)


def _of_text(header: Sequence[str], rows: Rows) -> list[int]:
    """The first column, those that hold something else than numbers and dashes, and those that hold nothing."""
    return [
        column
        for column in range(len(header))
        if column == 0
        or any(row[column][:1] not in "0123456789+-±<" for row in rows)
        or not any(row[column] for row in rows)
    ]


def markdown_text(text: str) -> str:
    """Text on one line with cell separators and HTML escaped."""
    return " ".join(html.escape(text, quote=False).replace("|", "\\|").splitlines())


def metrics_table(metrics: Mapping[str, float | int]) -> str:
    """One metric per line."""
    return text_table(["metric", "value"], [[name, number(value)] for name, value in metrics.items()])


def baselines_table(
    baselines: Mapping[str, Mapping[str, float]], model: Mapping[str, float | int] | None = None
) -> str:
    """One baseline per line, below the model if its metrics are given; a dash where a baseline lacks a metric."""
    names = list(dict.fromkeys(name for metrics in baselines.values() for name in metrics))
    lines = baselines if model is None else {"this model": model, **baselines}
    return text_table(
        ["", *names], [[line, *(number(metrics.get(name)) for name in names)] for line, metrics in lines.items()]
    )
