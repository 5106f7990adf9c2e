"""Records of a reproduction as tables and curves."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from statewise.ledger import Record
from statewise.reporting.tables import markdown_table

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
"""Test accuracy in Table 1 of the paper: mean of ten seeds, and of the seed that was best in training."""

SHORT = {"equivalent": "yes", "different": "no", "unknown": "?"}


def as_text(experiment: str, records: Sequence[Record]) -> str:
    """A Markdown table, a row for each kind of cell; several draws of the training set are averaged."""
    if experiment == "lifted":
        return _lifted_table(records)
    header = ["domain", "traces", "restarts: train", "restarts: test", "best by training", "paper: test",
              "pooled: test", "worst draw", "atoms", "Def. 1", "real states", "drawn traces", "best restart: drawn",
              "seconds"]  # fmt: skip
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
            *(" ".join(SHORT[each[notion]] for each in exact)
              for notion in ("definition_1", "real_states", "drawn_traces")),
            " ".join(SHORT[cell["single"]["best_equivalent"]["drawn_traces"]] for cell in cells),
            f"{statistics.mean(cell['seconds'] for cell in cells):.0f}",
        ])  # fmt: skip
    return markdown_table(header, rows)


def _lifted_table(records: Sequence[Record]) -> str:
    """Schemas: where they were learned, and on which instances they are exact (on what traces can show)."""
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


def save_curves(records: Sequence[Record], path: Path) -> None:
    """Test accuracy over the number of traces as a PNG, a panel a domain: pooled, restarts, and the paper's."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from statewise.reporting.plots import COLOURS

    groups = _groups(records)
    kinds = list(dict.fromkeys((name, what) for name, _, what in groups))
    figure = Figure(figsize=(3.4 * min(len(kinds), 3), 2.9 * ((len(kinds) + 2) // 3)), layout="constrained")
    FigureCanvasAgg(figure)
    for place, (name, what) in enumerate(kinds, 1):
        axes = figure.add_subplot((len(kinds) + 2) // 3, min(len(kinds), 3), place)
        here = {size: cells for (of, size, kind), cells in sorted(groups.items()) if (of, kind) == (name, what)}
        sizes = list(here)
        lines = {
            "pooled": [statistics.mean(cell["pooled"]["test"] for cell in cells) for cells in here.values()],
            "best restart by training": [
                statistics.mean(cell["single"]["test"][cell["single"]["best"]] for cell in cells)
                for cells in here.values()
            ],
            "mean of restarts": [statistics.mean(cell["mean_test"] for cell in cells) for cells in here.values()],
        }  # fmt: skip
        for (label, values), colour in zip(lines.items(), COLOURS):
            axes.plot(sizes, values, color=colour, marker="o", markersize=3.5, label=label)
        published = {size: of for size, of in PUBLISHED.get(name, {}).items() if size in here} if not what else {}
        if published:
            axes.plot(list(published), [best for _, best in published.values()], color="0.45", linestyle="--",
                      linewidth=1.2, label="paper, best by training")  # fmt: skip
        axes.set_xscale("log")
        axes.set_xticks(sizes, [f"{size:,}" for size in sizes], fontsize=7)
        axes.minorticks_off()
        axes.set_title(f"{name} {what}".strip(), fontsize=9)
        axes.set_ylim(top=1.02)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        if place == 1:
            axes.legend(frameon=False, fontsize=7, loc="lower right")
        if place > len(kinds) - 3:
            axes.set_xlabel("training traces", fontsize=8)
        if place % 3 == 1:
            axes.set_ylabel("test traces right", fontsize=8)
    figure.savefig(path, dpi=130)


def _groups(records: Sequence[Record]) -> dict[tuple[str, int, str], list[Record]]:
    """Records by domain, size and what else is special, draws together."""
    groups: dict[tuple[str, int, str], list[Record]] = {}
    for record in sorted(records, key=lambda record: (record["domain"], record["size"], record["noise"],
                                                      record["noise_of"], record["draw"])):  # fmt: skip
        what = "atoms unknown" if record["atoms"] == "auto" else ""
        if record["noise"]:
            what += f" {record['noise']:.0%} of {record['noise_of']}"
        groups.setdefault((record["domain"], record["size"], what.strip()), []).append(record)
    return groups
