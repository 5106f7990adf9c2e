"""Draws docs/paper/*.png from docs/paper/measured.json, and adjusts the comparisons of the table of results by Holm.

python tools/pictures/paper.py            # the pictures
python tools/pictures/paper.py --holm     # docs/results/comparisons.md, to standard output
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from statewise.reporting.figures import objective_colour
from statewise.reporting.plots import plain_text, png
from statewise.reporting.statistics import out_of, summarise
from statewise.runtime.durable import write_atomically

PAPER = Path(__file__).parents[2] / "docs" / "paper"


def moments(values: Any) -> tuple[float, float, int]:
    """Mean, standard deviation and number of runs, of values by seed or of `{"of": [mean, half the interval, n]}`."""
    if isinstance(values, dict):
        middle, half, count = values["of"]
        return middle, half * count**0.5 / float(stats.t.ppf(0.975, count - 1)), count
    return float(np.mean(values)), float(np.std(values, ddof=1)), len(values)


def p_value(one: Any, other: Any) -> float:
    """Welch's two-sided t-test, or Fisher's exact test of `{"solved": [count, runs]}`."""
    if isinstance(one, dict) and "solved" in one:
        table = [[count, runs - count] for count, runs in (one["solved"], other["solved"])]
        return float(stats.fisher_exact(table).pvalue)
    (a, of_a, n), (b, of_b, m) = moments(one), moments(other)
    return float(stats.ttest_ind_from_stats(a, of_a, n, b, of_b, m, equal_var=False).pvalue)


def holm(p_values: Sequence[float], more: int = 0) -> list[float]:
    """The p values adjusted for their number (Holm 1979), and for `more` comparisons that are larger than all."""
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, at in enumerate(np.argsort(p_values)):
        highest = max(highest, min(1.0, (len(p_values) + more - rank) * p_values[at]))
        adjusted[at] = highest
    return adjusted


def shown(p: float) -> str:
    """A p value as the pages write it."""
    return "< .001" if p < 0.001 else f"{p:.3f}".lstrip("0") if p < 1 else "1"


EXPLORATORY = "*E*"
"""Ends the name of a comparison that was chosen, or asked, once figures were known: no evidence, whatever its p."""


def comparisons(families: Sequence[dict[str, Any]]) -> str:
    """The table of all families as Markdown."""
    lines = ["| rows | comparison | p | by Holm |", "| --- | --- | ---: | ---: |"]
    for family in families:
        pairs = {
            name: (value, family["against"]) if "against" in family else value
            for name, value in family["pairs"].items()
        }
        p_values = [p_value(*pair) for pair in pairs.values()]
        by_holm = holm(p_values, family.get("unrecorded", 0))
        page = family["page"]
        for place, (name, p, adjusted) in enumerate(zip(pairs, p_values, by_holm)):
            what = f"[{family['what']}]({page}): {name}" if place == 0 else name
            evidence = adjusted < 0.05 and not name.endswith(EXPLORATORY)
            told = f"**{shown(adjusted)}**" if evidence else shown(adjusted)
            lines.append(f"| {family['rows'] if place == 0 else ''} | {what} | {shown(p)} | {told} |")
    return "\n".join(lines)


SOLVED = 0.99
"""The share of right paths from which a run on star graphs counts as solved."""


@plain_text
def figure(name: str, width: float, height: float, draw: Any) -> None:
    """Writes docs/paper/NAME.png, which `draw` draws on a figure of this size in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    one = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(one)
    draw(one)
    for axes in one.axes:
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=9)
    write_atomically(PAPER / f"{name}.png", png(one))


def dots(axes: Any, rows: dict[str, Any], colours: Sequence[str], *, intervals: bool = True) -> None:
    """A dot for each run in a line for each of the rows, with the mean, and its 95% interval where runs differ in
    amount and not in whether they succeed."""
    for place, (values, colour) in enumerate(zip(rows.values(), colours, strict=True)):
        axes.plot(values, [place] * len(values), "o", color=colour, alpha=0.6, markersize=5, zorder=3)
        if len(values) > 1:
            axes.plot([np.mean(values)] * 2, [place - 0.28, place + 0.28], color=colour, linewidth=2, zorder=4)
        if len(values) > 1 and intervals:
            interval = summarise(dict(enumerate(values)), None).interval
            axes.plot(np.clip(interval, None, max(1.0, max(values))), [place, place], color=colour, linewidth=1)
    axes.set_yticks(range(len(rows)), list(rows))
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.grid(axis="x", alpha=0.25)


