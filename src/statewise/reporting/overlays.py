"""The curves that one analysis found of several groups of runs, in one plot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from statewise.reporting.plots import COLOURS, LETTERS, ROUNDS

if TYPE_CHECKING:
    from statewise.reporting.compare import Comparison, Group
    from statewise.reporting.members import Member

ACROSS = 3
"""Plots side by side."""


@dataclass(frozen=True)
class Strand:
    """One curve of a group, the mean over its seeds."""

    group: int
    kind: str
    """Which of the curves of the panel, where it has several; else empty."""
    x: list[float]
    y: list[float]


@dataclass(frozen=True)
class Overlay:
    """A panel with the curves of all groups."""

    title: str
    x_title: str
    y_title: str
    strands: list[Strand]
    shares: bool
    """Whether y lies between 0 and 1."""

    @property
    def kinds(self) -> list[str]:
        """Those of the strands, in order."""
        return list(dict.fromkeys(strand.kind for strand in self.strands))


def overlays(groups: Sequence[Group]) -> list[Overlay]:
    """Of every analysis that was made of all runs, the panels in which each has a curve of its own; controls and
    families of curves are left out."""
    found = []
    for name, content in groups[0].members[0].analyses.items():
        for place, panel in enumerate(content["panels"]):
            lines = [[_lines(member, name, place) for member in group.members] for group in groups]
            several = any(len(of_one) > 1 for of_group in lines for of_one in of_group)
            strands = [
                strand for number, of_group in enumerate(lines) for strand in _strands(number, of_group, several)
            ]
            if {strand.group for strand in strands} == set(range(len(groups))):
                found.append(Overlay(name, panel["x_title"], panel["y_title"], strands, panel["shares"]))
    return found


def against_first(overlay: Overlay) -> Overlay:
    """The same with every curve less the first group's of its kind, and without those that have none there. Where the
    first was not looked at in the same places, its values are taken from the line."""
    first = {strand.kind: strand for strand in overlay.strands if strand.group == 0}
    strands = []
    for strand in overlay.strands:
        if strand.kind not in first:
            continue
        basis = first[strand.kind]
        kept = [(x, y - float(np.interp(x, basis.x, basis.y)))
                for x, y in zip(strand.x, strand.y) if basis.x[0] <= x <= basis.x[-1]]  # fmt: skip
        if kept:
            strands.append(replace(strand, x=[x for x, _ in kept], y=[y for _, y in kept]))
    return replace(overlay, y_title=f"{overlay.y_title}, less the first's", strands=strands, shares=False)


def _lines(member: Member, name: str, place: int) -> list[dict[str, Any]]:
    panels = member.analyses[name]["panels"]
    return [curve for curve in panels[place]["curves"] if curve["role"] == "line"] if place < len(panels) else []


def _strands(number: int, by_seed: list[list[dict[str, Any]]], several: bool) -> Iterator[Strand]:
    """The curves that all seeds have: by their labels, or where each has but one, whatever they are called."""
    named = [{curve["label"] if several else "": curve for curve in curves} for curves in by_seed]
    for kind in named[0]:
        curves = [of_one[kind] for of_one in named if kind in of_one and of_one[kind]["x"]]
        if len(curves) < len(named):
            continue
        # Seeds need not have been looked at in the same places: what lies between two is taken from the line.
        first, last = max(min(curve["x"]) for curve in curves), min(max(curve["x"]) for curve in curves)
        x = sorted({at for curve in curves for at in curve["x"] if first <= at <= last})
        means = np.mean([np.interp(x, curve["x"], curve["y"]) for curve in curves], axis=0)
        if x:
            yield Strand(number, kind, x, means.tolist())


def save_overlays(comparison: Comparison, path: Path) -> None:
    """All overlays as a PNG: a colour a group, a kind of line a kind of curve."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.ticker import MaxNLocator

    shown = comparison.overlays()
    across = min(ACROSS, len(shown))
    down = -(-len(shown) // across)
    labels = [group.label for group in comparison.groups]
    width = 4.6 * across
    columns = min(len(labels), max(1, int(width * LETTERS / (max(map(len, labels)) + 8))))
    figure = Figure(figsize=(width, 3.4 * down + 0.18 * -(-len(labels) // columns)), layout="constrained")
    FigureCanvasAgg(figure)
    for place, overlay in enumerate(shown, 1):
        axes = figure.add_subplot(down, across, place)
        for strand in overlay.strands:
            axes.plot(strand.x, strand.y, color=COLOURS[strand.group % len(COLOURS)], linewidth=1.6, alpha=0.85,
                      linestyle=ROUNDS[overlay.kinds.index(strand.kind) % len(ROUNDS)],
                      marker="o" if len(strand.x) <= 12 else None, markersize=3.5)  # fmt: skip
        axes.set_title(overlay.title, fontsize=10)
        axes.set_xlabel(overlay.x_title)
        axes.set_ylabel(overlay.y_title)
        if all(x == round(x) for strand in overlay.strands for x in strand.x):
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        if overlay.shares:
            axes.set_ylim(-0.03, 1.05)
        if len(overlay.kinds) > 1:
            handles = [axes.plot([], [], color="0.3", linestyle=ROUNDS[number % len(ROUNDS)], label=kind)[0]
                       for number, kind in enumerate(overlay.kinds)]  # fmt: skip
            axes.legend(handles=handles, frameon=False, fontsize=8)
    handles = [Line2D([], [], color=COLOURS[number % len(COLOURS)], label=label) for number, label in enumerate(labels)]
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False, fontsize=8)
    figure.savefig(path, dpi=130)


def overlay_figure(go: Any, overlay: Overlay, labels: Sequence[str]) -> Any:
    """One overlay for the page; `go` is plotly's. The colours of groups stand in the page's table, so that the legend
    has the kinds alone."""
    figure = go.Figure()
    dashes = ("solid", "dash", "dot", "dashdot")
    for strand in overlay.strands:
        name = f"{labels[strand.group]}: {strand.kind}" if strand.kind else labels[strand.group]
        figure.add_scatter(
            x=strand.x, y=strand.y, name=name, showlegend=False, marker_size=4,
            mode="lines+markers" if len(strand.x) <= 12 else "lines",
            line_color=COLOURS[strand.group % len(COLOURS)],
            line_dash=dashes[overlay.kinds.index(strand.kind) % len(dashes)],
            hovertemplate=f"{name}<br>%{{x}}: %{{y:.4f}}<extra></extra>",
        )  # fmt: skip
    for number, kind in enumerate(overlay.kinds if len(overlay.kinds) > 1 else []):
        figure.add_scatter(x=[None], y=[None], name=kind, mode="lines", line_color="#444",
                           line_dash=dashes[number % len(dashes)])  # fmt: skip
    figure.update_layout(
        title={"text": overlay.title, "font_size": 14}, template="plotly_white", height=340, autosize=True,
        xaxis_title=overlay.x_title, yaxis_title=overlay.y_title,
        margin={"l": 50, "r": 15, "t": 45, "b": 45}, legend={"orientation": "h", "y": -0.25},
    )  # fmt: skip
    if overlay.shares:
        figure.update_yaxes(range=[-0.03, 1.05])
    return figure
