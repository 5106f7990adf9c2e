"""Draws panels with matplotlib: as PNG files, and as SVG elements of web pages.

Text of users (paths, names of atoms, labels) is shown literally: neither matplotlib nor a browser reads markup or
formulas in it.
"""

from __future__ import annotations

import functools
import html
import io
import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from statewise.reporting.figures import OBJECTIVE_COLOURS, Curve, Look, Panel, small_multiples
from statewise.runtime.durable import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = list(OBJECTIVE_COLOURS.values())
"""Assigned in order to lines without a group."""
NO_GROUPS: Mapping[str, Look] = {}
STYLES: list[Any] = ["-", "--", ":", "-.", (0, (9, 2)), (0, (1, 4)), (0, (9, 2, 2, 2)), (0, (3, 3))]
"""Line styles, assigned in order to labels if colours mark groups."""
DASHES: list[Any] = [":", "--", "-.", (0, (8, 2)), (0, (1, 5)), (0, (8, 2, 1, 2))]
"""Line styles of controls."""
GREYS = ("#737373", "#a6a6a6", "#404040")
"""Greys of controls: the first ones differ in their dashes, further ones also in the grey."""
ACROSS, MULTIPLES_ACROSS = 3, 4
"""Number of plots side by side; the second if there are small multiples."""
SHOWN_OF_A_SERIES = 8
"""Number of curves of a series that the legend names, evenly spaced."""
DPI = 150
"""Resolution of PNGs: a figure of three plots can be read at half its size."""
BESIDE = 1.9
"""Largest width in inches of a line of a plot's own legend."""
MOST_NAMED, ASIDE = 6, 0.9
"""Names stand at the ends of their lines if there are at most so many, and none moves further from its end than this
share of its height; else in a legend."""
AT_THE_END = 0.94
"""A line ends at the right if it ends behind this share of the axis."""
HANDLE = 0.75
"""Inches that an entry of a legend takes besides its text."""
LINE = 0.19
"""Inches from line to line of a legend."""
LEAST_SPAN = 0.02
"""A linear y axis spans at least this share of the values that it shows: a smaller difference would look like one."""
LOWEST_SHARE = -1.0
"""An axis of shares goes down with its curves, as R^2 can be negative, but not below: lower values say no more."""
MOST_TICKS = 8
"""The largest number of ticks on a logarithmic axis, if they are evenly spaced."""
FEW_POINTS = 25
"""Lines with at most this many points mark each of them."""
PAGE_SIZE = (4.6, 3.3)
"""Inches of a plot on a page, without its legend; the page scales it to the width of its place."""
TIPS_APART = 3.0
"""Least distance of tooltips of one curve, in points."""
SVG_STYLE = """
svg.panel { display: block; width: 100%; height: auto; max-width: 560px; }
svg.panel text { fill: var(--ink); } svg.panel circle { fill: transparent; }
svg.panel circle:hover { stroke: var(--soft); }
svg.panel [style*="#737373"] { stroke: var(--soft) !important; }
svg.panel text[style*="#737373"] { fill: var(--soft) !important; stroke: none !important; }
@media (prefers-color-scheme: dark) { svg.panel text[style*="fill"] { filter: brightness(1.35); } }
"""
"""CSS of `panel_svg`, beside `reporting.figures.STYLE`."""
BELOW_ALL = "at the lower edge: 0 or less"
MEANS = "Thick lines: means over seeds; thin lines: single runs; bands: their range."
CARRIED = (
    "A run that ended before others, such as a solved one, counts with its last value from there on (dot: where it "
    "ended)."
)


Given = ParamSpec("Given")
Drawn = TypeVar("Drawn")


def plain_text(draw: Callable[Given, Drawn]) -> Callable[Given, Drawn]:
    """Decorates a function that draws with matplotlib: dollar signs in texts do not start formulas."""

    @functools.wraps(draw)
    def drawn(*args: Given.args, **fields: Given.kwargs) -> Drawn:
        import matplotlib

        # Tick labels are made while the figure is saved, so saving must happen inside, too.
        with matplotlib.rc_context({"text.parse_math": False, "text.usetex": False}):
            return draw(*args, **fields)

    return drawn


