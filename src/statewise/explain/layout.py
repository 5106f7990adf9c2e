"""Places of the nodes and edges of a graph that flows downwards: by graphviz `dot` where it is installed, otherwise by
a layered layout of ours (Sugiyama, Tagawa and Toda 1981).
"""

from __future__ import annotations

import itertools
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

GAP, LAYER = 20.0, 46.0
"""Pixels between the nodes of a layer, and between two layers, for the labels of edges."""
SWEEPS = 24
"""Rounds that order and straighten the layers."""
LOOP = 30.0
"""Pixels from a node to where its loop turns."""
THIN = 12.0
"""Width of the place that an edge takes in a layer that it passes."""
DOT_SECONDS = 20
"""Time that `dot` may take; beyond it, our own layout is used."""


@dataclass(frozen=True)
class Layout:
    """Places in pixels, y downwards."""

    width: float
    height: float
    places: list[tuple[float, float]]
    """The middle of each node."""
    paths: list[list[tuple[float, float]]]
    """Control points of each edge's cubic Bezier curve, 1 + 3k, from its source to its target."""
    by: str
    """`dot` or `layers`."""


def layout(
    sizes: Sequence[tuple[float, float]],
    edges: Sequence[tuple[int, int]],
    rank: Sequence[float],
    weights: Sequence[float],
    use_dot: bool = True,
) -> Layout:
    """Places nodes of `sizes` (width, height in pixels) and edges between them, at least one node.

    `rank`: where a node tends to stand in a case, which decides where the edges do not. `weights`: how frequent each
    edge is; few frequent ones go upwards, and they are straighter. `use_dot`: whether `dot` is used if it is installed.
    """
    program = shutil.which("dot") if use_dot else None
    if program is not None:
        made = _by_dot(program, sizes, edges, rank, weights)
        if made is not None:
            return made
    return _by_layers(sizes, edges, rank, weights)


def downwards(
    count: int, edges: Sequence[tuple[int, int]], rank: Sequence[float], weights: Sequence[float]
) -> list[int]:
    """An order of the nodes in which edges of little weight lead backwards (Eades, Lin and Smyth 1993, A fast and
    effective heuristic for the feedback arc set problem)."""
    out: list[dict[int, float]] = [{} for _ in range(count)]
    into: list[dict[int, float]] = [{} for _ in range(count)]
    for (source, target), weight in zip(edges, weights):
        if source != target:
            out[source][target] = into[target][source] = weight + 1e-9
    left, first, last = set(range(count)), list[int](), list[int]()

    def take(node: int) -> None:
        left.remove(node)
        for other in out[node]:
            into[other].pop(node, None)
        for other in into[node]:
            out[other].pop(node, None)

    while left:
        sinks = [node for node in left if not out[node]]
        sources = [node for node in left if not into[node]]
        if sinks:
            node = max(sinks, key=lambda one: (rank[one], one))
            last.append(node)
        elif sources:
            node = min(sources, key=lambda one: (rank[one], one))
            first.append(node)
        else:
            node = max(left, key=lambda one: (sum(out[one].values()) - sum(into[one].values()), -rank[one], -one))
            first.append(node)
        take(node)
    return first + last[::-1]


# dot


def _by_dot(
    program: str,
    sizes: Sequence[tuple[float, float]],
    edges: Sequence[tuple[int, int]],
    rank: Sequence[float],
    weights: Sequence[float],
) -> Layout | None:
    """The layout of `dot`; None if it fails or takes too long. Nodes go by number: no name of a user reaches it."""
    heaviest, order = max(weights, default=1.0) or 1.0, downwards(len(sizes), edges, rank, weights)
    nodes = [
        f"n{node} [width={sizes[node][0] / 72:.3f} height={sizes[node][1] / 72:.3f}];"  # inches
        for node in order  # dot breaks cycles by the order of its input
    ]
    links = [
        f"n{source} -> n{target} [weight={1 + round(9 * weight / heaviest)}];"
        for (source, target), weight in sorted(zip(edges, weights), key=lambda one: order.index(one[0][0]))
    ]
    text = "\n".join(
        [
            "digraph {",
            f"graph [nodesep={GAP / 72:.3f} ranksep={LAYER / 72:.3f}];",
            'node [shape=box fixedsize=true label=""]; edge [arrowhead=none];',
            *nodes,
            *links,
            "}",
        ]
    )
    try:
        done = subprocess.run(
            [program, "-Tplain"], input=text, capture_output=True, text=True, timeout=DOT_SECONDS, check=True
        )
        return of_plain(done.stdout, len(sizes), edges)
    except (OSError, subprocess.SubprocessError, ValueError, LookupError):
        return None


