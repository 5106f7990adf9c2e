"""Draws star graphs as SVG: the edges, the true path and the predicted path."""

from __future__ import annotations

import math
from typing import Any

SIZE, RADIUS = 230, 15
"""Pixels: side length of a drawing, radius of a node."""
TRUE, WRONG = "#3f8f5b", "#c8442f"


def draw(graph: dict[str, Any]) -> str:
    """SVG of `graph` (edges, start, goal, truth, predicted), all as node numbers.

    Wide green line: the true path. Narrow line: the prediction, red where wrong, dashed where the graph has no such
    edge.
    """
    places = _places(graph)
    edges = {(a, b) for a, b in graph["edges"] if a in places and b in places}
    true_steps = edges.intersection(zip(graph["truth"], graph["truth"][1:]))
    parts = [_line(places[a], places[b], "#c9ced6", 2) for a, b in edges]
    parts += [_line(places[a], places[b], TRUE, 9, opacity=0.3) for a, b in true_steps]
    for a, b in zip(graph["predicted"], graph["predicted"][1:]):
        if a in places and b in places and a != b:
            colour = TRUE if (a, b) in true_steps else WRONG
            parts.append(_line(places[a], places[b], colour, 3, dashed=(a, b) not in edges))
    for node, (x, y) in places.items():
        fill = {graph["start"]: "#2f3b4c", graph["goal"]: TRUE}.get(node, "#ffffff")
        ink = "#ffffff" if node in (graph["start"], graph["goal"]) else "#2f3b4c"
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{RADIUS}" fill="{fill}" stroke="#2f3b4c"/>')
        parts.append(
            f'<text x="{x:.1f}" y="{y + 4:.1f}" text-anchor="middle" font-size="12" fill="{ink}">{node}</text>'
        )
    return f'<svg viewBox="0 0 {SIZE} {SIZE}" width="{SIZE}" height="{SIZE}" role="img">{"".join(parts)}</svg>'


def _places(graph: dict[str, Any]) -> dict[int, tuple[float, float]]:
    """Positions of nodes: the start in the centre, arms as rays, the goal's arm to the right."""
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
    middle = SIZE / 2
    places = {graph["start"]: (middle, middle)}
    for number, arm in enumerate(arms):
        angle = 2 * math.pi * number / len(arms)
        for depth, node in enumerate(arm, 1):
            reach = depth / len(arm) * (middle - RADIUS - 2)
            places[node] = (middle + reach * math.cos(angle), middle + reach * math.sin(angle))
    return places


def _line(
    a: tuple[float, float],
    b: tuple[float, float],
    colour: str,
    width: float,
    opacity: float = 1.0,
    dashed: bool = False,
) -> str:
    dash = ' stroke-dasharray="6 4"' if dashed else ""
    return (
        f'<line x1="{a[0]:.1f}" y1="{a[1]:.1f}" x2="{b[0]:.1f}" y2="{b[1]:.1f}" stroke="{colour}" '
        f'stroke-width="{width}" stroke-opacity="{opacity}" stroke-linecap="round"{dash}/>'
    )
