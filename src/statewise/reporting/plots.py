"""Pictures as files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from statewise.reporting.compare import Comparison, Group

COLOURS = ["#3b6fb6", "#d1603d", "#3f8f5b", "#8a5aa8", "#b5892f", "#4a9aa8", "#a84a6b", "#6b6b6b"]
"""Groups take them in order."""
ROUNDS = ["-", "--", ":", "-."]
"""How the lines of groups are drawn that take the colours for the first time, the second time, and so on."""


def curve(group: Group, kind: str, metric: str) -> Iterator[tuple[int, list[int], list[float]]]:
    """(seed, steps, values) of each run of a group, from the records of `kind`."""
    for member in group.members:
        points = [(record["step"], record[metric]) for record in member.records
                  if record["kind"] == kind and metric in record]  # fmt: skip
        if points:
            steps, values = zip(*points)
            yield member.seed, list(steps), list(values)


SHOWN_OF_A_SERIES = 8
"""So many of a family of curves are named in the legend, from the first to the last."""
LETTERS = 13
"""Of a legend, an inch."""
DASHES = [":", "--", "-."]
"""Controls take them in order."""


@dataclass(frozen=True)
class Line:
    """A line of a plot."""

    label: str
    x: list[float]
    y: list[float]
    role: str = "line"
    """`line`; `series`: coloured by its rank in the family; `control`: thin and grey."""


@dataclass(frozen=True)
class Axes:
    """Lines that share a plot."""

    x_title: str
    y_title: str
    lines: list[Line]
    shares: bool = False
    """Whether y lies between 0 and 1."""


def save_lines(plots: list[Axes], path: Path) -> None:
    """Plots side by side as a PNG."""
    from matplotlib import colormaps
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(5.2 * len(plots), 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    for place, plot in enumerate(plots, 1):
        axes = figure.add_subplot(1, len(plots), place)
        family = [line for line in plot.lines if line.role == "series"]
        named = {round(step * (len(family) - 1) / (SHOWN_OF_A_SERIES - 1)) for step in range(SHOWN_OF_A_SERIES)}
        shades = colormaps["viridis_r"]
        counts = dict.fromkeys(("line", "series", "control", "raw"), 0)
        for line in plot.lines:
            number = counts[line.role]
            counts[line.role] += 1
            dots = "o" if len(line.x) <= 25 else None
            if line.role == "control":
                axes.plot(line.x, line.y, color="0.45", linewidth=1.1, linestyle=DASHES[number % len(DASHES)],
                          label=line.label)  # fmt: skip
            elif line.role == "raw":
                axes.plot(line.x, line.y, color=COLOURS[(counts["line"] - 1) % len(COLOURS)], linewidth=0.8, alpha=0.35)
            elif line.role == "series":
                shade = shades(0.1 + 0.85 * number / max(1, len(family) - 1))  # later is darker
                axes.plot(line.x, line.y, color=shade, marker=dots, markersize=3.5,
                          label=line.label if number in named else None)  # fmt: skip
            else:
                axes.plot(line.x, line.y, color=COLOURS[number % len(COLOURS)], marker=dots, markersize=4,
                          label=line.label)  # fmt: skip
        axes.set_xlabel(plot.x_title)
        axes.set_ylabel(plot.y_title)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        if all(x == int(x) for line in plot.lines for x in line.x):
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if plot.shares:
            axes.set_ylim(-0.03, 1.05)
        labels = [line.label for line in plot.lines if line.role != "raw"]
        if len(labels) > 1 and (place == 1 or labels != [line.label for line in plots[place - 2].lines]):
            axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5))
    figure.savefig(path, dpi=130)


def panels(comparison: Comparison) -> list[tuple[str, str, str]]:
    """(title, record kind, metric) of the curves that a comparison shows."""
    headline = comparison.headline.metric
    shown = [(f"{headline.replace('_', ' ')}, held out", "evaluation", headline)]
    if headline != "loss":
        shown.append(("loss, held out (nats per token)", "evaluation", "loss"))
    shown.append(("next-token loss in training (nats per token)", "train", "next_token"))
    return shown


def save_curves(comparison: Comparison, path: Path) -> None:
    """`draw_curves` as a PNG."""
    draw_curves(comparison).savefig(path, dpi=130)


def draw_curves(comparison: Comparison) -> Figure:
    """Curves over training steps: a line a run, a colour a group. The legend lies below all plots, since labels name
    whatever the groups differ in and may be as long as a plot is wide."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = panels(comparison)
    width, longest = 4.6 * len(shown), max(len(group.label) for group in comparison.groups)
    columns = min(len(comparison.groups), max(1, int(width * LETTERS / (longest + 8))))
    height = 3.6 + 0.18 * -(-len(comparison.groups) // columns)
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    drawn: dict[str, Any] = {}
    for place, (title, kind, metric) in enumerate(shown, 1):
        axes = figure.add_subplot(1, len(shown), place)
        for number, group in enumerate(comparison.groups):
            for order, (_, steps, values) in enumerate(curve(group, kind, metric)):
                axes.plot(steps, values, color=COLOURS[number % len(COLOURS)], linewidth=1.6, alpha=0.85,
                          linestyle=ROUNDS[number // len(COLOURS) % len(ROUNDS)],
                          marker="o" if len(steps) == 1 else None,
                          label=group.label if order == 0 else None)  # fmt: skip
        if kind == "evaluation" and metric in comparison.chance:
            axes.axhline(comparison.chance[metric], color="0.4", linewidth=1, linestyle=":")
            axes.annotate("chance", (1, comparison.chance[metric]), xycoords=("axes fraction", "data"), ha="right",
                          va="bottom", color="0.4", fontsize=8, xytext=(-4, 2), textcoords="offset points")  # fmt: skip
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("training step")
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        if metric.endswith("accuracy") or metric == "exact_match":
            axes.set_ylim(-0.03, 1.05)
        handles, labels = axes.get_legend_handles_labels()
        drawn |= zip(labels, handles)
    figure.legend(drawn.values(), drawn.keys(), loc="outside lower center", ncols=columns, frameon=False, fontsize=8)
    return figure