def of_plain(text: str, nodes: int, edges: Sequence[tuple[int, int]]) -> Layout:
    """Reads dot's format `plain`, in inches, y upwards. Raises `ValueError` or `LookupError` if it is not that."""
    places: list[tuple[float, float]] = [(np.nan, np.nan)] * nodes
    found: dict[tuple[int, int], list[tuple[float, float]]] = {}
    width = height = 0.0
    for line in text.replace("\\\n", "").splitlines():
        kind, *words = line.split()
        if kind == "graph":
            width, height = 72 * float(words[1]), 72 * float(words[2])
        elif kind == "node":
            places[int(words[0][1:])] = (72 * float(words[1]), height - 72 * float(words[2]))
        elif kind == "edge":
            numbers = [72 * float(word) for word in words[3 : 3 + 2 * int(words[2])]]
            points = [(x, height - y) for x, y in zip(numbers[::2], numbers[1::2], strict=True)]
            found[int(words[0][1:]), int(words[1][1:])] = points
    if np.isnan(places).any():
        raise ValueError("dot has left out a node")
    return Layout(width, height, places, [found[edge] for edge in edges], "dot")


# Layers


def _by_layers(
    sizes: Sequence[tuple[float, float]],
    edges: Sequence[tuple[int, int]],
    rank: Sequence[float],
    weights: Sequence[float],
) -> Layout:
    order = downwards(len(sizes), edges, rank, weights)
    position = {node: place for place, node in enumerate(order)}
    down = [(min(edge, key=position.__getitem__), max(edge, key=position.__getitem__)) for edge in edges]
    layer = _layers(order, down)
    # Edges through several layers get a place in each that they pass.
    columns: list[list[int]] = [[] for _ in range(max(layer) + 1)]
    for node in order:
        columns[layer[node]].append(node)
    looped = {source for source, target in edges if source == target}
    widths = [width + 2 * LOOP * (node in looped) for node, (width, _) in enumerate(sizes)]
    links: list[tuple[int, int, float]] = []
    chains: list[list[int]] = []
    for (source, target), weight in zip(down, weights):
        chain = [source]
        for at in range(layer[source] + 1, layer[target]):
            columns[at].append(len(widths))
            chain.append(len(widths))
            widths.append(THIN)
        if source != target:
            chain.append(target)
            links += [(one, other, weight) for one, other in itertools.pairwise(chain)]
        chains.append(chain)
    columns = _ordered(columns, links, len(widths))
    x = _straightened(columns, links, widths)
    heights = [max((sizes[node][1] for node in column if node < len(sizes)), default=0.0) for column in columns]
    y = np.cumsum([0.0, *(height + LAYER for height in heights)])[:-1] + np.array(heights) / 2
    left = min(x[node] - widths[node] / 2 for node in range(len(widths)))
    right = max(x[node] + widths[node] / 2 for node in range(len(widths)))
    at_layer = {node: number for number, column in enumerate(columns) for node in column}
    places = [(float(x[node] - left), float(y[at_layer[node]])) for node in range(len(widths))]
    both = set(edges)
    paths = []
    for edge, chain in zip(edges, chains):
        aside = 7.0 if edge[::-1] in both and edge[0] != edge[1] else 0.0
        path = _loop(places[edge[0]], sizes[edge[0]]) if edge[0] == edge[1] else _curve(chain, places, sizes, aside)
        paths.append(path if edge[0] == chain[0] else _curve(chain, places, sizes, -aside)[::-1])
    height = float(sum(heights) + LAYER * (len(heights) - 1))
    return Layout(float(right - left), height, places[: len(sizes)], paths, "layers")


def _layers(order: Sequence[int], edges: Sequence[tuple[int, int]]) -> list[int]:
    """The layer of each node: one below the lowest of those with an edge to it."""
    layer = [0] * len(order)
    incoming: dict[int, list[int]] = {}
    for source, target in edges:
        if source != target:
            incoming.setdefault(target, []).append(source)
    for node in order:
        layer[node] = max((layer[source] + 1 for source in incoming.get(node, ())), default=0)
    return layer


