"""Directly-follows graphs: how often one event follows another, in the data and in sequences sampled from a model.

The share of an edge is the probability that its target comes next once its source has happened. Two shares are compared
over cases, not over events: the events of a case depend on each other. The share is a ratio E / S of two sums over
cases. Without a case that has e of E and s of S, it differs by (p s - e) / (S - s), where p = E / S; the sum of the
squares of these differences over the n cases, times (n - 1) / n, is its jackknife variance (Efron and Stein 1981),
which one long case cannot make small.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from statewise.data_types import Ragged

START = "start"
"""What the page calls the node before the first event."""
LEVEL = 0.05
"""Probability that any edge is marked although the shares of all are equal (Bonferroni over the compared edges)."""
LEAST_DIFFERENCE = 0.05
"""Smallest difference between two shares that is marked."""
FEWEST_CASES = 10
"""Edges are compared if so many cases of both sides have their source."""


@dataclass(frozen=True)
class Node:
    """An event, the start or the end."""

    name: str
    kind: str
    """`start`, `event` or `end`."""
    data: int
    """How often it occurs in the data."""
    model: int
    """How often it occurs in the model's samples."""
    position: float
    """Mean number of events before it in its case, in the data, or in the samples if only they have it."""


@dataclass(frozen=True)
class Edge:
    """Two nodes of which the second directly follows the first, in the data or in the samples."""

    source: int
    """Number of the node."""
    target: int
    data: int
    """How often it occurs in the data."""
    model: int
    """How often it occurs in the model's samples."""
    data_share: float | None
    """Of the times that the source happens in the data, the share that the target comes next; None: it never does."""
    model_share: float | None
    """The same in the model's samples."""
    p_value: float | None
    """Two-sided, that the shares are equal; None: too few cases have the source."""
    differs: bool
    """Whether the shares differ by at least `LEAST_DIFFERENCE`, and significantly."""


@dataclass(frozen=True)
class ProcessMap:
    """The directly-follows graph of data and of a model's samples."""

    nodes: list[Node]
    edges: list[Edge]
    """The most frequent in the data first."""
    data_cases: int
    model_cases: int
    compared: int
    """Number of edges whose shares were compared."""


@dataclass(frozen=True)
class _Counts:
    """Pairs of consecutive events of some cases."""

    pairs: np.ndarray
    """(m,) distinct pairs, source * size + target, sorted."""
    times: np.ndarray
    """(m,) occurrences of each."""
    squares: np.ndarray
    """(m,) sum over cases of e^2 / (S - s)^2; e, s and S as at the top of this file."""
    products: np.ndarray
    """(m,) sum over cases of e s / (S - s)^2."""
    sources: np.ndarray
    """(size,) S: occurrences of each source with a successor."""
    source_squares: np.ndarray
    """(size,) sum over cases of s^2 / (S - s)^2."""
    source_cases: np.ndarray
    """(size,) cases that have it."""


def process_map(data: Ragged, model: Ragged, names: Sequence[str], end: int) -> ProcessMap:
    """The directly-follows graph of two sets of sequences of token ids below `len(names)`.

    `end`: the token that ends a sequence; a sequence without it is cut off, and its last event has no successor.
    """
    size = len(names) + 1
    sides = [_counts(side, size) for side in (data, model)]
    pairs = np.union1d(sides[0].pairs, sides[1].pairs)
    source, target = pairs // size, pairs % size
    shares, variances, cases, times = [], [], [], []
    for side in sides:
        place = np.minimum(np.searchsorted(side.pairs, pairs), max(len(side.pairs) - 1, 0))
        known = (side.pairs[place] == pairs) if len(side.pairs) else np.zeros(len(pairs), bool)
        count, square, product = (
            np.where(known, column[place] if len(column) else 0, 0)
            for column in (side.times, side.squares, side.products)
        )
        total = side.sources[source]
        share = count / np.maximum(total, 1)
        residual = square - 2 * share * product + share**2 * side.source_squares[source]
        n = side.source_cases[source]
        shares.append(share)
        variances.append(np.maximum(residual, 0) * np.maximum(n - 1, 0) / np.maximum(n, 1))
        cases.append(n)
        times.append(count)
    enough = np.minimum(*cases) >= FEWEST_CASES
    # Every case begins once: after the start there is one event a case, and the samples take it from the data.
    enough &= source != size - 1
    difference, error = shares[0] - shares[1], np.sqrt(variances[0] + variances[1])
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(difference == 0, 0.0, np.abs(difference) / error)
    p_values = 2 * stats.t.sf(t, np.maximum(np.minimum(*cases) - 1, 1))
    compared = int(enough.sum())
    marked = enough & (np.abs(difference) >= LEAST_DIFFERENCE) & (p_values * compared < LEVEL)
    used = np.union1d(source, target)
    number = {int(token): place for place, token in enumerate(used)}
    occurrences = [_occurrences(side, size) for side in (data, model)]
    positions = np.where(occurrences[0] > 0, _positions(data, size), _positions(model, size))
    order = np.lexsort((pairs, -times[1], -times[0]))

    def share_of(side: int, row: int) -> float | None:
        return float(shares[side][row]) if sides[side].sources[source[row]] else None

    return ProcessMap(
        [
            Node(
                START if token == size - 1 else names[token],
                "start" if token == size - 1 else "end" if token == end else "event",
                int(occurrences[0][token]),
                int(occurrences[1][token]),
                float(positions[token]),
            )
            for token in used.tolist()
        ],
        [
            Edge(
                number[int(source[row])],
                number[int(target[row])],
                int(times[0][row]),
                int(times[1][row]),
                share_of(0, row),
                share_of(1, row),
                float(p_values[row]) if enough[row] else None,
                bool(marked[row]),
            )
            for row in order.tolist()
        ],
        len(data),
        len(model),
        compared,
    )


