"""Tables as text that lines up, and as Markdown."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

Rows = Sequence[Sequence[str]]


def number(value: float | int | None) -> str:
    """Four decimals, none for whole numbers of things; scientific where that would show nothing; a dash for nothing."""
    if isinstance(value, int):
        return f"{value:,}"
    if value is None or value != value:
        return "-"
    if value != 0 and (abs(value) < 1e-3 or abs(value) >= 1e6):
        return f"{value:.2e}"
    return f"{value:.4f}"


def text_table(header: Sequence[str], rows: Rows, left: Collection[int] = (0,)) -> str:
    """Columns padded to their widest cell; those numbered in `left` to the left, the others to the right."""
    widths = [max(len(row[place]) for row in (header, *rows)) for place in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        padded = (cell.ljust(width) if place in left else cell.rjust(width)
                  for place, (cell, width) in enumerate(zip(cells, widths)))  # fmt: skip
        return "  ".join(padded).rstrip()

    return "\n".join([line(header), "  ".join("-" * width for width in widths), *(line(row) for row in rows)])


def markdown_table(header: Sequence[str], rows: Rows) -> str:
    """The same as a Markdown table."""
    lines = [header, ["---", *(["---:"] * (len(header) - 1))], *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def metrics_table(metrics: Mapping[str, float | int]) -> str:
    """A metric a line."""
    return text_table(["metric", "value"], [[name, number(value)] for name, value in metrics.items()])
