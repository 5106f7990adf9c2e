"""Printing and saving the findings of an analysis."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from statewise.runtime.durable import write_atomically
from statewise.runtime.json_files import json_bytes
from statewise.runtime.messages import say
from statewise.runtime.overwriting import check_files, claimed_files, json_with

if TYPE_CHECKING:
    from statewise.analysis.base import Findings

PICTURES = (".png", "-drawing.png", "-drawing.html")
"""Ends of their names."""
NUMBER = re.compile(r"\d+(?:\.\d+)?")


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


def claimed(folder: Path, name: str, overwrite: bool) -> AbstractContextManager[Path]:
    """A claim on a report and its pictures, which are one unit, in `folder` (`statewise.runtime.overwriting`), and the
    place for them. Raises `FileExistsError` if one of its files exists, unless `overwrite` is set and its report is
    there."""
    names = [f"{name}{end}" for end in (".json", *PICTURES)]

    def check() -> None:
        check_files(folder, names, {names[0]: json_with("metrics", "panels")}, overwrite)

    return claimed_files(folder, names, check, overwrite)


def save(
    findings: Findings, content: Mapping[str, Any], folder: Path, name: str, title: str, *, overwrite: bool
) -> list[Path]:
    """Writes a report, `NAME.json`, and its pictures into a folder, which is created if missing. Raises what `claimed`
    raises."""
    with claimed(folder, name, overwrite) as scratch:
        write_atomically(scratch / f"{name}.json", json_bytes(content))
        pictures = save_pictures(findings, scratch, name, title)
    return [folder / f"{name}.json", *(folder / path.name for path in pictures)]


def save_pictures(findings: Findings, folder: Path, name: str, title: str) -> list[Path]:
    """`NAME.png` of panels, if there are any, with the title; of drawings `NAME-drawing.png` and `NAME-drawing.html`.
    Deletes those of an earlier report that this one does not have."""
    from statewise.reporting.drawings import save_drawings, save_page
    from statewise.reporting.plots import save_panels

    written = []
    if findings.panels:
        written.append(folder / f"{name}.png")
        save_panels(findings.panels, written[-1], heading=title)
    if findings.drawings:
        written.append(folder / f"{name}-drawing.png")
        save_drawings(findings.drawings, written[-1])
        written.append(folder / f"{name}-drawing.html")
        save_page(findings.drawings, written[-1], title, findings.verdict)
    for end in PICTURES:
        if folder / f"{name}{end}" not in written:
            (folder / f"{name}{end}").unlink(missing_ok=True)
    return written


def tell(title: str, findings: Findings, written: Sequence[Path]) -> None:
    """Prints the verdict, metrics as `in_order`, notes and written files."""
    from statewise.reporting.tables import metrics_table

    say(title, findings.verdict, sep="\n")
    metrics = _plain(findings.metrics)
    say(metrics_table({name: metrics[name] for name in in_order(metrics, findings.main)}))
    say(*findings.notes, *(f"wrote {path}" for path in written), sep="\n")


def in_order(names: Iterable[str], main: Sequence[str]) -> list[str]:
    """The names of metrics, the main ones first. Names that differ in numbers alone are together, by these numbers; of
    the others, those that begin with the name of another metric follow it."""
    every = dict.fromkeys([*main, *names])
    families: dict[str, list[str]] = {}
    for name in every:
        families.setdefault(NUMBER.sub("#", name), []).append(name)
    first: list[str] = []
    others: dict[str, list[str]] = {}
    for family in families.values():
        family.sort(key=lambda name: [float(number) for number in NUMBER.findall(name)])
        if not set(main).isdisjoint(family):
            first += family
            continue
        stem = min((other for other in every if f"{family[0]}_".startswith(f"{other}_")), key=len)
        others.setdefault(stem, []).extend(family)
    return [*first, *(name for stem, group in others.items() for name in sorted(group, key=lambda one: one != stem))]