def _ordered(columns: list[list[int]], links: Sequence[tuple[int, int, float]], count: int) -> list[list[int]]:
    """The layers with their nodes in an order of few crossings: by the barycentre of their neighbours, downwards and
    upwards in turn; the best of all rounds."""
    above: list[list[int]] = [[] for _ in range(count)]
    below: list[list[int]] = [[] for _ in range(count)]
    for source, target, _ in links:
        above[target].append(source)
        below[source].append(target)
    place = np.zeros(count)

    def number(column: Sequence[int]) -> None:
        for at, node in enumerate(column):
            place[node] = at - len(column) / 2

    for column in columns:
        number(column)
    best, fewest = columns, _crossings(columns, links)
    for sweep in range(SWEEPS):
        if not fewest:
            break
        neighbours, way = (above, 1) if sweep % 2 == 0 else (below, -1)
        columns = list(columns)
        for at in range(len(columns))[::way]:
            columns[at] = sorted(
                columns[at], key=lambda node: float(np.mean([place[one] for one in neighbours[node]] or [place[node]]))
            )
            number(columns[at])
        crossings = _crossings(columns, links)
        if crossings < fewest:
            best, fewest = columns, crossings
    return best


def _crossings(columns: Sequence[Sequence[int]], links: Sequence[tuple[int, int, float]]) -> int:
    """How many pairs of links between two layers cross."""
    layer = {node: number for number, column in enumerate(columns) for node in column}
    place = {node: at for column in columns for at, node in enumerate(column)}
    total = 0
    between: dict[int, list[tuple[int, int]]] = {}
    for source, target, _ in links:
        between.setdefault(layer[source], []).append((place[source], place[target]))
    for pairs in between.values():
        ends = np.array(sorted(pairs))[:, 1]
        total += int(np.triu(ends[:, None] > ends, 1).sum())
    return total


def _straightened(
    columns: Sequence[Sequence[int]], links: Sequence[tuple[int, int, float]], widths: Sequence[float]
) -> np.ndarray:
    """(nodes,) middles, in the order of the layers, close to the mean of their neighbours weighted by frequency."""
    x = np.zeros(len(widths))
    for column in columns:
        at = 0.0
        for node in column:
            x[node] = at + widths[node] / 2
            at += widths[node] + GAP
        x[list(column)] -= (at - GAP) / 2
    heaviest = max((weight for *_, weight in links), default=1.0) or 1.0
    near: list[list[tuple[int, float]]] = [[] for _ in widths]
    for source, target, weight in links:
        pull = 0.1 + weight / heaviest
        near[source].append((target, pull))
        near[target].append((source, pull))
    for sweep in range(SWEEPS):
        for column in columns if sweep % 2 == 0 else columns[::-1]:
            wanted = np.array(
                [
                    sum(x[one] * pull for one, pull in near[node]) / sum(pull for _, pull in near[node])
                    if near[node]
                    else x[node]
                    for node in column
                ]
            )
            x[list(column)] = _spaced(wanted, np.array([widths[node] for node in column]))
    return x


def _spaced(wanted: np.ndarray, widths: np.ndarray) -> np.ndarray:
    """Middles as close as possible to the `wanted` ones, in their order and `GAP` apart: isotonic regression of what is
    left once the widths before each are taken off (pool adjacent violators)."""
    before = np.concatenate([[0.0], np.cumsum((widths[1:] + widths[:-1]) / 2 + GAP)])
    blocks: list[list[float]] = []
    for value in (wanted - before).tolist():
        blocks.append([value, 1.0])
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            mean, count = blocks.pop()
            total = blocks[-1][1] + count
            blocks[-1] = [(blocks[-1][0] * blocks[-1][1] + mean * count) / total, total]
    return before + np.repeat([mean for mean, _ in blocks], [int(count) for _, count in blocks])


def _curve(
    chain: Sequence[int], places: Sequence[tuple[float, float]], sizes: Sequence[tuple[float, float]], aside: float
) -> list[tuple[float, float]]:
    """A curve from the lower side of the first node to the upper side of the last, upright at every layer."""
    points = [places[node] for node in chain]
    first, last = chain[0], chain[-1]
    points = [(x + aside, y) for x, y in points]
    points[0] = (points[0][0], points[0][1] + sizes[first][1] / 2)
    points[-1] = (points[-1][0], points[-1][1] - sizes[last][1] / 2)
    path = [points[0]]
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        middle = (y0 + y1) / 2
        path += [(x0, middle), (x1, middle), (x1, y1)]
    return path


def _loop(place: tuple[float, float], size: tuple[float, float]) -> list[tuple[float, float]]:
    """A loop at the right side of a node."""
    x, y = place[0] + size[0] / 2, place[1]
    return [(x, y - 6), (x + LOOP, y - 18), (x + LOOP, y + 18), (x, y + 6)]