@plain_text
def panels_png(panels: Sequence[Panel], groups: Mapping[str, Look] = NO_GROUPS, heading: str = "") -> bytes:
    """`draw_panels` as a PNG."""
    return png(draw_panels(panels, groups, heading))


def save_panels(panels: Sequence[Panel], path: Path, groups: Mapping[str, Look] = NO_GROUPS, heading: str = "") -> None:
    """`draw_panels` as a PNG file."""
    write_atomically(path, panels_png(panels, groups, heading))


def png(figure: Figure) -> bytes:
    """A figure as a PNG."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI)
    return buffer.getvalue()


@plain_text
def draw_panels(panels: Sequence[Panel], groups: Mapping[str, Look] = NO_GROUPS, heading: str = "") -> Figure:
    """Panels side by side below a heading; small multiples of a panel start a new row and share their y axis.

    `groups`: how the lines of each group look. With groups one legend below all plots names them, the labels of lines
    and the controls, and says what means and bands are; without, names stand at the ends of their lines where they fit,
    and else in a legend beside the plot. All texts are broken to the room that they have, and rows are as high as their
    legends: nothing is cut off or lies on a plot.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    split = [small_multiples(panel) for panel in panels]
    several = any(len(multiples) > 1 for multiples in split)
    across = min(MULTIPLES_ACROSS if several else ACROSS, max(len(panels), *map(len, split)))
    across = 2 if len(panels) == 4 and not several else across
    cells: list[tuple[int, Panel] | None] = []
    for number, multiples in enumerate(split):
        if len(multiples) > 1 or (number and len(split[number - 1]) > 1):
            cells += [None] * (-len(cells) % across)
        cells += [(number, panel) for panel in multiples]
    down = -(-len(cells) // across)
    width, height = (3.7, 2.9) if several else (4.6 if groups else 5.2, 3.6)
    shown = [cell[1] for cell in cells if cell]
    controls = list(dict.fromkeys(c.label for panel in shown for c in panel.curves if c.role == "control"))
    labels = [label for label in dict.fromkeys(label for panel in shown for label in _labels(panel)) if label]
    figure = Figure(figsize=(width * across, height * down), layout="constrained")
    FigureCanvasAgg(figure)
    firsts: dict[int, Any] = {}
    linear: list[Any] = []
    drawn: list[tuple[Any, Panel]] = []
    for place, (number, panel) in ((place, cell) for place, cell in enumerate(cells, 1) if cell):
        axes = figure.add_subplot(down, across, place, sharey=firsts.get(number))
        firsts.setdefault(number, axes)
        scaled, lowest = on_its_axes(panel)
        _draw(axes, scaled, groups, labels if groups else _labels(panel), controls if groups else None)
        below = "" if lowest is None else f"\n{BELOW_ALL}"
        axes.set_xlabel(fitted(panel.x_title + below, width * 0.85, 10))
        if not scaled.log_y and not panel.shares:
            linear.append(axes)
        if (place - 1) % across == 0 or not several:
            axes.set_ylabel(fitted(panel.y_title, height * 0.8, 10))
        axes.set_title(fitted(panel.title, width * 0.85, 11), fontsize=11)
        drawn.append((axes, scaled))
    for axes in linear:  # once all that share an axis are drawn
        axes.set_ylim(*_widened(*axes.get_ylim()))
    tallest = 0.0 if groups else _name_lines(drawn, height)
    whole = max(height, tallest + 1.0) * down + _legend(figure, shown, groups, labels, controls)
    if heading:
        figure.suptitle(fitted(heading, width * across * 0.95, 11), fontsize=11)
        whole += LINE * figure.get_suptitle().count("\n")
    figure.set_size_inches(width * across, whole)
    return figure


def _name_lines(drawn: Sequence[tuple[Any, Panel]], height: float) -> float:
    """Names the lines of plots without groups, of plots with the same lines only in the first. Returns the height in
    inches of the tallest legend."""
    before: list[str] = []
    tallest = 0.0
    for axes, panel in drawn:
        handles = _to_name(axes, panel)
        if list(handles) != before and not _at_ends(axes, panel, height):
            names = [fitted(name, BESIDE, 10) for name in handles]
            tallest = max(tallest, LINE * sum(name.count("\n") + 1.2 for name in names))
            axes.legend(
                handles.values(), names, frameon=False, fontsize=10, loc="center left", bbox_to_anchor=(1.01, 0.5)
            )
        before = list(handles)
    return tallest


def _to_name(axes: Any, panel: Panel) -> dict[str, Any]:
    """The lines of a plot by their names, if they need any: the only line of a panel does not."""
    named = dict(zip(*axes.get_legend_handles_labels()[::-1]))
    return named if len(named) > 1 or any(curve.role == "control" for curve in panel.curves) else {}


def _at_ends(axes: Any, panel: Panel, height: float) -> bool:
    """Writes the names of a plot's lines at their right ends, in their colours, if they fit beside each other, and
    returns whether they do. `height`: inches of the plot with its titles."""
    ends = []
    lines = _to_name(axes, panel)
    if not lines:
        return True
    for name, line in lines.items():
        points = [(x, y) for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True) if math.isfinite(y)]
        across, up = axes.transLimits.transform(axes.transScale.transform(points[-1])) if points else (0.0, 0.0)
        if across < AT_THE_END:
            return False
        ends.append((float(up), fitted(name, BESIDE, 10), line.get_color()))
    if len(ends) > MOST_NAMED or any(curve.role == "series" for curve in panel.curves):
        return False
    ends.sort(key=lambda end: end[0])
    heights = [LINE * (name.count("\n") + 1) / (0.75 * height) for _, name, _ in ends]
    places = _apart([up for up, *_ in ends], heights)
    for (up, *_), place, tall in zip(ends, places, heights, strict=True):
        if abs(place - up) > ASIDE * tall or not tall / 2 - 0.1 <= place <= 1.1 - tall / 2:
            return False
    for (_, name, colour), place in zip(ends, places, strict=True):
        axes.annotate(
            name,
            (1, place),
            (6, 0),
            xycoords="axes fraction",
            textcoords="offset points",
            va="center",
            fontsize=10,
            color=colour,
        )
    return True


