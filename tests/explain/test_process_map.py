"""Directly-follows graphs and where they are drawn."""

import itertools
import os

import numpy as np
import pytest

from statewise.data_types import Ragged
from statewise.explain.layout import GAP, downwards, layout, of_plain
from statewise.explain.process_map import FEWEST_CASES, MOST_EDGES, frequent, process_map

NAMES, END = ["a", "b", "c", "<end>"], 3


def cases(*sequences):
    return Ragged.of([np.array(one) for one in sequences], [0] * len(sequences), len(NAMES))


def edge(graph, source, target):
    names = [node.name for node in graph.nodes]
    return next(one for one in graph.edges if (names[one.source], names[one.target]) == (source, target))


def test_counts_and_shares_by_hand():
    data = cases([0, 1, 1, 3], [0, 2, 3], [0, 1])  # the last is cut off
    graph = process_map(data, cases([0, 1, 3]), NAMES, END)
    assert [(node.name, node.kind, node.data, node.model) for node in graph.nodes] == [
        ("a", "event", 3, 1),
        ("b", "event", 3, 1),
        ("c", "event", 1, 0),
        ("<end>", "end", 2, 1),
        ("start", "start", 3, 1),
    ]
    assert [node.position for node in graph.nodes] == [0, 4 / 3, 1, 2.5, -1]
    assert (edge(graph, "start", "a").data, edge(graph, "start", "a").data_share) == (3, 1.0)
    assert edge(graph, "a", "b").data_share == pytest.approx(2 / 3)
    assert edge(graph, "b", "b").data_share == 0.5  # of the two times that something follows b
    assert (edge(graph, "b", "<end>").data_share, edge(graph, "b", "<end>").model_share) == (0.5, 1.0)
    assert (edge(graph, "c", "<end>").model, edge(graph, "c", "<end>").model_share) == (0, None)
    assert graph.compared == 0
    assert all(one.p_value is None for one in graph.edges)
    assert sum(one.data for one in graph.edges) == sum(data.lengths)


def test_an_edge_that_differs_is_marked_and_equal_ones_are_not():
    rng = np.random.default_rng(0)

    def drawn(share, count):
        return cases(*([0, 1 if rng.random() < share else 2, 3] for _ in range(count)))

    graph = process_map(drawn(0.5, 400), drawn(0.9, 400), NAMES, END)
    assert {(graph.nodes[one.source].name, graph.nodes[one.target].name) for one in graph.edges if one.differs} == {
        ("a", "b"),
        ("a", "c"),
    }
    assert not any(one.differs for one in process_map(drawn(0.5, 400), drawn(0.5, 400), NAMES, END).edges)
    few = process_map(drawn(0.0, FEWEST_CASES - 1), drawn(1.0, 400), NAMES, END)
    assert not any(one.differs for one in few.edges)


def test_repetitions_in_one_case_do_not_make_a_difference():
    """Counted over events, one long case would make the share of loops significant."""
    plain = [[0, 1, 3]] * 40
    data = cases(*plain, [0, *[1] * 200, 3])
    assert not any(one.differs for one in process_map(data, cases(*plain, [0, 1, 3]), NAMES, END).edges)


def test_few_false_alarms_where_nothing_differs():
    rng, alarms = np.random.default_rng(1), 0
    for _ in range(100):

        def drawn():
            return cases(*([0, *[1] * rng.geometric(0.4), 2 if rng.random() < 0.5 else 0, 3] for _ in range(150)))

        alarms += any(one.differs for one in process_map(drawn(), drawn(), NAMES, END).edges)
    assert alarms <= 12  # of 100 at a level of .05: more with a probability of .0015


def test_the_map_of_frequent_edges_is_small_and_connected():
    rng = np.random.default_rng(2)
    names = [*(f"e{number}" for number in range(60)), "<end>"]
    rows = [np.append(np.minimum(rng.geometric(0.05, 8) - 1, 59), 60) for _ in range(600)]
    data = Ragged.of(rows, [0] * len(rows), len(names))
    graph = process_map(data, data, names, 60)
    shown = frequent(graph)
    drawn = {node for place in shown for node in (graph.edges[place].source, graph.edges[place].target)}
    assert len(graph.edges) > 1000
    assert MOST_EDGES <= len(shown) <= MOST_EDGES + 2 * len(drawn)
    ends = {graph.edges[place].target for place in shown}, {graph.edges[place].source for place in shown}
    kinds = {node: graph.nodes[node].kind for node in drawn}
    assert all(node in ends[0] for node, kind in kinds.items() if kind != "start")
    assert all(node in ends[1] for node, kind in kinds.items() if kind != "end")


