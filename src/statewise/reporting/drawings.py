"""Drawings of lines and points, such as maps, as PNG files and interactive web pages; star graphs as SVG."""

from __future__ import annotations

import html
import itertools
import json
import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from statewise.reporting.figures import STYLE, Drawing, Layer
from statewise.reporting.plots import fitted, plain_text, png, width_of
from statewise.runtime.durable import write_atomically

PLAIN, STANDING_OUT = "#20262e", "#d62f2f"
SIDE = 7.0
"""Inches of the longer side of a drawing."""
LINE = 0.17
"""Inches from line to line of a title."""
HEADING_LINE = 0.2
"""Inches from line to line of the heading."""
BELOW = 0.1
"""Inches below the last row, without a legend."""
AXIS = 0.25
"""Inches for the title of an axis."""
DOT = 5.0
"""Area in square points of a dot of size 1."""
ACROSS = 4
MARGIN = 0.03
"""Space around what a drawing shows, as a share of its longer side."""
GRID = 20_000
"""Places on pages are whole numbers from 0 to this one, which take half the space of decimals."""
HEAD = """<!doctype html><html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>statewise: {title}</title>
<style>{style}</style></head><body>
<h1>{title}</h1>
"""
DRAWINGS_STYLE = """
.drawings { display: grid; gap: 1.2rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 290px), 1fr)); }
.drawings.compared { grid-template-columns: minmax(0, 1fr); }
@media (min-width: 700px) { .drawings.compared { grid-template-columns: minmax(0, 2fr) minmax(0, 3fr); }
  .drawings.compared > .pinned { position: sticky; top: 1rem; align-self: start; } }
.drawing { min-width: 0; margin: 0; position: relative; }
.drawing canvas { display: block; width: 100%; touch-action: pan-y; }
.drawing .canvas { position: relative; } .drawing input { width: 100%; accent-color: #3b6fb6; }
.drawing button { font: inherit; color: inherit; background: var(--faint); border: 1px solid var(--line);
  border-radius: 5px; min-width: 2.2em; cursor: pointer; } .drawing button:disabled { opacity: .4; }
.drawing .tip { position: absolute; pointer-events: none; background: var(--back); border: 1px solid var(--line);
  border-radius: 4px; padding: 0 .4em; font-size: .85rem; z-index: 2; }
.drawing p { font-size: .85rem; color: var(--soft); margin: .2rem 0; } .drawing .new { color: #d64545; }
"""
DRAWINGS_NOTE = "Zoom with the buttons, a double click, or the mouse wheel and Ctrl; then drag to move."
BEND = 0.1
"""Curvature of highlighted lines, as a share of their length, so that they do not cover plain lines."""


def save_drawings(drawings: Sequence[Drawing], path: Path, heading: str = "") -> None:
    """Drawings as a PNG file."""
    write_atomically(path, drawings_png(drawings, heading))


