"""Draws the picture of README's first page from recorded traces and measured beliefs.

    python tools/pictures/first_page.py docs/playground-demo.html TOKENS LATENTS --out docs/first-page.svg

TOKENS and LATENTS are the files reports/belief-geometry.json of a run of next-token prediction and one of next-latent
prediction on RRXOR; docs/results/beliefs.md has the commands.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from statewise.reporting.figures import OBJECTIVE_COLOURS

WIDTH, COLUMN, TOP, MIDDLE = 960, 320, 86, 338
NAMES = {
    "next-token": ("Next-token prediction", "next_token"),
    "next-latent": ("Next-latent prediction", "next_latent"),
    "belief-state": ("Belief State Transformer", "belief_state"),
}
GRAPH = 2
"""The recorded graph that is drawn."""
DOTS = 900
"""Prefixes drawn in each plane, spread evenly over all."""

STYLE = """
text { font-family: system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; font-size: 14px; fill: #1f2328; }
.head { font-size: 19px; font-weight: 600; }
.name { font-weight: 600; font-size: 15px; }
.small { font-size: 13px; fill: #59636e; }
.node { fill: #ffffff; stroke: #59636e; stroke-width: 1.5; }
.edge { stroke: #9aa4ae; stroke-width: 2; }
.frame { fill: none; stroke: #d1d9e0; }
.back { fill: #ffffff; }
@media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc; } .small { fill: #a9b4c0; } .node { fill: #0d1117; stroke: #a9b4c0; }
  .edge { stroke: #59636e; } .frame { stroke: #3d444d; } .back { fill: #0d1117; }
}
"""


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "middle", colour: str = "") -> str:
    """A line of text."""
    style = f' style="fill:{colour}"' if colour else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{kind}"{style}>{escape(words)}</text>'


def recorded(page: Path) -> tuple[dict[str, Any], dict[str, dict[int, float]]]:
    """The scene of the graph, and each model's probabilities of the node after the start."""
    found = re.search(r'<script[^>]*type="application/json"[^>]*>(.*?)</script>', page.read_text(), re.DOTALL)
    if found is None:
        raise SystemExit(f"{page} is not a page of `statewise demo --export`")
    traces = json.loads(found[1])["groups"][0]["recordings"][GRAPH]["traces"]
    first = {
        name: {token: math.exp(nats) for token, nats in trace["places"][trace["prompt"]]["next"]}
        for name, trace in traces.items()
    }
    return traces["next-token"]["scene"], first


def star(left: float, scene: dict[str, Any], first: dict[int, float], colour: str) -> list[str]:
    """The star graph, with each arm's probability at its first node and the arm as wide as that."""
    edges, start, goal = [tuple(edge) for edge in scene["edges"]], scene["start"], scene["goal"]
    arms = [[to] for origin, to in edges if origin == start]
    for arm in arms:
        while following := [to for origin, to in edges if origin == arm[-1]]:
            arm.append(following[0])
    arms.sort(key=lambda arm: (arm[-1] == goal, arm[0]))
    arms = [arms[0], arms[2], arms[1]]  # the arm to the goal in the middle
    centre = (left + COLUMN / 2, TOP + 190)
    parts, nodes = [], []
    for arm, angle in zip(arms, (-52, 0, 52), strict=True):
        at = [
            (centre[0] + r * math.sin(math.radians(angle)), centre[1] - r * math.cos(math.radians(angle)))
            for r in (82, 146)
        ]
        share = first.get(arm[0], 0.0)
        for (x, y), (u, v) in zip([centre, *at], at, strict=False):
            parts.append(f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{u:.1f}" y2="{v:.1f}" class="edge"/>')
        (u, v) = at[0]
        if share > 0.005:
            parts.append(
                f'<line x1="{centre[0]:.1f}" y1="{centre[1]:.1f}" x2="{u:.1f}" y2="{v:.1f}" stroke="{colour}" '
                f'stroke-width="{2 + 10 * share:.1f}" stroke-linecap="round"/>'
            )
        side = {-52: (-20, 26, "end"), 0: (20, 6, "start"), 52: (20, 26, "start")}[angle]
        words = f"{share:.0%}" if share >= 0.005 else "0%"
        nodes.append(text(u + side[0], v + side[1], words, "name", side[2], colour))
        nodes += [circle(place, node, goal) for place, node in zip(at, arm, strict=True)]
    return [*parts, *nodes, circle(centre, start, goal), text(centre[0], centre[1] + 32, "start", "small")]


def circle(place: tuple[float, float], node: int, goal: int) -> str:
    """A node with its number; the goal has a second ring."""
    x, y = place
    ring = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="17.5" class="node"/>' if node == goal else ""
    beside = text(x + 24, y + 5, "goal", "small", "start") if node == goal else ""
    return f'{ring}<circle cx="{x:.1f}" cy="{y:.1f}" r="13.5" class="node"/>{text(x, y + 5, str(node))}{beside}'


def plane(left: float, drawing: dict[str, Any], reach: tuple[float, float]) -> list[str]:
    """Beliefs as dots in the plane of the true ones, in the colour of the true belief."""
    many, means = drawing["points"]
    x0, y0, width, height = left + 30, MIDDLE + 62, COLUMN - 60, 208

    def at(point: list[float]) -> tuple[float, float]:
        return x0 + width * (point[0] + reach[0]) / (2 * reach[0]), y0 + height * (reach[1] - point[1]) / (2 * reach[1])

    parts = [f'<rect x="{x0}" y="{y0}" width="{width}" height="{height}" rx="6" class="frame"/>']
    chosen = range(0, len(many["places"]), max(1, len(many["places"]) // DOTS))
    small = [(many["places"][i], many["colours"][i]) for i in chosen]
    for dots, size in ((small, 3.4), (zip(means["places"], means["colours"], strict=True), 8.4)):
        of_colour: dict[str, str] = {}
        for point, colour in dots:
            if abs(point[0]) < reach[0] and abs(point[1]) < reach[1]:
                x, y = at(point)
                of_colour[colour] = of_colour.get(colour, "") + f"M{x:.1f} {y:.1f}h0"
        parts += [f'<path d="{d}" stroke="{colour}" stroke-width="{size}"/>' for colour, d in of_colour.items()]
    return [parts[0], '<g stroke-linecap="round">', *parts[1:], "</g>"]


def picture(page: Path, tokens: Path, latents: Path) -> str:
    """The picture as SVG."""
    scene, first = recorded(page)
    reports = [json.loads(path.read_text()) for path in (tokens, latents)]
    drawings = [{one["title"].startswith("true"): one for one in reversed(report["drawings"])} for report in reports]
    points = [abs(value) for place in drawings[0][True]["points"][1]["places"] for value in place]
    reach = (1.35 * max(points), 1.2 * max(points))
    height = MIDDLE + 300
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-labelledby="title"><title id="title">{escape(ALT)}</title><style>{STYLE}</style>',
        f'<rect width="{WIDTH}" height="{height}" class="back"/>',
        text(24, 34, "Which arm leads to the goal? The edges were given in random order.", "head", "start"),
    ]
    for column, (name, (title, objective)) in enumerate(NAMES.items()):
        colour = OBJECTIVE_COLOURS[objective]
        parts.append(text(COLUMN * (column + 0.5), TOP - 20, title, "name", colour=colour))
        parts += star(COLUMN * column, scene, first[name], colour)
    parts.append(
        text(
            24,
            MIDDLE + 14,
            "What does a state know? The belief read from it, in the colour of the true one.",
            "head",
            "start",
        )
    )
    shown = [
        (drawings[0][False], f"R² = {reports[0]['metrics']['r2']:.2f}", "Next-token prediction", "next_token"),
        (drawings[1][False], f"R² = {reports[1]['metrics']['r2']:.2f}", "Next-latent prediction", "next_latent"),
        (drawings[0][True], "", "The exact beliefs", ""),
    ]
    for column, (drawing, measure, title, objective) in enumerate(shown):
        words = f"{title}: {measure}" if measure else title
        colour = OBJECTIVE_COLOURS.get(objective, "")
        parts.append(text(COLUMN * (column + 0.5), MIDDLE + 48, words, "name", colour=colour))
        parts += plane(COLUMN * column, drawing, reach)
    parts.append(text(24, height - 12, BELOW, "small", "start"))
    return "\n".join([*parts, "</svg>\n"])


BELOW = (
    "Two random bits, then their exclusive or, for ever. Both models predict the next bit equally well. Seed 1 of five."
)
ALT = (
    "On a star graph a next-token model gives each arm about a third, next-latent prediction and the Belief State "
    "Transformer nearly all to the right one. Below, beliefs read from states on RRXOR: blurred after next-token "
    "prediction, in their exact places after next-latent prediction."
)

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path)
    parser.add_argument("tokens", type=Path)
    parser.add_argument("latents", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.write_text(picture(options.page, options.tokens, options.latents))
