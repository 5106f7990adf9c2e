"""The report of a comparison: a directory with a web page, tables and plots."""

from __future__ import annotations

from pathlib import Path

from statewise import overwriting
from statewise.durable import write_atomically
from statewise.reporting.comparison import Comparison
from statewise.reporting.drawings import save_drawings
from statewise.reporting.html import page
from statewise.reporting.panels import analysis_panels, drawings, set_panels, training_panels
from statewise.reporting.plots import save_panels
from statewise.reporting.sweeps import sweep_panels

FILES = ("table.md", "report.json", "curves.png", "sweep.png", "analyses.png", "drawings.png", "report.html")
"""All files of a report, as patterns of `statewise.overwriting`."""
SIGNS = {"report.json": overwriting.json_with("headline", "differences", "groups")}
"""How a report is recognised."""


def write_report(comparison: Comparison, folder: Path, overwrite: bool = False) -> list[Path]:
    """Writes the report into `folder` and returns the paths; report.html is last.

    Raises `FileExistsError` unless `folder` is empty or missing, or with `overwrite` holds only a report.
    """
    overwriting.check_folder(folder, FILES, SIGNS, "report", overwrite)
    labels = [group.label for group in comparison.groups]
    whole_page = page(comparison).encode()  # what it lacks is said before anything is written
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "report.json", comparison.as_json().encode())  # first: by it a report is recognised
    write_atomically(folder / "table.md", comparison.as_markdown().encode())
    save_panels(training_panels(comparison), folder / "curves.png", labels)
    without = set()
    analysed = [*set_panels(comparison), *analysis_panels(comparison)]
    drawn, swept = drawings(comparison), sweep_panels(comparison)
    if drawn:
        save_drawings(drawn, folder / "drawings.png")
    else:
        without.add("drawings.png")
    if swept:
        save_panels(swept, folder / "sweep.png")
    else:
        without.add("sweep.png")
    if analysed:
        save_panels(analysed, folder / "analyses.png", labels)
    else:
        without.add("analyses.png")
    write_atomically(folder / "report.html", whole_page)
    overwriting.delete(folder, without)  # left by an earlier report
    return [folder / name for name in FILES if name not in without]
