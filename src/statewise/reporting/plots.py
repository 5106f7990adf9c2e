"""Draws panels: as PNG files, and as interactive figures for web pages."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from statewise.durable import write_atomically
from statewise.figures import Curve, Panel
from statewise.reporting.multiples import small_multiples
from statewise.reporting.plain import for_plotly, plain_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = ["#3b6fb6", "#d1603d", "#3f8f5b", "#8a5aa8", "#b5892f", "#4a9aa8", "#a84a6b", "#6b6b6b"]
"""Assigned in order to groups, or to lines without a group."""
STYLES = {"-": "solid", "--": "dash", ":": "dot", "-.": "dashdot"}
"""Line styles of matplotlib and plotly, assigned in order to labels if colours mark groups."""
DASHES: dict[Any, str] = {
    **{":": "dot", "--": "dash", "-.": "dashdot"},
    **{(0, (8, 2)): "longdash", (0, (1, 5)): "1px,5px", (0, (8, 2, 1, 2)): "longdashdot"},
}
"""The same for controls."""
ACROSS, MULTIPLES_ACROSS = 3, 4
"""Plots side by side; if there are small multiples."""
SHOWN_OF_A_SERIES = 8
"""Curves of a series that the legend names, evenly spaced."""
DPI = 150
"""Of PNGs: a figure of three plots can be read at half its size."""
LETTERS = 11
"""Characters of a legend or title per inch."""
BELOW = 0.55
"""Inches from a plot down to the legend below it: the numbers and the title of its x axis lie between."""
BESIDE = 24
"""Characters of a line of a plot's own legend."""
MOST_BELOW = 3
"""A legend of a plot with more entries is placed beside the plot, not below."""
FEWEST_STEPS = 6
"""An x axis of whole numbers with fewer of them has a tick at each."""
LEAST_SPAN = 0.02
"""A linear y axis spans at least this share of the values that it shows: a smaller difference would look like one."""
LOWEST_SHARE = -1.0
"""An axis of shares goes down with its curves, as R^2 can be negative, but not below: such values tell no more."""
MOST_TICKS = 8
"""Of a logarithmic axis, evenly spaced."""
FEW_POINTS = 25
"""Lines with at most this many points mark each of them."""


@plain_text
def panels_png(panels: Sequence[Panel], groups: Sequence[str] = (), heading: str = "") -> bytes:
    """`draw_panels` as a PNG."""
    return png(draw_panels(panels, groups, heading))


def save_panels(panels: Sequence[Panel], path: Path, groups: Sequence[str] = (), heading: str = "") -> None:
    """`draw_panels` as a PNG file."""
    write_atomically(path, panels_png(panels, groups, heading))