def star_graphs(one: Any, found: dict[str, Any]) -> None:
    """Path accuracy of each run, by graph."""
    graphs = {name: rows for name, rows in found.items() if name != "source"}
    for place, (graph, rows) in enumerate(graphs.items(), 1):
        axes = one.add_subplot(1, len(graphs), place)
        dots(axes, rows, [objective_colour(name) for name in rows], intervals=False)
        for line, values in enumerate(rows.values()):
            solved = out_of(sum(value >= SOLVED for value in values), len(values))
            axes.text(
                0.5, line + 0.42, f"solved {solved}", fontsize=8, ha="center", transform=axes.get_yaxis_transform()
            )
        axes.set_xlim(-0.03, 1.05)
        axes.axvline(1 / int(graph[2]), color="#737373", linestyle=":", linewidth=1)
        axes.set_title(graph, fontsize=11)
        axes.set_xlabel("share of right paths (dotted: chance)", fontsize=9)
        if place > 1:
            axes.set_yticklabels([])


def curves(axes: Any, runs: Sequence[Sequence[float]], x: Sequence[float], colour: str, label: str, style: str) -> None:
    """The mean over seeds, and their range."""
    values = np.array(runs)
    axes.plot(x, values.mean(0), color=colour, label=label, linestyle=style, linewidth=1.6)
    axes.fill_between(x, values.min(0), values.max(0), color=colour, alpha=0.15, linewidth=0)


def beliefs(one: Any, found: dict[str, Any]) -> None:
    """R^2 of the belief by tokens read, and by objective."""
    axes = one.add_subplot(1, 2, 1)
    for rows, style in (("rows of 24", "-"), ("rows of 10", "--")):
        for name, values in found[rows].items():
            label = name if style == "-" else f"{name}, sequences of 10"
            x = range(1, len(values["by_tokens"][0]) + 1)
            curves(axes, values["by_tokens"], x, objective_colour(name), label, style)
    axes.set_xlabel("tokens read", fontsize=9)
    axes.set_ylabel("R^2 of the belief", fontsize=9)
    axes.set_title("RRXOR, last state of sequences of 24 tokens, or 10", fontsize=11)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize=8, loc="lower left")
    axes = one.add_subplot(1, 2, 2)
    rows, colours = {}, []
    for name, values in found["rows of 24"].items():
        for key, words in (("r2", ""), ("held_out", ", held out")):
            rows[f"{name}{words}"] = values[key]
            colours.append(objective_colour(name))
    dots(axes, rows, colours)
    axes.set_xlabel("R^2 of the belief, all prefixes of up to 12 tokens", fontsize=9)


def dynamics(one: Any, found: dict[str, Any]) -> None:
    """Beliefs in the simplex, and R^2 of the dynamics alone by tokens read."""
    drawings = found["simplex"]
    for place, drawing in enumerate(drawings, 1):
        axes = one.add_subplot(1, len(drawings) + 1, place)
        for line in drawing["lines"]:
            axes.plot(*zip(*line, strict=True), color="0.8", linewidth=0.8, zorder=1)
        axes.scatter(*zip(*drawing["places"], strict=True), c=drawing["colours"], s=3, zorder=2)
        axes.set_title(drawing["title"].replace("beliefs", "beliefs, Mess3"), fontsize=10)
        axes.set_aspect("equal")
        axes.set_axis_off()
    axes = one.add_subplot(1, len(drawings) + 1, len(drawings) + 1)
    for name, colour in (("backbone", objective_colour("next_token")), ("dynamics", objective_colour("next_latent"))):
        runs = found["by_tokens"][name]
        curves(axes, [y for _, y in runs], runs[0][0], colour, {"dynamics": "dynamics alone"}.get(name, name), "-")
    axes.axvline(24, color="#737373", linestyle=":", linewidth=1)
    axes.set_xlabel("tokens read (dotted: trained length)", fontsize=9)
    axes.set_title("R^2 of the belief, RRXOR, five seeds", fontsize=10)
    axes.set_ylim(0.9, 1.005)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize=8, loc="lower right")


