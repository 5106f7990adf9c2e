"""Compares runs and groups of seeds."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Sequence
from pathlib import Path

from statewise.experiments import seeds
from statewise.model.recipes import declared_defaults
from statewise.reporting.comparison import Comparison
from statewise.reporting.grouping import compare as compare_runs
from statewise.reporting.report import claimed, write_report


def compare(
    runs: Sequence[str | Path],
    out: str | Path | None = None,
    *,
    better: str | Path | None = None,
    margin: float | None = None,
    metrics: str = "evaluation",
    relative: bool = False,
    overwrite: bool = False,
) -> Comparison:
    """Compares runs, and with `out` writes the report into that folder.

    `runs`: run directories, or directories of several seeds, of which those without an evaluation are left out. Runs
    that differ only in seed form a group; each group is compared with the first. `better`, `margin`, `metrics` and
    `relative` are as in `statewise.reporting.grouping.compare`. The paths of the files written are the `files` of the
    result. Raises `ValueError` for runs that cannot be compared, `FileExistsError` for an `out` that holds anything
    else, or a report unless `overwrite` is set.
    """
    left_out: dict[str, list[int]] = {}
    out = None if out is None else Path(out)
    with contextlib.nullcontext() if out is None else claimed(out, overwrite):
        paths = [Path(run) for run in runs]
        folders = [folder for path in paths if not seeds.is_beside_run(path) for folder in _members(path, left_out)]
        if not folders:
            raise ValueError(
                f"{paths[0]} is a file beside a run: give the run's folder" if paths else "give at least one run"
            )
        comparison = compare_runs(
            folders,
            better=None if better is None else _members(Path(better), left_out)[0],
            margin=margin,
            metrics=metrics,
            relative=relative,
            defaults=declared_defaults,
            seeds_left_out=left_out,
        )
        if out is not None:
            comparison.files.extend(write_report(comparison, out, overwrite))
    return comparison


def _members(folder: Path, left_out: dict[str, list[int]]) -> list[Path]:
    """The run itself, or the evaluated runs of a group, whose other seeds are added to `left_out`."""
    if not seeds.is_group(folder):
        return [folder]
    evaluated, left_out[str(folder)] = seeds.evaluated(folder)
    if not evaluated:
        raise ValueError(
            f"no seed of {folder} is evaluated yet: continue with `statewise train --resume {shlex.quote(str(folder))}`"
        )
    return evaluated