def png(figure: Figure) -> bytes:
    """A figure as a PNG."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI)
    return buffer.getvalue()


@plain_text
def draw_panels(panels: Sequence[Panel], groups: Sequence[str] = (), heading: str = "") -> Figure:
    """Panels side by side below a heading; small multiples of a panel start a new row and share their y axis.

    `groups` get the colours in order. Their legend is below all plots, since labels may be as long as a plot is wide;
    small multiples have no legend but titles. No legend lies on a plot.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.transforms import ScaledTranslation

    split = [small_multiples(panel) for panel in panels]
    several = any(len(multiples) > 1 for multiples in split)
    across = min(MULTIPLES_ACROSS if several else ACROSS, max(len(panels), *map(len, split)))
    across = 2 if len(panels) == 4 and not several else across
    cells: list[tuple[int, Panel] | None] = []
    for number, multiples in enumerate(split):
        if len(multiples) > 1 or (number and len(split[number - 1]) > 1):
            cells += [None] * (-len(cells) % across)
        cells += [(number, panel) for panel in multiples]
    shown = [cell and len({curve.group for curve in cell[1].curves if curve.role in ("line", "raw")}) > 1
             for cell in cells]  # fmt: skip
    legend = groups if len(groups) == 1 or any(shown) else ()
    width, height = (3.7, 2.9) if several else (4.6 if groups else 5.2, 3.6)
    columns = min(len(legend), max(1, int(width * across * LETTERS / (max(map(len, legend)) + 8)))) if legend else 1
    whole = height * -(-len(cells) // across) + 0.22 * -(-len(legend) // columns)
    figure = Figure(figsize=(width * across, whole), layout="constrained")
    FigureCanvasAgg(figure)
    if heading:
        figure.suptitle(textwrap.fill(heading, int(width * across * LETTERS * 0.9)), fontsize=11)
    firsts: dict[int, Any] = {}
    linear: list[Any] = []
    named: list[str] = []
    for place, (number, panel) in ((place, cell) for place, cell in enumerate(cells, 1) if cell):
        axes = figure.add_subplot(-(-len(cells) // across), across, place, sharey=firsts.get(number))
        firsts.setdefault(number, axes)
        _draw(axes, panel, groups)
        if not panel.log_y and not panel.shares:
            linear.append(axes)
        if (place - 1) % across == 0 or not several:
            axes.set_ylabel(textwrap.fill(panel.y_title, int(height * LETTERS)))
        axes.set_title(wrapped(panel.title, int(width * LETTERS * 0.9)), fontsize=11)
        handles = dict(zip(*axes.get_legend_handles_labels()[::-1]))
        beside: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1.01, 0.5)}
        if groups and len(handles) <= MOST_BELOW:
            lower = axes.transAxes + ScaledTranslation(0, -BELOW, figure.dpi_scale_trans)
            beside = {"loc": "upper center", "bbox_to_anchor": (0.5, 0), "bbox_transform": lower, "ncols": len(handles)}
        if handles and list(handles) != named and (len(handles) > 1 or groups):
            names = [textwrap.fill(name, BESIDE) for name in handles]
            axes.legend(handles.values(), names, frameon=False, fontsize=10, **beside)
        named = list(handles)
    for axes in linear:  # once all that share an axis are drawn
        axes.set_ylim(*_widened(*axes.get_ylim()))
    if legend:
        keys = [Line2D([], [], color=_colour(place), label=label) for place, label in enumerate(legend)]
        figure.legend(handles=keys, loc="outside lower center", ncols=columns, frameon=False, fontsize=10)
    return figure


def wrapped(text: str, characters: int) -> str:
    """The text in lines of at most so many characters, with the line breaks that it has."""
    return "\n".join(line for part in text.split("\n") for line in textwrap.wrap(part, characters))


def _widened(low: float, high: float) -> tuple[float, float]:
    """Limits of an axis with at least `LEAST_SPAN`."""
    middle = (low + high) / 2
    half = max((high - low) / 2, LEAST_SPAN * abs(middle) / 2)
    return middle - half, middle + half


def _draw(axes: Any, panel: Panel, groups: Sequence[str]) -> None:
    """Draws one panel."""
    from matplotlib import colormaps
    from matplotlib.ticker import MaxNLocator, NullFormatter

    family = [curve for curve in panel.curves if curve.role == "series"]
    controls = [curve for curve in panel.curves if curve.role == "control"]
    labels = _labels(panel)
    for curve in panel.curves:
        dots = "o" if len(curve.x) <= FEW_POINTS else None
        if curve.role == "background":
            axes.plot(curve.x, curve.y, color="0.85", linewidth=0.9, zorder=1)
        elif curve.role == "control":
            style = list(DASHES)[controls.index(curve) % len(DASHES)]
            axes.plot(curve.x, curve.y, color="0.45", linewidth=1, linestyle=style, zorder=4, label=curve.label)
        elif curve.role == "raw":
            axes.plot(curve.x, curve.y, color=_colour_of(curve, panel, groups), linewidth=0.7, alpha=0.4,
                      marker="o" if len(curve.x) == 1 else None, markersize=2)  # fmt: skip
        elif curve.role == "series":
            rank = family.index(curve)
            shade = colormaps["viridis_r"](0.1 + 0.85 * rank / max(1, len(family) - 1))  # later is darker
            label = curve.label if rank in _shown(len(family)) else None
            axes.plot(curve.x, curve.y, color=shade, marker=dots, markersize=3.5, label=label)
        else:
            colour = _colour_of(curve, panel, groups)
            style = list(STYLES)[labels.index(curve.label) % len(STYLES)] if groups else "-"
            axes.plot(curve.x, curve.y, color=colour, linestyle=style, linewidth=1.6, marker=dots, markersize=3.5,
                      zorder=3, label=None if groups else curve.label)  # fmt: skip
            if curve.band:
                axes.fill_between(curve.x, *zip(*curve.band), color=colour, alpha=0.15, linewidth=0)
    if groups and len(labels) > 1:
        for place, label in enumerate(labels):
            axes.plot([], [], color="0.3", linestyle=list(STYLES)[place % len(STYLES)], label=label)
    axes.set_xlabel(panel.x_title)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if panel.log_x:
        axes.set_xscale("log")
        ticks = _spaced(sorted({x for curve in panel.curves for x in curve.x}))
        axes.set_xticks(ticks, [f"{x:,g}" for x in ticks], fontsize=9)
        axes.minorticks_off()
    elif _whole_steps(panel):
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, steps=[1, 2, 5, 10]))
    if panel.log_y:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, place: f"{value:,g}")  # the default writes mathematics
        axes.yaxis.set_minor_formatter(NullFormatter())
    if panel.shares:
        axes.set_ylim(*_range_of_shares(panel))


