"""Draws star graphs as SVG: the edges, the true path and the predicted path."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

SIZE, RADIUS = 230, 12
"""Pixels: side length of a drawing, radius of a node at most."""
PART = 0.35
"""Largest radius of a node as a share of the length of an edge, so that lines are visible between nodes."""
MIDDLE = SIZE / 2
BESIDE = 6
"""Least distance in pixels from a node to the middle of an arc, so that no node between its ends covers it."""
BEND = 0.2
"""Least distance of the middle of an arc from its chord, as a share of its length."""
TRUE, WRONG = "var(--right, #3f8f5b)", "var(--wrong, #c8442f)"
INK, PAPER = "var(--ink, #2f3b4c)", "var(--back, #ffffff)"
"""Colours of the page, for bright and dark screens."""
Point = tuple[float, float]


def draw(graph: dict[str, Any]) -> str:
    """SVG of `graph` (edges, start, goal, truth, predicted), all as node numbers.

    Wide green line: the true path. Narrow line and rings: the prediction, red where wrong, a dashed arc where the graph
    has no such edge, a dashed loop where it repeats a node.
    """
    places, radius = _places(graph)
    edges = {(a, b) for a, b in graph["edges"] if a in places and b in places}
    true_steps = edges.intersection(zip(graph["truth"], graph["truth"][1:]))
    parts = [_line(places[a], places[b], "var(--line, #c9ced6)", 2) for a, b in edges]
    parts += [_line(places[a], places[b], TRUE, 9, opacity=0.3) for a, b in true_steps]
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
            parts.append(_line(places[a], places[b], TRUE if (a, b) in true_steps else WRONG, 3))
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


def _line(a: Point, b: Point, colour: str, width: float, opacity: float = 1.0) -> str:
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
    reach = 2 * max(radius + BESIDE, BEND * length) * (-1 if outwards < -1 else 1)  # a curve goes half as far
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
