"""The report of a comparison: a directory with a web page, tables and plots."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from statewise.reporting.comparison import Comparison
from statewise.reporting.drawings import drawings_png
from statewise.reporting.html import missing, page
from statewise.reporting.panels import analysis_panels, drawings, set_panels, training_panels
from statewise.reporting.plots import panels_png
from statewise.reporting.sweeps import sweep_panels
from statewise.runtime import overwriting
from statewise.runtime.durable import write_all

FILES = ("report.json", "table.md", "curves.png", "sweep.png", "analyses.png", "drawings.png", "report.html")
"""All files of a report, as patterns of `statewise.runtime.overwriting`."""
SIGNS = {"report.json": overwriting.json_with("headline", "differences", "groups")}
"""How a report is recognised."""


def claimed(folder: Path, overwrite: bool) -> AbstractContextManager[Path]:
    """A claim on a report in `folder` (`statewise.runtime.overwriting`), and the place for its files, which are one
    unit. Raises `FileExistsError` unless `folder` is empty or missing, or with `overwrite` holds only a report."""

    def check() -> None:
        overwriting.check_folder(folder, FILES, SIGNS, "report", overwrite)

    return overwriting.claimed_files(folder, FILES, check, overwrite)


def write_report(comparison: Comparison, folder: Path, overwrite: bool = False) -> list[Path]:
    """Writes the report into `folder` and returns the paths; report.html is last, and left out where
    `statewise.reporting.html.missing` says why.

    An earlier report stays whole if this one cannot be written. Raises what `claimed` raises.
    """
    with claimed(folder, overwrite) as scratch:
        groups = comparison.looks()
        analysed = [*set_panels(comparison), *analysis_panels(comparison)]
        drawn, swept = drawings(comparison), sweep_panels(comparison)
        content = {
            "report.json": comparison.as_json().encode(),
            "table.md": comparison.as_markdown().encode(),
            "curves.png": panels_png(training_panels(comparison), groups),
            "sweep.png": panels_png(swept) if swept else None,
            "analyses.png": panels_png(analysed, groups) if analysed else None,
            "drawings.png": drawings_png(drawn) if drawn else None,
            "report.html": None if missing() else page(comparison).encode(),
        }
        found = {name: made for name, made in content.items() if made is not None}
        write_all({scratch / name: made for name, made in found.items()})
    return [folder / name for name in found]
