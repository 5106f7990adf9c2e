"""Printing and saving the findings of an analysis."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from statewise.durable import write_atomically
from statewise.overwriting import check_files, json_with

if TYPE_CHECKING:
    from statewise.analysis.base import Findings


def as_plain_data(findings: Findings) -> dict[str, Any]:
    """Findings as they stand in a report."""
    plain: dict[str, Any] = _plain(dataclasses.asdict(findings))
    return plain


def _plain(value: Any) -> Any:
    """Without arrays and numbers of NumPy, which JSON cannot hold."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value.tolist() if hasattr(value, "tolist") else value


def check_free(folder: Path, name: str, overwrite: bool) -> None:
    """Raises `FileExistsError` unless `save` may write into the folder: none of its files exists, or with `overwrite`
    its report is there."""
    names = [f"{name}{end}" for end in (".json", ".png", "-drawing.png", "-drawing.html")]
    check_files(folder, names, {names[0]: json_with("metrics", "panels")}, overwrite)


def save(findings: Findings, content: Mapping[str, Any], folder: Path, name: str, title: str) -> list[Path]:
    """Writes a report, `NAME.json`, and its pictures into a folder, which is created if missing."""
    folder.mkdir(parents=True, exist_ok=True)
    report = folder / f"{name}.json"
    write_atomically(report, (json.dumps(content, indent=2) + "\n").encode())
    return [report, *save_pictures(findings, folder, name, title)]


def save_pictures(findings: Findings, folder: Path, name: str, title: str) -> list[Path]:
    """`NAME.png` of panels, if there are any, with the title; of drawings `NAME-drawing.png` and, with the extra
    `report`, `NAME-drawing.html`."""
    from statewise.reporting.drawings import save_drawings, save_page
    from statewise.reporting.plots import save_panels

    written = []
    if findings.panels:
        written.append(folder / f"{name}.png")
        save_panels(findings.panels, written[-1], heading=title)
    if findings.drawings:
        written.append(folder / f"{name}-drawing.png")
        save_drawings(findings.drawings, written[-1])
        try:
            save_page(findings.drawings, folder / f"{name}-drawing.html")
            written.append(folder / f"{name}-drawing.html")
        except ValueError as error:
            if str(error) not in findings.notes:
                findings.notes.append(str(error))
    return written


def tell(title: str, findings: Findings, written: Sequence[Path]) -> None:
    """Prints metrics, the main ones first, notes and written files."""
    from statewise.reporting.tables import metrics_table

    print(title)
    order = [*findings.main, *(name for name in findings.metrics if name not in findings.main)]
    print(metrics_table({name: findings.metrics[name] for name in order}))
    print(*findings.notes, *(f"wrote {path}" for path in written), sep="\n")
