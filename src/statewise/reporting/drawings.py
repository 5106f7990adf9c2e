"""Drawings of lines and points, such as maps, as PNG files and interactive web pages."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from statewise.durable import write_atomically
from statewise.figures import Drawing, Layer
from statewise.reporting.plain import for_plotly, plain_text
from statewise.reporting.plots import png, wrapped

PLAIN, STANDING_OUT = "#20262e", "#d62f2f"
SIDE = 7.0
"""Inches of the longer side of a drawing."""
LETTERS = 13
"""Characters of a title per inch."""
LINE = 0.17
"""Inches from line to line of a title."""
BELOW = 0.4
"""Inches for the legend."""
DOT = 5.0
"""Area in square points of a dot of size 1."""
ACROSS = 4
MARGIN = 0.03
"""Space around what a drawing shows, as a share of its longer side."""
HEAD = """<!doctype html><html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>statewise: {title}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; color: #2f3b4c; margin: 1rem; }}
h1 {{ font-size: 1.3rem; }} h2 {{ font-size: 1rem; white-space: pre-line; margin: 1.5rem 0 .5rem; }}
h1, h2 {{ overflow-wrap: anywhere; }}
</style></head><body>
<h1>{title}</h1>
"""
BEND = 0.1
"""Curvature of highlighted lines, as a share of their length, so that they do not cover plain lines."""


def save_drawings(drawings: Sequence[Drawing], path: Path) -> None:
    """Drawings as a PNG file."""
    write_atomically(path, drawings_png(drawings))


@plain_text
def drawings_png(drawings: Sequence[Drawing]) -> bytes:
    """Drawings as a PNG, at most `ACROSS` side by side."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.collections import LineCollection
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    across, down = min(ACROSS, len(drawings)), -(-len(drawings) // ACROSS)
    side = SIDE * (0.7 if across > 1 else 1) * (0.7 if across > 2 else 1)
    limits = _limits(drawings)
    sizes = [_size(limit) * side for limit in limits]
    width = max(sum(max(3.2, size[0]) for size in sizes[at : at + across]) for at in range(0, len(sizes), across))
    titles = [wrapped(drawing.title, int(width / across * LETTERS)) for drawing in drawings]
    above = max(LINE * (title.count("\n") + 1) for title in titles) + 0.2
    tall = max(size[1] for size in sizes)
    height = (tall + above) * down + BELOW
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    # By hand: a constrained layout cuts off titles of drawings that are smaller than their place.
    figure.subplots_adjust(left=0.01, right=0.99, bottom=BELOW / height, top=1 - above / height,
                           hspace=above / tall, wspace=0.06)  # fmt: skip
    for place, drawing in enumerate(drawings, 1):
        axes = figure.add_subplot(down, across, place)
        many = max((len(layer.lines) for layer in drawing.layers), default=1)
        stroke = float(np.clip(45 / np.sqrt(max(1, many)), 0.5, 1.8))
        for layer in drawing.layers:
            colour = STANDING_OUT if layer.stands_out else PLAIN
            axes.add_collection(LineCollection(list(_curves(layer)), colors=colour, linewidths=stroke, alpha=0.8))
        for points in drawing.points:
            area = DOT * points.size**2
            x, y = np.array(points.places).reshape(-1, 2).T
            axes.scatter(x, y, c=points.colours, s=area, linewidths=0, zorder=3)
        low, high = limits[place - 1]
        margin = MARGIN * max(*(high - low), 1e-9)
        axes.set_aspect("equal", anchor="N")
        axes.set(xlim=(low[0] - margin, high[0] + margin), ylim=(low[1] - margin, high[1] + margin))
        axes.set_axis_off()
        axes.set_title(titles[place - 1], fontsize=9)
    keys = {layer.label: layer.stands_out for drawing in drawings for layer in drawing.layers}
    handles = [Line2D([], [], color=STANDING_OUT if out else PLAIN, label=label) for label, out in keys.items()]
    if len(handles) > 1:
        figure.legend(handles=handles, loc="lower center", ncols=len(keys), frameon=False, fontsize=8)
    return png(figure)


def save_page(drawings: Sequence[Drawing], path: Path, title: str) -> None:
    """The drawings as one HTML page that opens without a network, with a title. Raises `ValueError` without the extra
    `report`."""
    try:
        import plotly.io
    except ImportError:
        raise ValueError("an interactive page needs the extra `report`: pip install 'statewise[report]'") from None
    # The first figure includes the library for all.
    config = {"scrollZoom": True}
    parts = [
        f"<h2>{html.escape(drawing.title)}</h2>"
        + plotly.io.to_html(figure(drawing), full_html=False, include_plotlyjs=not place, config=config)
        for place, drawing in enumerate(drawings)
    ]
    content = HEAD.format(title=html.escape(title)) + "\n".join(parts) + "</body></html>\n"
    write_atomically(path, content.encode())


def figure(drawing: Drawing) -> Any:
    """An interactive plotly figure with the name of each line as its tooltip, without the drawing's title, which the
    page wraps above it."""
    import plotly.graph_objects as go

    made = go.Figure()
    for layer in drawing.layers:
        colour = STANDING_OUT if layer.stands_out else PLAIN
        curves = _curves(layer)
        apart = np.concatenate([curves, np.full((len(curves), 1, 2), np.nan)], axis=1).reshape(-1, 2)
        made.add_scattergl(x=apart[:, 0], y=apart[:, 1], mode="lines", line={"color": colour, "width": 1.4},
                           name=for_plotly(layer.label), legendgroup=layer.label, hoverinfo="skip")  # fmt: skip
        middle = curves[:, curves.shape[1] // 2]
        made.add_scattergl(
            x=middle[:, 0], y=middle[:, 1], mode="markers", marker={"color": colour, "size": 7, "opacity": 0.01},
            text=[for_plotly(name) for name in layer.names], hovertemplate="%{text}<extra></extra>",
            legendgroup=layer.label, showlegend=False,
        )  # fmt: skip
    for points in drawing.points:
        x, y = np.array(points.places).reshape(-1, 2).T
        made.add_scattergl(
            x=x, y=y, mode="markers", marker={"color": points.colours, "size": 2 + 2 * points.size}, showlegend=False,
            text=[for_plotly(name) for name in points.names], hovertemplate="%{text}<extra></extra>",
        )  # fmt: skip
    legend = {"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom"}
    made.update_layout(template="plotly_white", height=850, margin={"l": 10, "r": 10, "t": 10, "b": 10},
                       dragmode="pan", legend=legend, showlegend=len(drawing.layers) > 1)  # fmt: skip
    made.update_xaxes(visible=False)
    made.update_yaxes(visible=False, scaleanchor="x")
    return made


def _curves(layer: Layer) -> np.ndarray:
    """(m, p, 2) points of each line: its ends and midpoint, or an arc."""
    ends = np.array(layer.lines, float).reshape(-1, 2, 2)
    begins, along = ends[:, :1], ends[:, 1:] - ends[:, :1]
    t = np.linspace(0, 1, 9 if layer.stands_out else 3)[None, :, None]
    aside = np.stack([along[..., 1], -along[..., 0]], axis=-1)
    return begins + t * along + (4 * BEND * layer.stands_out) * t * (1 - t) * aside


def _limits(drawings: Sequence[Drawing]) -> list[np.ndarray]:
    """(2, 2) lower and upper corner of what each drawing shows; of all that name the same plane."""
    own = []
    for drawing in drawings:
        lines = [_curves(layer).reshape(-1, 2) for layer in drawing.layers]
        dots = [np.array(points.places, float).reshape(-1, 2) for points in drawing.points]
        points = np.concatenate([*lines, *dots, np.zeros((0, 2))])
        own.append(np.stack([points.min(0), points.max(0)]) if len(points) else np.array([[0.0, 0.0], [1.0, 1.0]]))
    shared = []
    for drawing, limit in zip(drawings, own):
        alike = [other for one, other in zip(drawings, own) if drawing.plane and one.plane == drawing.plane] or [limit]
        shared.append(np.stack([np.min([low for low, _ in alike], 0), np.max([high for _, high in alike], 0)]))
    return shared


def _size(limit: np.ndarray) -> np.ndarray:
    """(2,) width and height of limits (2, 2), scaled so that the longer is 1."""
    extent = limit[1] - limit[0]
    shape: np.ndarray = np.maximum(extent / max(float(extent.max()), 1e-9), 0.2)
    return shape
