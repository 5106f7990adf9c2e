"""Records of a reproduction as tables and curves."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from statewise.figures import Curve, Panel
from statewise.ledger import Record
from statewise.reporting.tables import markdown_table
from statewise.strips.settings import Settings

PUBLISHED = {
    "simple": {50: (1.0, 1.0), 100: (1.0, 1.0), 200: (0.983, 1.0), 500: (1.0, 1.0)},
    "blocksworld:2": {50: (0.933, 0.929), 100: (0.962, 0.943), 200: (0.996, 0.996), 500: (0.998, 0.999),
                      1000: (0.998, 1.0), 2000: (0.998, 1.0)},
    "blocksworld:3": {50: (0.609, 0.72), 100: (0.845, 0.843), 200: (0.931, 0.948), 500: (0.982, 0.973),
                      1000: (0.993, 0.993), 2000: (0.998, 1.0)},
    "ferry:2x1": {50: (0.971, 0.982), 100: (0.955, 0.977), 200: (0.985, 0.975), 500: (1.0, 1.0), 1000: (1.0, 1.0),
                  2000: (1.0, 1.0)},
    "ferry:2x2": {50: (0.873, 0.893), 100: (0.943, 0.929), 200: (0.983, 0.968), 500: (0.993, 0.996),
                  1000: (0.998, 0.998), 2000: (1.0, 1.0)},
}  # fmt: skip
"""Test accuracy in Table 1 of the paper: mean of ten seeds, and the seed with the best training accuracy."""

SHORT = {"equivalent": "yes", "different": "no", "unknown": "?"}


def reproduction_text(experiment: str, records: Sequence[Record]) -> str:
    """A Markdown table with a row for each kind of cell, averaged over draws of the training set."""
    if experiment == "lifted":
        return _lifted_table(records)
    header = ["domain", "traces", "restarts: train", "restarts: test", "best by training", "paper: test",
              "pooled: test", "worst draw", "atoms", "simplest: precision, recall", "Def. 1", "real states",
              "drawn traces", "best restart: drawn", "seconds"]  # fmt: skip
    rows = []
    for (name, size, what), cells in _groups(records).items():
        train = [value for cell in cells for value in cell["single"]["train"]]
        test = [value for cell in cells for value in cell["single"]["test"]]
        best = [cell["single"]["test"][cell["single"]["best"]] for cell in cells]
        pooled = [cell["pooled"]["test"] for cell in cells]
        paper = PUBLISHED.get(name, {}).get(size) if experiment == "table1" else None
        exact = [cell["pooled"]["equivalent"] for cell in cells]
        rows.append([
            name + (f" {what}" if what else ""),
            f"{size:,}",
            f"{statistics.mean(train):.3f} ± {statistics.pstdev(train):.3f}",
            f"{statistics.mean(test):.3f} ± {statistics.pstdev(test):.3f}",
            f"{statistics.mean(best):.4f}",
            "-" if paper is None else f"{paper[0]:.3f} ({paper[1]:.3f})",
            f"{statistics.mean(pooled):.4f}",
            f"{min(pooled):.4f}",
            " ".join(str(cell["pooled"]["atoms"]) for cell in cells) + f" / {cells[0]['true_atoms']}",
            _simplest(cells),
            *(" ".join(SHORT[each[notion]] for each in exact)
              for notion in ("definition_1", "real_states", "drawn_traces")),
            " ".join(SHORT[cell["single"]["best_equivalent"]["drawn_traces"]] for cell in cells),
            f"{statistics.mean(cell['seconds'] for cell in cells):.0f}",
        ])  # fmt: skip
    return markdown_table(header, rows)


def _simplest(cells: Sequence[Record]) -> str:
    """Mean precision and recall of the simplest equivalent models; - for records made before they were computed."""
    found = [cell["pooled"]["simplest"] for cell in cells if "simplest" in cell["pooled"]]
    if not found:
        return "-"
    return ", ".join(f"{statistics.mean(each[key] for each in found):.2f}" for key in ("precision", "recall"))


def _lifted_table(records: Sequence[Record]) -> str:
    """Lifted learning: where the schemas were learned, and on which instances they are exact (on drawn traces)."""
    header = [
        "learned on",
        "traces",
        "draw",
        "restarts right",
        "test",
        "predicates",
        "exact on (drawn traces)",
        "seconds",
    ]
    rows = []
    for record in sorted(records, key=lambda each: (each["domain"], each["size"], each["draw"])):
        exact = record["pooled"]["equivalent"].items()
        rows.append([
            record["domain"], f"{record['size']:,}", str(record["draw"]),
            f"{sum(value == 1 for value in record['single']['train'])} of {len(record['single']['train'])}",
            f"{record['pooled']['test']:.4f}", str(record["pooled"]["predicates"]),
            ", ".join(f"{name} {SHORT[of['drawn_traces']]}" for name, of in exact),
            f"{record['seconds']:.0f}",
        ])  # fmt: skip
    return markdown_table(header, rows)


def save_reproduction(records: Sequence[Record], path: Path) -> None:
    """Test accuracy over the number of training traces as a PNG, one panel per domain."""
    from statewise.reporting.plots import save_panels

    by_domain: dict[str, dict[int, list[Record]]] = {}
    for (name, size, variant), cells in _groups(records).items():
        by_domain.setdefault(f"{name} {variant}".strip(), {})[size] = cells
    panels = []
    for title, by_size in by_domain.items():
        every, sizes = list(by_size.values()), [float(size) for size in by_size]
        best = [[cell["single"]["test"][cell["single"]["best"]] for cell in draws] for draws in every]
        curves = [
            Curve("pooled", sizes, [statistics.mean(cell["pooled"]["test"] for cell in draws) for draws in every]),
            Curve("best restart by training", sizes, [statistics.mean(values) for values in best]),
            Curve("mean of restarts", sizes, [statistics.mean(cell["mean_test"] for cell in draws) for draws in every]),
        ]
        if published := {size: of[1] for size, of in PUBLISHED.get(title, {}).items() if size in by_size}:
            curves.append(Curve("paper, best by training", list(map(float, published)), list(published.values()),
                                "control"))  # fmt: skip
        panels.append(Panel("training traces", "test accuracy", curves, title=title, log_x=True))
    save_panels(panels, path)


def _groups(records: Sequence[Record]) -> dict[tuple[str, int, str], list[Record]]:
    """Records by domain, size and variant; draws are grouped."""
    groups: dict[tuple[str, int, str], list[Record]] = {}
    for record in sorted(records, key=lambda record: (record["domain"], record["size"], record["noise"],
                                                      record["noise_of"], record["draw"])):  # fmt: skip
        what = "atoms unknown" if record["atoms"] == "auto" else ""
        if not record.get("stall", True) or record.get("steps", Settings.steps) != Settings.steps:
            what += f" up to {record['steps']:,} steps" + ("" if record["stall"] else ", no stall rule")
        if record["noise"]:
            what += f" {record['noise']:.0%} of {record['noise_of']}"
        groups.setdefault((record["domain"], record["size"], what.strip()), []).append(record)
    return groups