def interactive(panel: Panel, groups: Sequence[str]) -> Any:
    """A plotly figure with tooltips, without what the page shows above it, where long texts go on in further lines: the
    panel's title, and the colours of groups. The legend names the labels if there are several, and controls."""
    import plotly.graph_objects as go

    figure = go.Figure()
    labels, styles = _labels(panel), list(STYLES.values())
    controls = [curve for curve in panel.curves if curve.role == "control"]
    for curve in panel.curves:
        shown: dict[str, Any] = {"showlegend": False}
        if curve.role in ("line", "raw"):
            colour = _colour_of(curve, panel, groups)
            dash = styles[labels.index(curve.label) % len(styles)]
            if curve.band:
                low, high = zip(*curve.band)
                figure.add_scatter(x=[*curve.x, *curve.x[::-1]], y=[*high, *low[::-1]], fill="toself", line_width=0,
                                   mode="lines", fillcolor=colour, opacity=0.15, hoverinfo="skip",
                                   legendgroup=curve.group, showlegend=False)  # fmt: skip
            shown |= {"line_color": colour, "line_dash": dash, "legendgroup": curve.group}
            if curve.role == "raw":
                shown |= {"line_width": 0.8, "opacity": 0.4}
            else:
                shown["showlegend"] = len(labels) == 1 and not curve.group
        elif curve.role == "control":
            dash = list(DASHES.values())[controls.index(curve) % len(DASHES)]
            shown |= {"line_color": "#777", "line_width": 1, "line_dash": dash, "showlegend": True}
        else:
            shown |= {"line_color": "#ccc", "line_width": 1}
        name = for_plotly(", ".join(word for word in (curve.group, curve.label, curve.run) if word))
        figure.add_scatter(
            x=curve.x, y=curve.y, name=name, marker_size=4,
            mode="lines+markers" if len(curve.x) <= (FEW_POINTS if curve.role == "line" else 1) else "lines",
            hovertemplate=f"{name}<br>%{{x}}: %{{y:.4f}}<extra></extra>", **shown,
        )  # fmt: skip
    for place, label in enumerate(labels if len(labels) > 1 else []):
        figure.add_scatter(x=[None], y=[None], name=for_plotly(label), mode="lines", line_color="#444",
                           line_dash=styles[place % len(styles)])  # fmt: skip
    figure.update_layout(
        template="plotly_white", height=340, autosize=True,
        xaxis_title=for_plotly(panel.x_title), yaxis_title=for_plotly(panel.y_title),
        margin={"l": 50, "r": 15, "t": 15, "b": 45},
        # Above the plot: below it, several lines of a legend would lie on the title of the axis.
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
    )  # fmt: skip
    if panel.log_x:
        figure.update_xaxes(type="log")
    elif _whole_steps(panel) and _span(panel) < FEWEST_STEPS:  # else plotly divides them
        figure.update_xaxes(dtick=1)
    if panel.log_y:
        figure.update_yaxes(type="log")
    values = [y for curve in panel.curves for y in curve.y if math.isfinite(y)]
    if panel.shares:
        figure.update_yaxes(range=_range_of_shares(panel))
    elif values and not panel.log_y and _widened(min(values), max(values)) != (min(values), max(values)):
        figure.update_yaxes(range=_widened(min(values), max(values)))
    return figure


def _labels(panel: Panel) -> list[str]:
    """Labels of the lines, in order; single runs may have no line, their mean."""
    return list(dict.fromkeys(curve.label for role in ("line", "raw") for curve in panel.curves if curve.role == role))


def _spaced(ticks: list[float]) -> list[float]:
    """Of the sorted ticks of a logarithmic axis the last, and others far enough apart for their labels."""
    least = math.log(ticks[-1] / ticks[0]) / MOST_TICKS if ticks else 0.0
    kept = ticks[-1:]
    for tick in reversed(ticks[:-1]):
        if math.log(kept[-1] / tick) >= least:
            kept.append(tick)
    return kept[::-1]


def _range_of_shares(panel: Panel) -> tuple[float, float]:
    """The least and greatest y of the axis of a panel of shares."""
    least = min((y for curve in panel.curves for y in curve.y if math.isfinite(y)), default=0.0)
    return max(min(least, 0.0), LOWEST_SHARE) - 0.03, 1.05


def _whole_steps(panel: Panel) -> bool:
    return all(x == int(x) for curve in panel.curves for x in curve.x)


def _span(panel: Panel) -> float:
    every = [x for curve in panel.curves for x in curve.x]
    return max(every) - min(every) if every else 0.0


def _shown(count: int) -> set[int]:
    """Ranks that the legend names, in a series of `count` curves."""
    return {round(step * (count - 1) / (SHOWN_OF_A_SERIES - 1)) for step in range(SHOWN_OF_A_SERIES)}


def _colour(place: int) -> str:
    return COLOURS[place % len(COLOURS)]


def _colour_of(curve: Curve, panel: Panel, groups: Sequence[str]) -> str:
    """By group; without groups, by label."""
    return _colour(groups.index(curve.group) if curve.group else _labels(panel).index(curve.label))