@plain_text
def drawings_png(drawings: Sequence[Drawing], heading: str = "") -> bytes:
    """Drawings as a PNG, at most `ACROSS` side by side, below a heading."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.collections import LineCollection
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    across, down = min(ACROSS, len(drawings)), -(-len(drawings) // ACROSS)
    side = SIDE * (0.7 if across > 1 else 1) * (0.7 if across > 2 else 1)
    limits = _limits(drawings)
    sizes = [_size(limit) * side for limit in limits]
    tall = max(size[1] for size in sizes)
    y_titles = [fitted(drawing.y_title, tall, 8) for drawing in drawings]
    beside = _room(y_titles)
    # Texts at the border of a drawing reach out of it by half their width.
    edge = max((width_of(text.text, 8) / 2 for drawing in drawings for text in drawing.texts), default=0.0)
    cells = [max(3.2, size[0] + beside + 2 * edge) for size in sizes]
    width = max(sum(cells[at : at + across]) for at in range(0, len(cells), across))
    titles = [fitted(drawing.title, width / across * 0.95, 9) for drawing in drawings]
    x_titles = [fitted(drawing.x_title, width / across - beside - 0.1, 8) for drawing in drawings]
    under = _room(x_titles)
    above = max(LINE * (title.count("\n") + 1) for title in titles) + 0.2
    keys = {layer.label: layer.stands_out for drawing in drawings for layer in drawing.layers}
    notes = fitted(" ".join(dict.fromkeys(one.note for one in drawings if one.note)), width * 0.95, 9)
    legend = 0.3 if len(keys) > 1 else 0.0
    below = BELOW + legend + (LINE * (notes.count("\n") + 1) if notes else 0.0)
    head = fitted(heading, width * 0.95, 11)
    top = (HEADING_LINE * (head.count("\n") + 1) + 0.1) if head else 0.0
    height = (tall + above + under) * down + below + top
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    if head:
        figure.text(0.5, 1 - 0.1 / height, head, ha="center", va="top", fontsize=11)
    # By hand: a constrained layout cuts off titles of drawings that are smaller than their place.
    for place, drawing in enumerate(drawings):
        row, column = divmod(place, across)
        room = width / across
        corner = (column * room + beside + edge + 0.02, height - top - (row + 1) * (tall + above + under) + under)
        axes = figure.add_axes(
            (corner[0] / width, corner[1] / height, (room - beside - 2 * edge - 0.06) / width, tall / height)
        )
        many = max((len(layer.lines) for layer in drawing.layers), default=1)
        stroke = float(np.clip(45 / np.sqrt(max(1, many)), 0.5, 1.8))
        for layer in drawing.layers:
            colour = STANDING_OUT if layer.stands_out else PLAIN
            axes.add_collection(LineCollection(list(_curves(layer)), colors=colour, linewidths=stroke, alpha=0.8))
        for points in drawing.points:
            area = DOT * points.size**2
            x, y = np.array(points.places).reshape(-1, 2).T
            axes.scatter(x, y, c=points.colours, s=area, linewidths=0, zorder=3)
        for text in drawing.texts:
            axes.annotate(
                text.text, (text.place[0], text.place[1]), ha="center", va="center", fontsize=8, annotation_clip=False
            )
        low, high = limits[place]
        axes.set_aspect("equal", anchor="N")
        axes.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]))
        axes.set_title(titles[place], fontsize=9)
        if drawing.x_title or drawing.y_title:
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set_visible(False)
            axes.set_xlabel(x_titles[place], fontsize=8)
            axes.set_ylabel(y_titles[place], fontsize=8)
        else:
            axes.set_axis_off()
    handles = [Line2D([], [], color=STANDING_OUT if out else PLAIN, label=label) for label, out in keys.items()]
    if legend:
        figure.legend(
            handles=handles,
            loc="lower center",
            ncols=len(keys),
            frameon=False,
            fontsize=8,
            bbox_to_anchor=(0.5, (below - legend) / height),
        )
    if notes:
        figure.text(0.5, 0.05 / height, notes, ha="center", va="bottom", fontsize=9)
    return png(figure)


def save_page(drawings: Sequence[Drawing], path: Path, title: str, finding: str = "") -> None:
    """The drawings as one HTML page that opens without a network, below a title and what was found."""
    head = HEAD.format(title=html.escape(title), style=STYLE + DRAWINGS_STYLE)
    note = f'<p class="note">{DRAWINGS_NOTE}</p>\n'
    paragraph = f'<p class="finding">{html.escape(finding)}</p>\n' if finding else ""
    content = f"{head}{paragraph}{note}{drawings_html(drawings)}\n<script>{script()}</script></body></html>\n"
    write_atomically(path, content.encode())


def script() -> str:
    """The script that draws the elements of `drawings_html`, once per page."""
    return (resources.files(__package__) / "drawings.js").read_text(encoding="utf-8")


@dataclass(frozen=True)
class _Plot:
    """One plot of a page: a drawing, or a series of them over training, with a slider."""

    frames: list[Drawing]
    limits: np.ndarray
    """Limits of all frames, (2, 2)."""


def drawings_html(drawings: Sequence[Drawing]) -> str:
    """Elements of a page. Those of one plane that follow each other are shown together: the true one stays in view
    beside the others, and those over training are one plot with a slider for the step.

    They are drawn by `script` on two-dimensional canvases: browsers keep only some 16 WebGL contexts of a page, and
    blank the plots of the others.
    """
    parts = []
    limited = list(zip(drawings, _limits(drawings), strict=True))
    for (plane, _), alike in itertools.groupby(limited, lambda one: (one[0].plane, one[0].title.rpartition("\n")[0])):
        plots = []
        for series, group in itertools.groupby(alike, lambda one: one[0].step is not None and bool(one[0].plane)):
            some = list(group)
            plots += [_Plot([one for one, _ in some], some[0][1])] if series else [_Plot([one], at) for one, at in some]
        pinned = [plot for plot in plots if plane and plot.frames[0].true]
        others = [plot for plot in plots if plot not in pinned]
        others.sort(key=lambda plot: len(plot.frames) == 1)  # the one over training first
        if pinned and others:
            said = {one.note for plot in pinned for one in plot.frames}
            left, right = "".join(map(_element, pinned)), "".join(_element(plot, said) for plot in others)
            parts.append(
                f'<div class="drawings compared"><div class="pinned">{left}</div>'
                f'<div class="drawings">{right}</div></div>'
            )
        else:
            parts.append(f'<div class="drawings">{"".join(map(_element, plots))}</div>')
    return "\n".join(parts)


def _element(plot: _Plot, said: Collection[str] = ()) -> str:
    """A plot as an element of a page, with its data, and its note unless it is among those `said` already."""
    first, last = plot.frames[0], plot.frames[-1]
    named = any(
        any(names)
        for frame in plot.frames
        for names in (*(layer.names for layer in frame.layers), *(dots.names for dots in frame.points))
    )
    data = {
        "limits": plot.limits.tolist(),
        "grid": GRID,
        "x_title": last.x_title,
        "y_title": last.y_title,
        "named": named,
        "frames": [_frame(frame, plot.limits) for frame in plot.frames],
    }
    # In a script element only `<` could end it or begin a comment.
    content = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    slider = ""
    if len(plot.frames) > 1:
        most = len(plot.frames) - 1
        steps = f"from {first.step:,} to {last.step:,}"
        slider = f'<label>Training step, {steps}<input type="range" min="0" max="{most}" value="{most}"></label>'
    keys = {layer.label: layer.stands_out for layer in last.layers}
    legend = " ".join(
        f'<span class="{"new" if out else ""}">&#9644; {html.escape(label)}</span>' for label, out in keys.items()
    )
    note = f"<p>{legend}</p>" * (len(keys) > 1) + f"<p>{html.escape(last.note)}</p>" * (last.note not in {"", *said})
    buttons = "".join(
        f'<button type="button" data-by="{by}" aria-label="{name}" title="{name}">{sign}</button> '
        for by, sign, name in (("1.6", "+", "Zoom in"), ("0.625", "&#8722;", "Zoom out"), ("0", "&#8634;", "Show all"))
    )
    return (
        f'<figure class="drawing"><script type="application/json">{content}</script><h3>{html.escape(last.title)}</h3>'
        f'{slider}<div class="canvas"><canvas role="img" aria-label="{html.escape(last.title)}"></canvas>'
        f'<div class="tip" hidden></div></div>{buttons}{note}</figure>'
    )


def _frame(drawing: Drawing, limits: np.ndarray) -> dict[str, Any]:
    """A drawing as JSON values."""
    low, size = limits[0], limits[1] - limits[0]

    def packed(places: np.ndarray) -> Any:
        return np.round((places - low) / size * GRID).astype(np.int64).tolist()

    palette = list(dict.fromkeys(colour for points in drawing.points for colour in points.colours))
    numbers = {colour: number for number, colour in enumerate(palette)}
    return {
        "title": drawing.title,
        "layers": [
            {"lines": packed(_curves(layer)), "names": layer.names, "stands_out": layer.stands_out}
            for layer in drawing.layers
        ],
        "points": [
            {
                "places": packed(np.array(points.places, float).reshape(-1, 2)),
                "names": points.names,
                "colours": [numbers[colour] for colour in points.colours],
                "size": points.size,
            }
            for points in drawing.points
        ],
        "palette": palette,
        "texts": [{"place": text.place, "text": text.text} for text in drawing.texts],
    }


def _room(titles: Sequence[str]) -> float:
    """Inches that the titles of an axis take."""
    return max((AXIS + 0.13 * title.count("\n") for title in titles if title), default=0.0)


def _curves(layer: Layer) -> np.ndarray:
    """(m, p, 2) points of each line: its ends and midpoint, or an arc."""
    ends = np.array(layer.lines, float).reshape(-1, 2, 2)
    begins, along = ends[:, :1], ends[:, 1:] - ends[:, :1]
    t = np.linspace(0, 1, 9 if layer.stands_out else 3)[None, :, None]
    aside = np.stack([along[..., 1], -along[..., 0]], axis=-1)
    return begins + t * along + (4 * BEND * layer.stands_out) * t * (1 - t) * aside


def _limits(drawings: Sequence[Drawing]) -> list[np.ndarray]:
    """(2, 2) lower and upper corner of what each drawing shows, with a margin; of all that name the same plane."""
    own = []
    for drawing in drawings:
        lines = [_curves(layer).reshape(-1, 2) for layer in drawing.layers]
        dots = [np.array(points.places, float).reshape(-1, 2) for points in drawing.points]
        texts = [np.array([text.place for text in drawing.texts], float).reshape(-1, 2)]
        points = np.concatenate([*lines, *dots, *texts, np.zeros((0, 2))])
        own.append(np.stack([points.min(0), points.max(0)]) if len(points) else np.array([[0.0, 0.0], [1.0, 1.0]]))
    shared = []
    for drawing, limit in zip(drawings, own):
        alike = [other for one, other in zip(drawings, own) if drawing.plane and one.plane == drawing.plane] or [limit]
        low, high = np.min([low for low, _ in alike], 0), np.max([high for _, high in alike], 0)
        margin = MARGIN * max(*(high - low), 1e-6)
        shared.append(np.stack([low - margin, high + margin]))
    return shared


def _size(limit: np.ndarray) -> np.ndarray:
    """(2,) width and height of limits (2, 2), scaled so that the longer is 1."""
    extent = limit[1] - limit[0]
    shape: np.ndarray = np.maximum(extent / max(float(extent.max()), 1e-9), 0.2)
    return shape


SIZE, RADIUS = 230, 12
"""Pixels: side length of a drawing, radius of a node at most."""
PART = 0.35
"""Largest radius of a node as a share of the length of an edge, so that lines are visible between nodes."""
MIDDLE = SIZE / 2
BESIDE = 6
"""Least distance in pixels from a node to the middle of an arc, so that no node between its ends covers it."""
ARC_BEND = 0.2
"""Least distance of the middle of an arc from its chord, as a share of its length."""
TRUE, WRONG = "var(--right, #3f8f5b)", "var(--wrong, #c8442f)"
INK, PAPER = "var(--ink, #2f3b4c)", "var(--back, #ffffff)"
"""Colours of the page, for bright and dark screens."""
Point = tuple[float, float]


def star_graph_svg(graph: dict[str, Any]) -> str:
    """SVG of `graph` (edges, start, goal, truth, predicted), all as node numbers.

    Wide green line: the true path. Narrow line and rings: the prediction, red where wrong, a dashed arc where the graph
    has no such edge, a dashed loop where it repeats a node.
    """
    places, radius = _places(graph)
    edges = {(a, b) for a, b in graph["edges"] if a in places and b in places}
    true_steps = edges.intersection(zip(graph["truth"], graph["truth"][1:]))
    parts = [_straight(places[a], places[b], "var(--line, #c9ced6)", 2) for a, b in edges]
    parts += [_straight(places[a], places[b], TRUE, 9, opacity=0.3) for a, b in true_steps]
    repeats: Counter[int] = Counter()
    arms = sum(a == graph["start"] for a, _ in edges)
    rings = {
        node: TRUE if graph["truth"][place : place + 1] == [node] else WRONG
        for place, node in enumerate(graph["predicted"])
        if place
    }
    for a, b in zip(graph["predicted"], graph["predicted"][1:]):
        if a not in places or b not in places:
            continue
        if a == b:
            parts.append(_loop(places[a], repeats[a], arms, radius))
            repeats[a] += 1
        elif (a, b) in edges:
            parts.append(_straight(places[a], places[b], TRUE if (a, b) in true_steps else WRONG, 3))
        else:
            parts.append(_arc(places[a], places[b], radius))
    for node, (x, y) in places.items():
        fill = {graph["start"]: INK, graph["goal"]: TRUE}.get(node, PAPER)
        ink = PAPER if node in (graph["start"], graph["goal"]) else INK
        ring = f'stroke="{rings.get(node, INK)}" stroke-width="{3 if node in rings else 1}"'
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" fill="{fill}" {ring}/>')
        parts.append(
            f'<text x="{x:.1f}" y="{y + radius / 3:.1f}" text-anchor="middle" font-size="{radius:.1f}" '
            f'fill="{ink}">{node}</text>'
        )
    return f'<svg viewBox="0 0 {SIZE} {SIZE}" width="{SIZE}" height="{SIZE}" role="img">{"".join(parts)}</svg>'


def _places(graph: dict[str, Any]) -> tuple[dict[int, Point], float]:
    """Positions of nodes, and their radius: the start in the centre, arms as rays, the goal's arm to the right."""
    after: dict[int, list[int]] = {}
    for a, b in graph["edges"]:
        after.setdefault(a, []).append(b)
    arms = []
    for first in after.get(graph["start"], []):
        arm = [first]
        while arm[-1] in after and after[arm[-1]][0] not in arm:
            arm.append(after[arm[-1]][0])
        arms.append(arm)
    arms.sort(key=lambda arm: arm[-1] != graph["goal"])
    places = {graph["start"]: (MIDDLE, MIDDLE)}
    for number, arm in enumerate(arms):
        angle = 2 * math.pi * number / len(arms)
        for depth, node in enumerate(arm, 1):
            reach = depth / len(arm) * (MIDDLE - RADIUS - 2)
            places[node] = (MIDDLE + reach * math.cos(angle), MIDDLE + reach * math.sin(angle))
    most = max(map(len, arms), default=1)
    return places, min(RADIUS, PART * (MIDDLE - RADIUS - 2) / most)