def _apart(middles: Sequence[float], heights: Sequence[float]) -> list[float]:
    """The sorted middles of texts of these heights, moved as little as possible, by least squares, so that none lies on
    another."""
    steps = ((one + other) / 2 for one, other in itertools.pairwise(heights))
    below = list(itertools.accumulate(steps, initial=0.0))
    blocks: list[list[float]] = []  # isotonic regression: neighbours in the wrong order get their mean
    for middle, under in zip(middles, below, strict=True):
        blocks.append([middle - under])
        while len(blocks) > 1 and sum(blocks[-2]) / len(blocks[-2]) > sum(blocks[-1]) / len(blocks[-1]):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    means = [sum(block) / len(block) for block in blocks for _ in block]
    return [mean + under for mean, under in zip(means, below, strict=True)]


def _legend(
    figure: Figure, shown: Sequence[Panel], groups: Mapping[str, Look], labels: Sequence[str], controls: Sequence[str]
) -> float:
    """Draws the one legend of a figure with groups, and returns its height in inches."""
    from matplotlib.lines import Line2D

    if not groups:
        return 0.0
    room = figure.get_size_inches()[0]
    keys: list[Any] = []
    if any(panel.title not in groups for panel in shown):
        few = {curve.group for panel in shown for curve in panel.curves if len(curve.x) <= FEW_POINTS}
        keys += [
            Line2D([], [], color=look.colour, label=name, marker=look.marker if name in few else None, markersize=4)
            for name, look in groups.items()
        ]
    keys += _keys(labels, controls)
    says = " ".join(
        [
            *[MEANS] * any(curve.band for panel in shown for curve in panel.curves),
            *[CARRIED] * any(curve.carried is not None for panel in shown for curve in panel.curves),
        ]
    )
    if not keys and not says:
        return 0.0
    for key in keys:
        key.set_label(fitted(str(key.get_label()), room - HANDLE - 0.3, 10))
    widest = max((width_of(line, 10) for key in keys for line in str(key.get_label()).split("\n")), default=0.0)
    columns = max(1, min(len(keys), int((room - 0.2) / (widest + HANDLE))))
    title = fitted(says, room * 0.95, 9)
    figure.legend(
        handles=keys,
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        fontsize=10,
        title=title,
        title_fontsize=9,
    )
    heights = [str(key.get_label()).count("\n") + 1.2 for key in keys]
    rows = -(-len(keys) // columns)
    lines = max((sum(heights[at : at + rows]) for at in range(0, len(keys), max(1, rows))), default=0.0)
    return LINE * (lines + title.count("\n") + bool(title)) + 0.1


def _keys(labels: Sequence[str], controls: Sequence[str]) -> list[Any]:
    """Entries of a legend: the labels with their line styles, if there are several, and the controls."""
    from matplotlib.lines import Line2D

    keys = [Line2D([], [], linewidth=1, label=label, **_control(place)) for place, label in enumerate(controls)]
    if len(labels) > 1:
        keys = [
            *(Line2D([], [], color="0.4", linestyle=_style(place), label=label) for place, label in enumerate(labels)),
            *keys,
        ]
    return keys


@functools.lru_cache(4096)
def width_of(text: str, size: float) -> float:
    """The width in inches of a line of text in a font of `size` points."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    width, _, _ = text_to_path.get_text_width_height_descent(text, FontProperties(size=size), ismath=False)
    return float(width) / 72


def fitted(text: str, inches: float, size: float) -> str:
    """The text in lines that are at most so wide in a font of `size` points, with the line breaks that it has; only a
    word that is too long for a line is broken itself."""
    lines = []
    for part in text.split("\n"):
        line = ""
        for word in part.split():
            longer = f"{line} {word}" if line else word
            if width_of(longer, size) <= inches:
                line = longer
                continue
            lines += [line] * bool(line)
            while width_of(word, size) > inches and len(word) > 1:
                cut = next(at for at in range(len(word) - 1, 0, -1) if at == 1 or width_of(word[:at], size) <= inches)
                lines.append(word[:cut])
                word = word[cut:]
            line = word
        lines.append(line)
    return "\n".join(lines)


def on_its_axes(panel: Panel) -> tuple[Panel, float | None]:
    """The panel as its axes can show it, and the y at which values of 0 and below stand on a logarithmic y axis, a
    decade below all others; None if all are positive. A y axis without positive values, or an x axis with values of 0
    or below, is not logarithmic."""
    if panel.log_x and any(x <= 0 for curve in panel.curves for x in curve.x):
        panel = replace(panel, log_x=False)
    if not panel.log_y:
        return panel, None
    values = [y for curve in panel.curves for y in curve.y if math.isfinite(y)]
    positive = [y for y in values if y > 0]
    if not positive:
        return replace(panel, log_y=False), None
    if len(positive) == len(values):
        return panel, None
    lowest = 10.0 ** (math.floor(math.log10(min(positive))) - 1)

    def raised(y: float) -> float:
        return lowest if y <= 0 else y

    curves = [
        replace(
            curve,
            y=[*map(raised, curve.y)],
            band=curve.band and [(raised(low), raised(high)) for low, high in curve.band],
        )
        for curve in panel.curves
    ]
    return replace(panel, curves=curves), lowest


def _widened(low: float, high: float) -> tuple[float, float]:
    """Limits of an axis with at least `LEAST_SPAN`."""
    middle = (low + high) / 2
    half = max((high - low) / 2, LEAST_SPAN * abs(middle) / 2)
    return middle - half, middle + half


def _draw(
    axes: Any, panel: Panel, groups: Mapping[str, Look], labels: Sequence[str], controls: Sequence[str] | None
) -> None:
    """Draws one panel. `labels`: those whose line styles or colours differ, in order; `controls`: likewise, None: those
    of the panel."""
    from matplotlib import colormaps
    from matplotlib.ticker import MaxNLocator, NullFormatter

    family = [curve for curve in panel.curves if curve.role == "series"]
    if controls is None:
        controls = list(dict.fromkeys(curve.label for curve in panel.curves if curve.role == "control"))
    for curve in (curve for curve in panel.curves if len(curve.x)):
        look = _look(curve, groups, labels)
        dots = look.marker if len(curve.x) <= FEW_POINTS else None
        if curve.role == "background":
            axes.plot(curve.x, curve.y, color="0.85", linewidth=0.9, zorder=1)
        elif curve.role == "control":
            axes.plot(
                curve.x, curve.y, linewidth=1, zorder=4, label=curve.label, **_control(controls.index(curve.label))
            )
        elif curve.role == "raw":
            axes.plot(
                curve.x,
                curve.y,
                color=look.colour,
                linewidth=0.7,
                alpha=0.4,
                marker="o" if len(curve.x) == 1 else None,
                markersize=2,
            )
            if _ended(panel, curve):
                axes.plot(curve.x[-1:], curve.y[-1:], color=look.colour, alpha=0.7, marker="o", markersize=3)
        elif curve.role == "series":
            rank = family.index(curve)
            shade = colormaps["viridis_r"](0.1 + 0.85 * rank / max(1, len(family) - 1))  # later is darker
            label = curve.label if rank in _shown(len(family)) else None
            axes.plot(curve.x, curve.y, color=shade, marker=dots, markersize=3.5, label=label)
        else:
            style = _style(labels.index(curve.label)) if curve.label and (groups or not curve.colour) else "-"
            axes.plot(
                curve.x,
                curve.y,
                color=look.colour,
                linestyle=style,
                linewidth=1.6,
                marker=dots,
                markersize=3.5,
                zorder=3,
                label=None if groups else curve.label,
            )
            if curve.band:
                axes.fill_between(curve.x, *zip(*curve.band), color=look.colour, alpha=0.15, linewidth=0)
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


def _ended(panel: Panel, curve: Curve) -> bool:
    """Whether a run ended before the mean of its group, which holds its last value from there on."""
    return any(
        mean.carried is not None and (mean.group, mean.label) == (curve.group, curve.label) and curve.x[-1] < mean.x[-1]
        for mean in panel.curves
    )


def _look(curve: Curve, groups: Mapping[str, Look], labels: Sequence[str]) -> Look:
    """The look of a curve: its own colour, or that of its group, or one by its label."""
    if curve.colour:
        return Look(curve.colour)
    place = labels.index(curve.label) if curve.label in labels else 0
    return groups.get(curve.group) or Look(COLOURS[place % len(COLOURS)])


def _style(place: int) -> Any:
    return STYLES[place % len(STYLES)]


def _control(place: int) -> dict[str, Any]:
    """Colour and line style of a control."""
    return {"color": GREYS[place // len(DASHES) % len(GREYS)], "linestyle": DASHES[place % len(DASHES)]}


@plain_text
def panel_svg(panel: Panel, groups: Mapping[str, Look] = NO_GROUPS) -> str:
    """A panel as an SVG element of a page, with the values of points as tooltips, and without what the page shows above
    it: the panel's title, and the colours of groups. Names of controls, and of lines without a group, stand at the ends
    of their lines where they fit, and else in a legend, as do several labels of groups. Texts that have no colour of
    their own take that of the page's text by `SVG_STYLE`. Without curves, it is an empty frame."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    width, height = PAGE_SIZE
    scaled, lowest = on_its_axes(panel)
    labels = _labels(scaled)
    controls = list(dict.fromkeys(curve.label for curve in panel.curves if curve.role == "control"))
    # Texts stay texts, in a size that does not depend on the font of the browser. Ids depend on contents alone.
    with matplotlib.rc_context(
        {"svg.fonttype": "none", "svg.hashsalt": "statewise", "axes.edgecolor": "#8a8a8a", "figure.dpi": 72}
    ):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        _draw(axes, scaled, groups, labels, controls if groups else None)
        if not scaled.log_y and not panel.shares:
            axes.set_ylim(*_widened(*axes.get_ylim()))
        axes.set_xlabel(fitted(panel.x_title + ("" if lowest is None else f"\n{BELOW_ALL}"), width * 0.85, 10))
        axes.set_ylabel(fitted(panel.y_title, height * 0.8, 10))
        if groups and len(labels) > 1:
            keys = _keys(labels, controls)
        else:
            keys = [] if _at_ends(axes, scaled, height) else list(_to_name(axes, scaled).values())
        for key in keys:
            key.set_label(fitted(str(key.get_label()), width - HANDLE - 0.3, 10))
        lines = sum(str(key.get_label()).count("\n") + 1.2 for key in keys)
        figure.set_size_inches(width, height + LINE * lines)
        if keys:
            figure.legend(handles=keys, loc="outside upper left", frameon=False, fontsize=10)
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # else places would change after the tooltips are placed
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    drawn = re.sub(r"\s*<metadata>.*?</metadata>", "", buffer.getvalue(), flags=re.DOTALL)
    drawn = re.sub(r'^.*?<svg [^>]*?(viewBox="[^"]*")[^>]*>', r"<svg \1>", drawn, count=1, flags=re.DOTALL)
    drawn = drawn.replace("<use xlink:href=", "<use href=")
    drawn = re.sub(r' id="[^"]*_\d+"', "", drawn)  # those of groups, which a page with several panels would repeat
    name = html.escape(panel.title or panel.y_title)
    head, tail = f'<svg class="panel" role="img" aria-label="{name}" ', "".join(_tips(axes, panel, scaled))
    return f"{head}{drawn.removeprefix('<svg ').rstrip().removesuffix('</svg>')}{tail}</svg>"


def _tips(axes: Any, panel: Panel, scaled: Panel) -> Iterator[str]:
    """Invisible circles on the points of the curves, with names and values as tooltips; of points that are closer than
    `TIPS_APART`, only the first has one."""
    height = axes.figure.bbox.height
    for curve, original in zip(scaled.curves, panel.curves, strict=True):
        name = html.escape(", ".join(word for word in (curve.group, curve.label, curve.run) if word))
        last = -math.inf
        for x, y, value in zip(curve.x, curve.y, original.y, strict=True):
            across, up = (float(at) for at in axes.transData.transform((x, y)))
            if math.isfinite(up) and across - last >= TIPS_APART:
                last = across
                told = f"<title>{name}\n{x:,g}: {value:.4f}</title>"
                yield f'<circle cx="{across:.1f}" cy="{height - up:.1f}" r="4">{told}</circle>'


def _labels(panel: Panel) -> list[str]:
    """Labels of the lines, in order; single runs may have no line, their mean."""
    return list(dict.fromkeys(curve.label for role in ("line", "raw") for curve in panel.curves if curve.role == role))


def _spaced(ticks: list[float]) -> list[float]:
    """The last of the sorted ticks of a logarithmic axis, and others far enough apart for their labels."""
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


def _shown(count: int) -> set[int]:
    """Ranks that the legend names, in a series of `count` curves."""
    return {round(step * (count - 1) / (SHOWN_OF_A_SERIES - 1)) for step in range(SHOWN_OF_A_SERIES)}
