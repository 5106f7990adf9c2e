"""All cells of the comparison, one process each, and their tables.

Each cell is one file of the folder `cells`, so that an interrupted run continues with the cells that are missing. A
cell runs in a process of its own, with a limit of time: methods of others write to the working directory, and some do
not end.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from statewise.reporting.tables import markdown_table
from statewise.runtime.durable import write_atomically
from statewise.runtime.json_files import ANYTHING, COUNT, TEXT, Shape, json_bytes, read_json
from statewise.runtime.messages import short, suggestion
from statewise.strips.amlgym.cells import MORE, OURS, RIVALS, domains, folder_of_amlgym

METHODS = (*OURS, *MORE, *RIVALS)
ROW: Shape = {"domain": TEXT, "method": TEXT, "trajectories": COUNT, "options": {...: ANYTHING}}
OPTIONS: Mapping[str, float] = {
    "seconds": 30.0,
    "verify_seconds": 10.0,
    "states": 10,
    "problems": 3,
    "planner_seconds": 10.0,
    "cell_seconds": 600.0,
}
"""What a cell may take: learning by our methods, the verifier, test states of each problem, problems to solve and the
time of the planner for each, and the whole cell."""
MEASURES = (
    ("pre_precision", "pre precision"),
    ("pre_recall", "pre recall"),
    ("effects_precision", "effects precision"),
    ("effects_recall", "effects recall"),
    ("applicable_precision", "applicable precision"),
    ("applicable_recall", "applicable recall"),
    ("changes_precision", "changes precision"),
    ("changes_recall", "changes recall"),
    ("solved", "solved"),
    ("false_plans", "false plans"),
)


def amlgym_methods(text: str) -> list[str]:
    """The methods that a list separated by commas names; `ours` stands for those of ours
    that learn from the trajectories as they are. Raises `ValueError`."""
    known = {name.lower(): name for name in METHODS}
    found: dict[str, None] = {}
    for word in text.split(","):
        name = word.strip()
        if name.lower() == "ours":
            found |= dict.fromkeys(OURS)
        elif name.lower() in known:
            found[known[name.lower()]] = None
        else:
            raise ValueError(
                f"--methods: {short(name)} is not a method: {suggestion(name, METHODS)}there are ours, "
                f"{', '.join(METHODS)}"
            )
    return list(found)


def amlgym_trajectories(text: str) -> list[int]:
    """The numbers of a list such as `1,2,5-10`, which are 1 to 10. Raises `ValueError`."""
    found: dict[int, None] = {}
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not (first.isdecimal() and (last.isdecimal() if dash else not last)) or len(part) > 8:
            raise ValueError(f"--trajectories must be numbers from 1 to 10 such as 1,2,5-10, not {short(text)}")
        found |= dict.fromkeys(range(int(first), int(last or first) + 1))
    if not found or min(found) < 1 or max(found) > 10:
        raise ValueError(f"--trajectories must be numbers from 1 to 10, not {short(text)}")
    return list(found)


def compare_on_amlgym(
    out: Path,
    methods: Sequence[str],
    trajectories: Sequence[int],
    only: Sequence[str] = (),
    options: Mapping[str, float] = OPTIONS,
    say: Callable[[str], None] = lambda text: None,
    stop: Callable[[], bool] = lambda: False,
) -> list[dict[str, Any]]:
    """Runs the cells that `out/cells` lacks, in the order of `trajectories`, and returns the rows of all that were
    asked for. Once `stop()` is true no further cell begins. Raises `ValueError` without AMLGym, for unknown domains,
    and for a cell of other options."""
    known = domains(folder_of_amlgym())
    for name in only:
        if name not in known:
            raise ValueError(
                f"--domains: no domain {short(name)}: {suggestion(name, known)}there are {', '.join(known)}"
            )
    rows = []
    wanted = [(domain, method, number) for number in trajectories for domain in only or known for method in methods]
    for at, (domain, method, number) in enumerate(wanted, 1):
        path = out / "cells" / f"{domain}-{method}-{number}.json"
        if path.is_file():
            row = read_json(path, ROW)
            if row["options"] != dict(options):
                raise ValueError(f"{path} was measured with other options: choose another --out")
            rows.append(row)
            continue
        if stop():
            continue
        row = {**_in_process(domain, method, number, options), "options": dict(options)}
        if "error" in row and stop():  # an interruption reaches the process of the cell, too
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json_bytes(row))
        rows.append(row)
        what = row.get("error") or f"{row.get('exact', 'not verified')}, {row.get('seconds', math.nan):.2f} s"
        say(f"{at}/{len(wanted)} {domain} {method} {number}: {what}")
    return rows


def _in_process(domain: str, method: str, number: int, options: Mapping[str, float]) -> dict[str, Any]:
    """The row of a cell, or one with an `error`."""
    row: dict[str, Any] = {"domain": domain, "method": method, "trajectories": number}
    call = json.dumps([domain, method, number, dict(options)])
    begun = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "statewise.strips.amlgym.cell", call],
            capture_output=True,
            env={**os.environ, **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")},
            timeout=options["cell_seconds"],
        )
    except subprocess.TimeoutExpired:
        return {**row, "error": f"no result within {options['cell_seconds']:g} s"}
    took = {"cell_seconds_used": round(time.monotonic() - begun, 1)}
    for line in reversed(done.stdout.decode(errors="replace").splitlines()):
        if line.startswith(MARK):
            return {**row, **json.loads(line.removeprefix(MARK)), **took}
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    return {**row, "error": (lines[-1] if lines else f"exit code {done.returncode}")[:300], **took}


MARK = "statewise-cell "
"""Begins the line with the result of a cell: other libraries print, too."""


def amlgym_summary(rows: Sequence[Mapping[str, Any]]) -> str:
    """The tables of a comparison, as Markdown."""
    return "\n".join(_tables(rows)) + "\n"


def _tables(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    methods = [name for name in METHODS if any(row["method"] == name for row in rows)]
    numbers = sorted({row["trajectories"] for row in rows})
    names = sorted({row["domain"] for row in rows})
    cell = {(row["domain"], row["method"], row["trajectories"]): row for row in rows}
    if not numbers:
        return
    most = numbers[-1]
    yield f"## Domain by domain, {most} trajectories\n"
    yield "=: exact by the verifier; x: different; ?: not decided in time; !: no model. Then seconds of learning.\n"
    yield markdown_table(
        ["domain", *methods], [[name, *(_verdict(cell.get((name, each, most))) for each in methods)] for name in names]
    )
    yield f"\n## Means over domains, {most} trajectories\n"
    yield "A domain without a model counts as 0. Exact: how many domains. Seconds: the sum over domains.\n"
    body = []
    for method in methods:
        mine = [cell[name, method, most] for name in names if (name, method, most) in cell]
        body.append(
            [
                method,
                f"{sum(row.get('exact') == 'equivalent' for row in mine)} of {len(mine)}",
                *(_mean([_value(row, key) for row in mine]) for key, _ in MEASURES),
                f"{sum(row.get('seconds', 0.0) for row in mine):.1f}",
            ]
        )
    yield markdown_table(["method", "exact", *(title for _, title in MEASURES), "seconds"], body)
    if len(numbers) > 1:
        yield "\n## Exact domains by the number of trajectories\n"
        yield markdown_table(
            ["method", *map(str, numbers)],
            [
                [
                    method,
                    *(
                        _of(
                            [
                                cell[name, method, number].get("exact") == "equivalent"
                                for name in names
                                if (name, method, number) in cell
                            ]
                        )
                        for number in numbers
                    ),
                ]
                for method in methods
            ],
        )


def _of(values: Sequence[bool]) -> str:
    return f"{sum(values)} of {len(values)}" if values else "-"


def _value(row: Mapping[str, Any], key: str) -> float | None:
    """A measure of a row; 0 for a method that gave no model, None for a measure that it does not have."""
    if "error" in row:
        return 0.0
    value = row.get(key)
    return float(value) if isinstance(value, int | float) else None


def _mean(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{sum(known) / len(known):.3f}" if known else "-"


def _verdict(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "-"
    if "error" in row:
        return "!"
    sign = {"equivalent": "=", "different": "x"}.get(str(row.get("exact")), "?")
    return f"{sign} {row['seconds']:.2f}"
