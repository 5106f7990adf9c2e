"""Drawings of one plane can be compared: they have the same limits."""

import pytest

from statewise.figures import Drawing, Layer, Points
from statewise.reporting.drawings import save_drawings, save_page


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
    pytest.importorskip("plotly")
    path = tmp_path / "drawings.html"
    save_page([Drawing("a & b\nc", [Layer("frame", [[[0.0, 0.0], [1.0, 1.0]]], [""])])], path, "map of <a>")
    page = path.read_text()
    assert "<title>statewise: map of &lt;a&gt;</title>" in page
    assert "<h2>a &amp; b\nc</h2>" in page
    assert '<meta name="viewport" content="width=device-width' in page


def test_a_drawing_of_nothing_and_one_of_a_single_point_are_drawn(tmp_path):
    path = tmp_path / "drawings.png"
    save_drawings([Drawing("nothing", []), Drawing("one", [], [Points([[2.0, 2.0]], ["#000000"])])], path)
    assert path.read_bytes().startswith(b"\x89PNG")