def strips(one: Any, found: dict[str, Any]) -> None:
    """The fewest traces from which a method is exact, by domain."""
    axes, methods = one.add_subplot(), ("strips learn", "exact, ground atoms", "training, pooled")
    colours = ("#3f8f5b", "#3b6fb6", "#d1603d")
    domains = found["traces"]
    for method, (name, colour) in enumerate(zip(methods, colours, strict=True)):
        points = [(values[method], row) for row, values in enumerate(domains.values()) if values[method] is not None]
        label = f"{name} ({len(points)} of {len(domains)} domains)"
        axes.plot(*zip(*points, strict=True), "osD"[method], color=colour, alpha=0.8, label=label)
    axes.set_xscale("log")
    axes.set_xticks(ticks := [10, 20, 50, 100, 200, 500, 1000, 2000], [f"{tick:,}" for tick in ticks])
    axes.minorticks_off()
    axes.set_yticks(range(len(domains)), list(domains))
    axes.set_ylim(len(domains) - 0.5, -0.5)
    axes.set_xlabel("fewest traces from which all draws are exact", fontsize=9)
    axes.grid(alpha=0.25)
    one.legend(frameon=False, fontsize=9, loc="outside lower center", ncols=3)


def drafts(one: Any, found: dict[str, Any]) -> None:
    """How many times as fast decoding with drafts is."""
    for place, (name, rows) in enumerate(((name, rows) for name, rows in found.items() if name != "source"), 1):
        axes = one.add_subplot(1, 2, place)
        for line, values in enumerate(rows.values()):
            axes.plot(values, [line] * len(values), "o", color=objective_colour("next_latent"), alpha=0.7)
        axes.set_yticks(range(len(rows)), list(rows) if place == 1 else [""] * len(rows))
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_xlim(0.9, 4)
        axes.axvline(1, color="#737373", linestyle=":", linewidth=1)
        axes.set_title(name, fontsize=11)
        axes.set_xlabel("times as fast as without drafts (one dot a seed)", fontsize=9)
        axes.grid(axis="x", alpha=0.25)


def speed(one: Any, found: dict[str, Any]) -> None:
    """A training step against one of a GPT."""
    axes, rows = one.add_subplot(), found["steps"]
    for column, (marker, label) in enumerate((("o", "EPYC"), ("s", "H200"), ("x", "Table 3 of Teoh et al., H100")), 1):
        points = [(each[column], line) for line, each in enumerate(rows.values()) if each[column] is not None]
        colour = ("#3b6fb6", "#d1603d", "#404040")[column - 1]
        axes.plot(*zip(*points, strict=True), marker, color=colour, label=label, alpha=0.85)
    axes.set_xscale("log")
    axes.set_xticks(ticks := [1, 1.5, 2, 3, 5, 10, 20], [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_yticks(range(len(rows)), list(rows))
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel("time of a training step, of that of a GPT", fontsize=9)
    axes.grid(axis="x", alpha=0.25)
    one.legend(frameon=False, fontsize=9, loc="outside lower center", ncols=3)


PICTURES = {
    "star_graphs": (10.5, 2.9, star_graphs),
    "beliefs": (10.5, 3.8, beliefs),
    "dynamics": (12.0, 3.1, dynamics),
    "strips": (8.5, 5.0, strips),
    "drafts": (8.5, 2.7, drafts),
    "speed": (7.0, 3.2, speed),
}
"""Width and height in inches, and what draws the picture."""


def main(words: Sequence[str]) -> None:
    """Draws the pictures, or prints the table."""
    measured = json.loads((PAPER / "measured.json").read_text(encoding="utf-8"))
    if "--holm" in words:
        sys.stdout.write(comparisons(measured["families"]) + "\n")
        return
    for place, (name, (width, height, draw)) in enumerate(PICTURES.items(), 1):
        found = measured["pictures"][name]
        figure(f"{place}-{name.replace('_', '-')}", width, height, partial(draw, found=found))


if __name__ == "__main__":
    main(sys.argv[1:])
