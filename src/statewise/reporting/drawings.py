"""Pictures of lines, such as maps, as files: a PNG, and a page to move about in."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

PLAIN, STANDING_OUT = "#20262e", "#d62f2f"
SIDE = 7.0
"""Inches of the longer side of a drawing."""


def save_drawings(drawings: Sequence[tuple[str, Sequence[Any]]], path: Path) -> None:
    """Drawings (title, layers) side by side as a PNG; layers have `label`, `lines` (m, 2, 2) and `stands_out`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.collections import LineCollection
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    shapes = [_extent(layers) for _, layers in drawings]
    sizes = [SIDE * extent / extent.max() for extent in shapes]
    width, height = sum(max(3.0, size[0]) for size in sizes), max(size[1] for size in sizes) + 0.6
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    for place, (title, layers) in enumerate(drawings, 1):
        axes = figure.add_subplot(1, len(drawings), place)
        many = max(len(layer.lines) for layer in layers)
        thin = float(np.clip(60 / np.sqrt(max(1, many)), 0.5, 2.0))
        for layer in layers:
            colour = STANDING_OUT if layer.stands_out else PLAIN
            axes.add_collection(
                LineCollection(list(layer.lines), colors=colour, linewidths=thin * (0.9 if layer.stands_out else 1),
                               alpha=0.75 if layer.stands_out else 0.9)
            )  # fmt: skip
        axes.set_aspect("equal")
        axes.autoscale_view()
        axes.set_axis_off()
        axes.set_title(title, fontsize=9)
        if place == 1:
            keys = [Line2D([], [], color=STANDING_OUT if layer.stands_out else PLAIN, label=layer.label)
                    for layer in layers]  # fmt: skip
            figure.legend(handles=keys, loc="outside lower center", ncols=len(keys), frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)


def save_page(drawings: Sequence[tuple[str, Sequence[Any]]], path: Path) -> None:
    """The drawings as one HTML page that opens without a network. Raises `ValueError` without the extra `report`."""
    try:
        import plotly.graph_objects as go
        import plotly.io
    except ImportError:
        raise ValueError("an interactive page needs the extra `report`: pip install 'statewise[report]'") from None
    parts = []
    for title, layers in drawings:
        figure = go.Figure()
        for layer in layers:
            begins, ends = layer.lines[:, 0], layer.lines[:, 1]
            gap = np.full(len(begins), np.nan)  # a line each, and none between them
            middle = (begins + ends) / 2
            colour = STANDING_OUT if layer.stands_out else PLAIN
            figure.add_scattergl(
                x=np.stack([begins[:, 0], ends[:, 0], gap], 1).ravel(), y=np.stack([begins[:, 1], ends[:, 1], gap], 1).ravel(),
                mode="lines", line={"color": colour, "width": 1.4}, name=layer.label, legendgroup=layer.label,
                hoverinfo="skip",
            )  # fmt: skip
            figure.add_scattergl(
                x=middle[:, 0], y=middle[:, 1], mode="markers", marker={"color": colour, "size": 5, "opacity": 0.01},
                text=layer.names, hovertemplate="%{text}<extra></extra>", legendgroup=layer.label, showlegend=False,
            )  # fmt: skip
        figure.update_layout(title={"text": title, "font_size": 15}, template="plotly_white", height=850,
                             margin={"l": 10, "r": 10, "t": 50, "b": 10}, dragmode="pan")  # fmt: skip
        figure.update_xaxes(visible=False)
        figure.update_yaxes(visible=False, scaleanchor="x")
        parts.append(plotly.io.to_html(figure, full_html=False, include_plotlyjs=not parts, config={"scrollZoom": True}))
    head = '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>statewise: map</title></head><body>'
    path.write_text(head + "\n".join(parts) + "</body></html>\n", encoding="utf-8")


def _extent(layers: Sequence[Any]) -> np.ndarray:
    """(2,) width and height of all lines, neither of them nothing."""
    points = np.concatenate([layer.lines.reshape(-1, 2) for layer in layers])
    if not len(points):
        return np.ones(2)
    return np.maximum(np.ptp(points, axis=0), 1e-3 + 0.05 * np.ptp(points, axis=0).max())
