"""Drawings of one plane can be compared: they have the same limits."""

import json
import math
import re
from dataclasses import asdict

import pytest
from doubles import make_run

from statewise.reporting.drawings import save_drawings, save_page, star_graph_svg
from statewise.reporting.figures import Drawing, Layer, Points, Text
from statewise.reporting.grouping import compare
from statewise.reporting.report import write_report
from statewise.run import Run

pytestmark = pytest.mark.usefixtures("rendered")


def test_drawings_of_one_plane_have_the_same_limits(tmp_path, monkeypatch):
    from matplotlib.figure import Figure

    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: drawn.extend(figure.axes))
    frame = Layer("frame", [[[0.0, 0.0], [1.0, 1.0]]], [""])
    save_drawings(
        [
            Drawing("true", [frame], [Points([[0.5, 0.5]], ["#000000"])], plane="beliefs"),
            Drawing("predicted", [frame], [Points([[-3.0, 4.0]], ["#000000"])], plane="beliefs"),
            Drawing("of its own", [frame]),
        ],
        tmp_path / "drawings.png",
    )
    true, predicted, own = ((*axes.get_xlim(), *axes.get_ylim()) for axes in drawn)
    assert true == predicted
    assert true[0] < -3
    assert true[3] > 4
    assert own[1] == pytest.approx(1, abs=0.1)


def test_titles_lie_on_nothing_and_are_not_cut_off(tmp_path, monkeypatch):
    from matplotlib.figure import Figure

    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
    title = "next_token, seed {}\n184 true and 69 new streets, by 100 rides, 2 of them unreadable"
    maps = [Layer("true", [[[0.0, 0.0], [9.0, 8.0 + 2 * place]]], [""]) for place in range(6)]
    drawings = [Drawing(title.format(place), [layer, Layer("new", [], [])]) for place, layer in enumerate(maps)]
    for some in (drawings[:1], drawings[:4], drawings):
        save_drawings(some, tmp_path / "drawings.png")
        figure = figures.pop()
        figure.draw_without_rendering()
        boxes = [axes.title.get_window_extent() for axes in figure.axes]
        boxes += [axes.get_window_extent() for axes in figure.axes] + [figure.legends[0].get_window_extent()]
        for place, box in enumerate(boxes):
            assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1
            assert figure.bbox.y0 <= box.y0 < box.y1 <= figure.bbox.y1
            assert not any(box.overlaps(other) for other in boxes[place + 1 :])


def test_the_page_of_drawings_has_titles_and_fits_a_phone(tmp_path):
    path = tmp_path / "drawings.html"
    save_page(
        [Drawing("a & b\nc", [Layer("frame", [[[0.0, 0.0], [1.0, 1.0]]], [""])])], path, "map of <a>", "It has <b>."
    )
    page = path.read_text()
    assert page.index("<h1>") < page.index('<p class="finding">It has &lt;b&gt;.</p>') < page.index("<canvas")
    assert "<title>statewise: map of &lt;a&gt;</title>" in page
    assert "<h3>a &amp; b\nc</h3>" in page
    assert '<meta name="viewport" content="width=device-width' in page
    assert "prefers-color-scheme: dark" in page


def beliefs(plane="beliefs", steps=range(12)):
    """True beliefs, a prediction, and one of each step."""
    dots = [Points([[0.1, 0.2], [0.8, 0.9]], ["#ff0000", "#00ff00"])]
    titles = {"x_title": "axis 1", "y_title": "axis 2", "note": "Dots: beliefs."}
    return [
        Drawing("true", [], dots, plane, true=True, **titles),
        Drawing("last state", [], dots, plane, **titles),
        *(Drawing(f"step {10 * step}", [], dots, plane, step=10 * step, **titles) for step in steps),
    ]


def data(page):
    return [json.loads(found) for found in re.findall(r'<script type="application/json">(.*?)</script>', page)]


def test_drawings_over_training_are_one_plot_with_a_slider_beside_the_true_one(tmp_path):
    path = tmp_path / "drawings.html"
    save_page([*beliefs(), *beliefs("factor 2, beliefs")], path, "run")
    page = path.read_text()
    assert page.count("<canvas") == 6  # of each plane: the true one, that over training, the other
    assert page.count('type="range"') == 2
    assert page.count('<div class="pinned"><figure') == 2
    plots = data(page)
    assert [[frame["title"] for frame in plot["frames"]] for plot in plots[:3]] == [
        ["true"],
        [f"step {10 * step}" for step in range(12)],
        ["last state"],
    ]
    assert "from 0 to 110" in page
    assert len({json.dumps(plot["limits"]) for plot in plots}) == 1
    dots = plots[0]["frames"][0]["points"][0]
    low, high = plots[0]["limits"]
    places = [
        [low[axis] + at[axis] / plots[0]["grid"] * (high[axis] - low[axis]) for axis in (0, 1)] for at in dots["places"]
    ]
    assert places == [pytest.approx([0.1, 0.2], abs=1e-4), pytest.approx([0.8, 0.9], abs=1e-4)]
    assert [plots[0]["frames"][0]["palette"][colour] for colour in dots["colours"]] == ["#ff0000", "#00ff00"]
    assert page.count("<p>Dots: beliefs.</p>") == 2, "once for each plane"