# Layout

SIZES = [(40.0, 20.0), (60.0, 20.0), (60.0, 20.0), (40.0, 20.0), (50.0, 30.0)]
EDGES = [(0, 1), (0, 2), (1, 3), (2, 3), (3, 0), (2, 2), (0, 4), (4, 3), (0, 3)]
WEIGHTS = [5.0, 4.0, 5.0, 4.0, 1.0, 1.0, 2.0, 2.0, 1.0]
RANK = [0.0, 1.0, 1.0, 2.0, 1.5]


def test_little_weight_leads_upwards():
    order = downwards(5, EDGES, RANK, WEIGHTS)
    place = {node: at for at, node in enumerate(order)}
    assert [(source, target) for source, target in EDGES if place[source] > place[target]] == [(3, 0)]


def test_nodes_do_not_overlap_and_edges_join_them():
    made = layout(SIZES, EDGES, RANK, WEIGHTS, use_dot=False)
    boxes = [(x, y, *size) for (x, y), size in zip(made.places, SIZES)]
    for (x, y, w, h), (x2, y2, w2, h2) in itertools.combinations(boxes, 2):
        assert abs(x - x2) >= (w + w2) / 2 + GAP - 1e-6 or abs(y - y2) >= (h + h2) / 2
    for x, y, w, h in boxes:
        assert w / 2 - 1e-6 <= x <= made.width - w / 2 + 1e-6
        assert h / 2 - 1e-6 <= y <= made.height - h / 2 + 1e-6
    for (source, target), path in zip(EDGES, made.paths):
        assert len(path) % 3 == 1
        for node, (px, py) in ((source, path[0]), (target, path[-1])):
            x, y, w, h = boxes[node]
            assert abs(px - x) <= w / 2 + 1e-6
            assert abs(py - y) == pytest.approx(h / 2) or abs(px - x) == pytest.approx(w / 2)
    assert made.places[0][1] < made.places[1][1] < made.places[3][1]


@pytest.mark.parametrize("count", [1, 2, 30])
def test_odd_graphs_have_a_layout(count):
    rng = np.random.default_rng(count)
    edges = sorted({(int(a), int(b)) for a, b in rng.integers(count, size=(3 * count, 2))})
    made = layout([(50.0, 20.0)] * count, edges, rng.random(count).tolist(), [0.0] * len(edges), use_dot=False)
    assert len(made.places) == count
    assert len(made.paths) == len(edges)
    assert np.isfinite([*made.places, *(point for path in made.paths for point in path)]).all()


PLAIN = """graph 1 3 4
node n0 1.5 3.5 .5 .3 "" solid box black lightgrey
node n1 1 1.25 .5 .3 "" solid box black lightgrey
edge n0 n1 4 1.5 3.25 1.25 3 \\
1 2 1 1.5 solid black
stop
"""


def test_the_layout_of_dot_is_used_if_it_is_there(tmp_path, monkeypatch):
    made = of_plain(PLAIN, 2, [(0, 1)])
    assert (made.width, made.height, made.by) == (216, 288, "dot")
    assert made.places == [(108, 36), (72, 198)]
    assert made.paths == [[(108, 54), (90, 72), (72, 144), (72, 180)]]
    program = tmp_path / "dot"
    program.write_text(f"#!/bin/sh\ncat > {tmp_path}/asked\ncat <<'X'\n{PLAIN}X\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    sizes, rank = [(36.0, 20.0), (36.0, 20.0)], [0.0, 1.0]
    assert layout(sizes, [(0, 1)], rank, [1.0]) == made
    assert "n0 -> n1" in (tmp_path / "asked").read_text()
    for broken in ("exit 1", "echo nonsense", "echo node n7 1 1"):
        program.write_text(f"#!/bin/sh\n{broken}\n")
        assert layout(sizes, [(0, 1)], rank, [1.0]).by == "layers"
