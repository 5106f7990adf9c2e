"""Records of the STRIPS experiments as tables and curves."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from strips.cells import METHODS

from statewise.reporting.figures import Curve, Panel
from statewise.reporting.plots import save_panels
from statewise.reporting.tables import fitted_tables, markdown_table
from statewise.runtime.ledger import Record
from statewise.strips import Settings, domain

PUBLISHED = {
    "simple": {50: (1.0, 1.0), 100: (1.0, 1.0), 200: (0.983, 1.0), 500: (1.0, 1.0)},
    "blocksworld:2": {
        50: (0.933, 0.929),
        100: (0.962, 0.943),
        200: (0.996, 0.996),
        500: (0.998, 0.999),
        1000: (0.998, 1.0),
        2000: (0.998, 1.0),
    },
    "blocksworld:3": {
        50: (0.609, 0.72),
        100: (0.845, 0.843),
        200: (0.931, 0.948),
        500: (0.982, 0.973),
        1000: (0.993, 0.993),
        2000: (0.998, 1.0),
    },
    "ferry:2x1": {
        50: (0.971, 0.982),
        100: (0.955, 0.977),
        200: (0.985, 0.975),
        500: (1.0, 1.0),
        1000: (1.0, 1.0),
        2000: (1.0, 1.0),
    },
    "ferry:2x2": {
        50: (0.873, 0.893),
        100: (0.943, 0.929),
        200: (0.983, 0.968),
        500: (0.993, 0.996),
        1000: (0.998, 0.998),
        2000: (1.0, 1.0),
    },
}
"""Test accuracy in Table 1 of the paper: mean of ten seeds, and the seed with the best training accuracy."""

SHORT = {"equivalent": "yes", "different": "no", "unknown": "?"}


class Rows(NamedTuple):
    """A table of text."""

    header: list[str]
    rows: list[list[str]]
    keys: int
    """The number of first columns that identify a row."""


def reproduction_text(experiment: str, records: Sequence[Record], width: int | None = None) -> str:
    """A table with a row for each kind of cell, averaged over draws of the training set, and one of the fewest traces
    that were enough: as Markdown, or split so that they fit into `width` characters."""
    table = _lifted_table(records) if experiment == "lifted" else _ground_table(experiment, records)
    tables = table, _fewest_table(records)
    if width is None:
        return "\n\n".join(markdown_table(each.header, each.rows) for each in tables)
    return "\n\n".join(fitted_tables(each.header, each.rows, width, each.keys) for each in tables)


def _ground_table(experiment: str, records: Sequence[Record]) -> Rows:
    header = [
        "domain",
        "traces",
        "method",
        "restarts: train",
        "restarts: test",
        "best by training",
        "paper: test",
        "learned: test",
        "worst draw",
        "atoms",
        "simplest: precision, recall",
        "Def. 1",
        "real states",
        "drawn traces",
        "best restart: drawn",
        "decided",
        "CPU seconds",
        "MiB",
    ]
    rows = []
    for (name, size, what, method), cells in _groups(records).items():
        restarts = ["-"] * 3
        if all("single" in cell for cell in cells):
            train = [value for cell in cells for value in cell["single"]["train"]]
            test = [value for cell in cells for value in cell["single"]["test"]]
            restarts = [f"{statistics.mean(each):.3f} ± {statistics.pstdev(each):.3f}" for each in (train, test)]
            restarts.append(f"{statistics.mean(_best(cell) for cell in cells):.4f}")
        pooled = [cell["pooled"]["test"] for cell in cells]
        paper = PUBLISHED.get(name, {}).get(size) if experiment == "table1" and method == "neural" else None
        exact = [cell["pooled"]["equivalent"] for cell in cells]
        rows.append(
            [
                name + (f" {what}" if what else ""),
                f"{size:,}",
                method,
                *restarts,
                "-" if paper is None else f"{paper[0]:.3f} ({paper[1]:.3f})",
                f"{statistics.mean(pooled):.4f}",
                f"{min(pooled):.4f}",
                " ".join(str(cell["pooled"]["atoms"]) for cell in cells) + f" / {cells[0]['true_atoms']}",
                _simplest(cells),
                *(
                    " ".join(SHORT[each[notion]] if notion in each else "-" for each in exact)
                    for notion in ("definition_1", "real_states", "drawn_traces")
                ),
                " ".join(
                    SHORT[cell["single"]["best_equivalent"]["drawn_traces"]] if "single" in cell else "-"
                    for cell in cells
                ),
                _decided(cells),
                _mean(cells, "cpu_seconds", ".2f"),
                _mean(cells, "memory", ".0f"),
            ]
        )
    return Rows(header, rows, keys=3)


def _fewest_table(records: Sequence[Record]) -> Rows:
    """For each domain and method, from which number of traces on all draws are exact (on drawn traces), and right on
    all test traces, at this size and at every larger one."""
    by_method: dict[tuple[str, str, str], dict[int, list[Record]]] = {}
    for (name, size, what, method), cells in _groups(records).items():
        by_method.setdefault((name, what, method), {})[size] = cells
    rows = []
    for (name, what, method), by_size in by_method.items():
        exact = _from(by_size, is_exact)
        rows.append(
            [
                f"{name} {what}".strip(),
                method,
                str(min(map(len, by_size.values()))),
                ", ".join(f"{size:,}" for size in by_size),
                _or_none(exact),
                _or_none(_from(by_size, lambda cell: cell["pooled"]["test"] == 1)),
                "-" if exact is None else _mean(by_size[exact], "cpu_seconds", ".2f"),
            ]
        )
    header = [
        "domain",
        "method",
        "draws",
        "traces tried",
        "exact in all draws from",
        "right on all test traces from",
        "CPU seconds there",
    ]
    return Rows(header, rows, keys=2)


def is_exact(record: Record) -> bool:
    """Whether the learned model is equivalent on drawn traces, schemas in the larger instances, too."""
    outcomes = record["pooled"]["equivalent"]
    each = [outcomes] if "drawn_traces" in outcomes else outcomes.values()
    return all(of["drawn_traces"] == "equivalent" for of in each)


def _from(by_size: Mapping[int, Sequence[Record]], holds: Callable[[Record], bool]) -> int | None:
    """The smallest size at which, as at all larger ones, it holds of all draws."""
    smallest = None
    for size in sorted(by_size, reverse=True):
        if not all(map(holds, by_size[size])):
            break
        smallest = size
    return smallest


def _or_none(size: int | None) -> str:
    return "not reached" if size is None else f"{size:,}"


def _best(cell: Record) -> float:
    """Test accuracy of the restart that is best in training."""
    value: float = cell["single"]["test"][cell["single"]["best"]]
    return value


def _mean(cells: Sequence[Record], key: str, form: str) -> str:
    """The mean of what was measured; - where a record does not have it."""
    values = [cell[key] for cell in cells if cell.get(key) is not None]
    return format(statistics.mean(values), form) if len(values) == len(cells) else "-"


def _decided(cells: Sequence[Record]) -> str:
    """Mean share of the test traces decided by what was seen."""
    found = [cell["certainty"]["decided"] for cell in cells if "certainty" in cell]
    return f"{statistics.mean(found):.3f}" if found else "-"


def _simplest(cells: Sequence[Record]) -> str:
    """Mean precision and recall of the simplest equivalent models; - for records made before they were computed."""
    found = [cell["pooled"]["simplest"] for cell in cells if "simplest" in cell["pooled"]]
    if not found:
        return "-"
    return ", ".join(f"{statistics.mean(each[key] for each in found):.2f}" for key in ("precision", "recall"))


def _lifted_table(records: Sequence[Record]) -> Rows:
    """Lifted learning: where the schemas were learned, and on which instances they are exact (on drawn traces)."""
    header = [
        "learned on",
        "traces",
        "method",
        "draw",
        "restarts right",
        "test",
        "predicates",
        "exact on (drawn traces)",
        "decided",
        "CPU seconds",
    ]
    rows = []
    for (name, size, _, method), cells in _groups(records).items():
        for record in cells:
            train = record.get("single", {}).get("train", [])
            exact = record["pooled"]["equivalent"].items()
            rows.append(
                [
                    name,
                    f"{size:,}",
                    method,
                    str(record["draw"]),
                    f"{sum(value == 1 for value in train)} of {len(train)}" if train else "-",
                    f"{record['pooled']['test']:.4f}",
                    str(record["pooled"]["predicates"]),
                    ", ".join(f"{name} {SHORT[of['drawn_traces']]}" for name, of in exact),
                    _decided([record]),
                    _mean([record], "cpu_seconds", ".2f"),
                ]
            )
    return Rows(header, rows, keys=4)


def save_reproduction(records: Sequence[Record], path: Path) -> None:
    """Test accuracy over the number of training traces as a PNG, one panel per domain, with a curve for each method."""
    by_domain: dict[str, dict[str, dict[int, list[Record]]]] = {}
    for (name, size, variant, method), cells in _groups(records).items():
        by_domain.setdefault(f"{name} {variant}".strip(), {}).setdefault(method, {})[size] = cells
    panels = []
    for title, by_method in by_domain.items():
        curves = []
        for method, by_size in sorted(by_method.items(), key=lambda each: METHODS.index(each[0])):
            every, sizes = list(by_size.values()), [float(size) for size in by_size]
            learned = [statistics.mean(cell["pooled"]["test"] for cell in draws) for draws in every]
            curves.append(Curve("neural, pooled" if method == "neural" else method, sizes, learned))
            if method == "neural":
                best = [statistics.mean(map(_best, draws)) for draws in every]
                mean = [statistics.mean(cell["mean_test"] for cell in draws) for draws in every]
                curves += [
                    Curve("neural, best restart by training", sizes, best),
                    Curve("neural, mean of restarts", sizes, mean),
                ]
        tried = {size for by_size in by_method.values() for size in by_size}
        if published := {size: of[1] for size, of in PUBLISHED.get(title, {}).items() if size in tried}:
            curves.append(
                Curve("paper, best by training", list(map(float, published)), list(published.values()), "control")
            )
        panels.append(Panel("training traces", "test accuracy", curves, title=title, log_x=True))
    save_panels(panels, path)


def save_costs(records: Sequence[Record], path: Path) -> None:
    """CPU seconds of learning, and the MiB by which it raised the peak memory of its process, over the number of
    training traces as a PNG: two panels for each method, a curve for each domain. Missing measurements are left
    out."""
    actions = {name: len(domain(name).model.actions) for name in {record["domain"] for record in records}}
    by_method: dict[tuple[int, str], dict[tuple[int, str], dict[int, list[Record]]]] = {}
    for (name, size, variant, method), cells in _groups(records).items():
        label = f"{name} {variant}".strip() + f" ({actions[name]} actions)"
        title = f"{method}, schemas" if cells[0]["atoms"] == "lifted" else method
        domains = by_method.setdefault((METHODS.index(method), title), {})
        domains.setdefault((actions[name], label), {})[size] = cells
    panels = []
    for (_, title), domains in sorted(by_method.items()):
        for key, what in (("cpu_seconds", "CPU seconds"), ("memory", "MiB")):
            curves = []
            for (_, label), by_size in sorted(domains.items()):
                found = {size: [cell[key] for cell in cells if cell.get(key)] for size, cells in by_size.items()}
                points = {float(size): statistics.mean(values) for size, values in found.items() if values}
                if points:
                    curves.append(Curve(label, list(points), list(points.values()), "series"))
            if curves:
                panels.append(Panel("training traces", what, curves, title=title, log_x=True, log_y=what != "MiB"))
    if panels:
        save_panels(panels, path)


def _groups(records: Sequence[Record]) -> dict[tuple[str, int, str, str], list[Record]]:
    """Records by domain, size, variant and method; draws are grouped."""
    groups: dict[tuple[str, int, str, str], list[Record]] = {}
    for record in sorted(
        records,
        key=lambda record: (record["domain"], record["size"], record["noise"], record["noise_of"], record["draw"]),
    ):
        what = "atoms unknown" if record["atoms"] == "auto" else ""
        if not record.get("stall", True) or record.get("steps", Settings.steps) != Settings.steps:
            what += f" up to {record['steps']:,} steps" + ("" if record["stall"] else ", no stall rule")
        if record["noise"]:
            what += f" {record['noise']:.0%} of {record['noise_of']}"
        if record.get("symmetry"):
            what += " with symmetry"
        key = (record["domain"], record["size"], what.strip(), record.get("method", "neural"))
        groups.setdefault(key, []).append(record)
    return groups
