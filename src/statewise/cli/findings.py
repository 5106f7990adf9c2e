"""What an analysis found, shown and kept: the same for every verb that has findings."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from statewise.analysis.base import Findings


def as_plain_data(findings: Findings) -> dict[str, Any]:
    """What goes into a report."""
    return dataclasses.asdict(findings)


def save_pictures(findings: Findings, folder: Path, name: str) -> list[Path]:
    """`NAME.png` of the panels; of drawings `NAME-drawing.png` and, with the extra `report`, `NAME-drawing.html`."""
    from statewise.reporting.drawings import save_drawings, save_page
    from statewise.reporting.plots import Axes, Line, save_lines

    plots = [
        Axes(panel.x_title, panel.y_title, [Line(c.label, c.x, c.y, c.role) for c in panel.curves], panel.shares)
        for panel in findings.panels
    ]
    written = [folder / f"{name}.png"]
    save_lines(plots, written[0])
    if findings.drawings:
        drawings = as_plain_data(findings)["drawings"]
        written.append(folder / f"{name}-drawing.png")
        save_drawings(drawings, written[-1])
        try:
            save_page(drawings, folder / f"{name}-drawing.html")
            written.append(folder / f"{name}-drawing.html")
        except ValueError as error:
            findings.notes.append(str(error))
    return written


def tell(title: str, findings: Findings, written: Sequence[Path]) -> None:
    """Prints the metrics, the notes, and what was written."""
    from statewise.reporting.tables import metrics_table

    print(title)
    print(metrics_table(findings.metrics))
    print(*findings.notes, *(f"wrote {path}" for path in written), sep="\n")
