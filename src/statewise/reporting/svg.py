"""Panels as SVG elements of a page, without scripts: their colours are variables of the page, so that they follow a
bright or dark screen. For panels of few lines; `plots` draws the others.
"""

from __future__ import annotations

import html
import itertools
import math
from collections.abc import Callable, Sequence

from statewise.reporting.figures import Curve, Panel

WIDTH, HEIGHT = 460, 280
"""Units of a panel, which is scaled to the width of its place."""
LEFT, RIGHT, TOP, BOTTOM = 48, 12, 12, 40
LINES = ("var(--c1)", "var(--c2)", "var(--c3)", "var(--c4)", "var(--c5)", "var(--c6)")
DASHES = ("", "7 3", "2 3", "9 3 2 3", "5 2", "1 4")
"""Lines differ in colour and in dashes, so that they can be read without colours."""
SVG_STYLE = """
:root { --c1: #2a62c9; --c2: #c2571a; --c3: #2f7d4c; --c4: #8a5aa8; --c5: #5d6878; --c6: #a3297f; }
@media (prefers-color-scheme: dark) { :root { --c1: #7fabff; --c2: #f0924f; --c3: #63c389; --c4: #c39be0; --c5: #a3adba;
  --c6: #f07fc4; } }
svg.panel { display: block; width: 100%; height: auto; max-width: 620px; }
svg.panel text { font: 12px system-ui, sans-serif; fill: var(--soft); }
svg.panel .grid { stroke: var(--line); stroke-width: 1; } svg.panel .axis { stroke: var(--soft); stroke-width: 1; }
.keys { font-size: .85rem; color: var(--soft); margin: .2rem 0; }
.keys span { display: inline-block; margin-right: 1em; }
.keys svg { width: 26px; height: 8px; vertical-align: middle; margin-right: .35em; }
"""
"""CSS of `panel_svg` and `panel_keys`, beside `reporting.figures.STYLE`."""


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers from `low` to `high`, at most about `most`."""
    if not high > low:
        return [low]
    raw = (high - low) / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * one for one in (1, 2, 2.5, 5, 10) if power * one >= raw)
    first = math.ceil(low / step - 1e-9)
    return [round(step * place, 12) for place in range(first, math.floor(high / step + 1e-9) + 1)]


def panel_svg(panel: Panel, name: str) -> str:
    """A panel as an SVG element; `name` is what it shows, for readers that cannot see it. Axes are linear. Points carry
    their values as tooltips. Curves without a point are left out; a panel without any is an empty frame."""
    curves = [curve for curve in panel.curves if curve.x]
    xs = [x for curve in curves for x in curve.x] or [0.0, 1.0]
    ys = [y for curve in curves for y in curve.y if math.isfinite(y)]
    ys += [y for curve in curves for ends in curve.band or () for y in ends if math.isfinite(y)]
    low_x, high_x = min(xs), max(xs)
    if low_x == high_x:
        low_x, high_x = low_x - 0.5, high_x + 0.5
    low, high = (0.0, 1.0) if panel.shares else (min(0.0, min(ys, default=0.0)), max(ys, default=1.0) * 1.05 or 1.0)

    def x_of(value: float) -> float:
        return LEFT + (value - low_x) / (high_x - low_x) * (WIDTH - LEFT - RIGHT)

    def y_of(value: float) -> float:
        return HEIGHT - BOTTOM - (value - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    parts = []
    for tick in ticks(low, high):
        y = y_of(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for tick in ticks(low_x, high_x):
        parts.append(f'<text x="{x_of(tick):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{tick:g}</text>')
    base = HEIGHT - BOTTOM
    parts.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{base}" y2="{base}"/>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 4}" text-anchor="middle">{html.escape(panel.x_title)}</text>')
    for curve, (colour, dash) in zip(curves, _looks(curves)):
        parts.append(_curve(curve, colour, dash, x_of, y_of))
    return (
        f'<svg class="panel" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{html.escape(name)}">'
        f"{''.join(parts)}</svg>"
    )


def panel_keys(panel: Panel) -> str:
    """The names of a panel's curves with their lines, as an element of a page."""
    keys = []
    curves = [curve for curve in panel.curves if curve.x]
    for curve, (colour, dash) in zip(curves, _looks(curves)):
        line = (
            f'<svg viewBox="0 0 26 8" aria-hidden="true"><line x1="0" x2="26" y1="4" y2="4" stroke-width="2.5" '
            f'stroke="{colour}" stroke-dasharray="{dash}"/></svg>'
        )
        keys.append(f"<span>{line}{html.escape(curve.label)}</span>")
    return f'<p class="keys">{"".join(keys)}</p>'


def _looks(curves: Sequence[Curve]) -> list[tuple[str, str]]:
    """Colour and dashes of each curve; controls are grey."""
    lines = itertools.cycle(zip(LINES, DASHES))
    return [("var(--soft)", "3 4") if curve.role == "control" else next(lines) for curve in curves]


def _curve(curve: Curve, colour: str, dash: str, x_of: Callable[[float], float], y_of: Callable[[float], float]) -> str:
    points = [(x_of(x), y_of(y), x, y) for x, y in zip(curve.x, curve.y, strict=True) if math.isfinite(y)]
    parts = []
    if curve.band:
        ends = [(x_of(x), y_of(low), y_of(high)) for x, (low, high) in zip(curve.x, curve.band, strict=True)]
        ring = [(x, high) for x, _, high in ends] + [(x, low) for x, low, _ in reversed(ends)]
        parts.append(f'<polygon points="{_points(ring)}" fill="{colour}" fill-opacity=".15"/>')
    line = _points([(x, y) for x, y, *_ in points])
    parts.append(
        f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}" '
        'stroke-linejoin="round"/>'
    )
    if curve.role != "control" and len(points) <= 40:
        for x, y, value_x, value in points:
            title = html.escape(f"{curve.label}, {value_x:g}: {value:.4g}")
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"><title>{title}</title></circle>')
    return "".join(parts)


def _points(places: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