def _occurrences(sequences: Ragged, size: int) -> np.ndarray:
    """(size,) occurrences of each token, and at last of the start."""
    return np.append(np.bincount(sequences.tokens, minlength=size - 1), len(sequences))


def _positions(sequences: Ragged, size: int) -> np.ndarray:
    """(size,) mean place of each token in its sequence, counted from 0; -1 for the start and what does not occur."""
    counts = np.bincount(sequences.tokens, minlength=size)
    sums = np.bincount(sequences.tokens, sequences.columns(), minlength=size)
    return np.where(counts > 0, sums / np.maximum(counts, 1), -1.0)


def _counts(sequences: Ragged, size: int) -> _Counts:
    """The pairs of consecutive tokens, the start before the first."""
    tokens = sequences.tokens.astype(np.int64)
    row = np.repeat(np.arange(len(sequences)), sequences.lengths)
    before = np.empty_like(tokens)
    before[1:] = tokens[:-1]
    filled = sequences.lengths > 0
    before[sequences.starts[filled]] = size - 1
    pair = before * size + tokens
    pairs, index = np.unique(pair, return_inverse=True)
    # One key for each case and pair, and for each case and source.
    in_case, of_case = np.unique(row * len(pairs) + index, return_counts=True)
    source_in_case, of_source = np.unique(row * size + before, return_counts=True)
    case, number = in_case // max(len(pairs), 1), in_case % max(len(pairs), 1)
    sources = source_in_case % size
    total = np.bincount(sources, of_source, size)
    others = total[sources] - of_source
    weight = np.where(others > 0, 1.0 / np.maximum(others, 1) ** 2, 0.0)  # with a single case, nothing is compared
    place = np.searchsorted(source_in_case, case * size + pairs[number] // size)
    return _Counts(
        pairs,
        np.bincount(number, of_case, len(pairs)).astype(np.int64),
        np.bincount(number, weight[place] * of_case.astype(float) ** 2, len(pairs)),
        np.bincount(number, weight[place] * of_case.astype(float) * of_source[place], len(pairs)),
        total.astype(np.int64),
        np.bincount(sources, weight * of_source.astype(float) ** 2, size),
        np.bincount(sources, minlength=size),
    )


COVERED = 0.95
"""Share of all transitions that the frequent edges cover."""
MOST_EDGES = 45
"""Most edges of the map of frequent ones."""
MOST_MARKED = 15
"""Most edges that are added to them since they differ."""


def frequent(graph: ProcessMap) -> list[int]:
    """Numbers of the edges to draw: the fewest that cover `COVERED` of the transitions of data and samples, at most
    `MOST_EDGES`; of the others the most frequent that differ, at most `MOST_MARKED`; and the most frequent edges to the
    end, and to and from each node that is drawn."""
    totals = [max(1, sum(getattr(edge, side) for edge in graph.edges)) for side in ("data", "model")]
    weights = np.array([edge.data / totals[0] + edge.model / totals[1] for edge in graph.edges])
    order = np.argsort(-weights, kind="stable")
    reached = np.cumsum(weights[order])
    count = min(MOST_EDGES, int(np.searchsorted(reached, COVERED * weights.sum())) + 1)
    chosen = set(order[:count].tolist())
    marked = [place for place in order.tolist() if graph.edges[place].differs and place not in chosen]
    chosen |= set(marked[:MOST_MARKED])
    last = [place for place in order.tolist() if graph.nodes[graph.edges[place].target].kind == "end"]
    chosen |= set(last[:1])
    drawn = {node for place in chosen for node in (graph.edges[place].source, graph.edges[place].target)}
    for end in ("source", "target"):
        best: dict[int, int] = {}
        for place in order.tolist():
            edge = graph.edges[place]
            if edge.source != edge.target and {edge.source, edge.target} <= drawn:
                best.setdefault(getattr(edge, end), place)
        chosen |= set(best.values())
    return sorted(chosen)
