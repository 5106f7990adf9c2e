"""Drawings of one plane can be compared: they have the same limits."""

import pytest

from statewise.figures import Drawing, Layer, Points
from statewise.reporting.drawings import save_drawings


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


def test_a_drawing_of_nothing_and_one_of_a_single_point_are_drawn(tmp_path):
    path = tmp_path / "drawings.png"
    save_drawings([Drawing("nothing", []), Drawing("one", [], [Points([[2.0, 2.0]], ["#000000"])])], path)
    assert path.read_bytes().startswith(b"\x89PNG")