def test_no_page_has_webgl_contexts_of_which_browsers_keep_a_few(tmp_path):
    """Plots of a page beyond some 16 contexts were blank."""
    runs = [make_run(tmp_path / name, 1, 0.5, name) for name in ("next_token", "next_latent")]
    for folder in runs:
        drawn = [asdict(drawing) for drawing in beliefs()]
        Run(folder).write_report(
            "belief-geometry",
            {"checkpoint": 10, "settings": {}, "metrics": {}, "main": [], "panels": [], "drawings": drawn},
        )
    page = write_report(compare(runs, metrics="all"), tmp_path / "report")[-1].read_text()
    assert {*re.findall(r'getContext\("(\w+)"', page)} == {"2d"}
    assert page.count("<canvas role") == 6
    assert [plot["frames"][0]["title"] for plot in data(page)[::3]] == [
        "next-token, seed 1\ntrue",
        "next-latent, seed 1\ntrue",
    ]


def test_axes_texts_and_notes_are_drawn_within_the_figure(tmp_path, monkeypatch):
    from matplotlib.figure import Figure

    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
    for some in (beliefs(), [Drawing("simplex", [], [], texts=[Text([0.1, 0.2], "state 1")], note="note " * 60)]):
        save_drawings(some, tmp_path / "drawings.png")
        figure = figures.pop()
        figure.draw_without_rendering()
        texts = [text for axes in figure.axes for text in (axes.xaxis.label, axes.yaxis.label, axes.title, *axes.texts)]
        boxes = [text.get_window_extent() for text in [*texts, *figure.texts] if text.get_text() and text.get_visible()]
        for place, box in enumerate(boxes):
            assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1
            assert figure.bbox.y0 <= box.y0 < box.y1 <= figure.bbox.y1
            assert not any(box.overlaps(other) for other in boxes[place + 1 :])
        axes = figure.axes[0]
        assert axes.get_xlabel() == some[0].x_title
        assert " ".join(figure.texts[0].get_text().split()) == some[0].note.strip()


def test_a_drawing_of_nothing_and_one_of_a_single_point_are_drawn(tmp_path):
    path = tmp_path / "drawings.png"
    save_drawings([Drawing("nothing", []), Drawing("one", [], [Points([[2.0, 2.0]], ["#000000"])])], path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_graphs_show_right_and_wrong_steps():
    graph = {
        "edges": [[0, 1], [1, 2], [0, 3], [3, 4]],
        "start": 0,
        "goal": 2,
        "truth": [0, 1, 2],
        "predicted": [0, 3, 2],
    }
    svg = star_graph_svg(graph)
    assert svg.count("<circle") == 5
    assert len(re.findall(r"<(?:line|path)[^>]*#c8442f", svg)) == 2  # both steps are wrong,
    assert svg.count("stroke-dasharray") == 1  # and one of them is no edge
    assert len(re.findall(r"<circle[^>]*stroke=[^>]*#c8442f", svg)) == 1  # the last node is where it should be
    assert star_graph_svg({**graph, "predicted": [0, 1, 2]}).count("#c8442f") == 0
    assert star_graph_svg({**graph, "predicted": []}).count("<circle") == 5


def test_steps_that_are_no_edges_are_arcs_beside_the_arm_and_repeats_loops():
    graph = {"edges": [[0, 1], [1, 2], [0, 3], [3, 4]], "start": 0, "goal": 2, "truth": [0, 1, 2]}
    svg = star_graph_svg({**graph, "predicted": [0, 2, 2]})
    (arc, loop) = re.findall(r'<path d="([^"]*)"', svg)
    x1, y1, cx, cy, x2, y2 = (float(number) for number in re.findall(r"-?[\d.]+", arc))
    x, y, _ = next(node for node in nodes(svg) if node[2] == "1")
    assert abs((x2 - x1) * (y - y1) - (y2 - y1) * (x - x1)) < 1, "the straight line would lead through the node"
    middle = (x1 + 2 * cx + x2) / 4, (y1 + 2 * cy + y2) / 4
    radius = float(re.search(r'<circle[^>]* r="([\d.]+)"', svg)[1])
    assert math.dist(middle, (x, y)) > radius + 3
    assert loop.count("a") == 2
    assert len(set(re.findall(r'<path d="([^"]*)"', star_graph_svg({**graph, "predicted": [0, 0, 0]})))) == 2
    assert "<path" not in star_graph_svg({**graph, "predicted": [0, 3, 4]})


def nodes(svg):
    """(x, y, name) of each."""
    places = re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"', svg)
    return [(float(x), float(y), name) for (x, y), name in zip(places, re.findall(r">(\d+)</text>", svg))]