def _straight(a: Point, b: Point, colour: str, width: float, opacity: float = 1.0) -> str:
    return (
        f'<line x1="{a[0]:.1f}" y1="{a[1]:.1f}" x2="{b[0]:.1f}" y2="{b[1]:.1f}" stroke="{colour}" '
        f'stroke-width="{width}" stroke-opacity="{opacity}" stroke-linecap="round"/>'
    )


def _arc(a: Point, b: Point, radius: float) -> str:
    """A step that is no edge, bent away from the start, or beside it if it would cross it."""
    along = (b[0] - a[0], b[1] - a[1])
    length = math.hypot(*along)
    aside = (along[1] / length, -along[0] / length)
    middle = ((a[0] + b[0]) / 2, (a[1] + b[1]) / 2)
    outwards = aside[0] * (middle[0] - MIDDLE) + aside[1] * (middle[1] - MIDDLE)
    reach = 2 * max(radius + BESIDE, ARC_BEND * length) * (-1 if outwards < -1 else 1)  # a curve goes half as far
    control = (middle[0] + reach * aside[0], middle[1] + reach * aside[1])
    return _wrong(f"M{a[0]:.1f} {a[1]:.1f}Q{control[0]:.1f} {control[1]:.1f} {b[0]:.1f} {b[1]:.1f}")


def _loop(at: Point, before: int, arms: int, radius: float) -> str:
    """A step from a node to itself, beside the arm, or of the start between arms; wider than the loops `before` it."""
    away = (at[0] - MIDDLE, at[1] - MIDDLE)
    distance = math.hypot(*away)
    between = math.pi / max(1, arms)
    aside = (-away[1] / distance, away[0] / distance) if distance else (math.cos(between), math.sin(between))
    size = radius / 2 + 3 * before
    x, y = (at[axis] + (radius + size / 2) * aside[axis] for axis in (0, 1))
    return _wrong(f"M{x - size:.1f} {y:.1f}a{size} {size} 0 1 0 {2 * size} 0a{size} {size} 0 1 0 {-2 * size} 0")


def _wrong(path: str) -> str:
    return (
        f'<path d="{path}" fill="none" stroke="{WRONG}" stroke-width="3" stroke-linecap="round" '
        'stroke-dasharray="6 4"/>'
    )
