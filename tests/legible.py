"""Whether all texts of a picture can be read."""

import itertools
import re
from contextlib import contextmanager
from xml.etree import ElementTree

from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.text import Text
from matplotlib.textpath import text_to_path


@contextmanager
def saved(monkeypatch):
    """The figures that the block would save as files, each with whether it is cropped to its content."""
    figures = []

    def save(figure, target, *_, bbox_inches=None, **__):
        figures.append((figure, bbox_inches == "tight"))
        target.write(b"")

    with monkeypatch.context() as patched:
        patched.setattr(Figure, "savefig", save)
        yield figures


def drawn_texts(figure, monkeypatch):
    """The texts that drawing the figure draws; labels of ticks outside of an axis are none."""
    texts, draw = [], Text.draw

    def note(text, *given, **named):
        if text.get_visible() and text.get_text().strip():
            texts.append(text)
        return draw(text, *given, **named)

    with monkeypatch.context() as patched:
        patched.setattr(Text, "draw", note)
        figure.draw_without_rendering()
    return list(dict.fromkeys(texts))


def assert_legible(figure, monkeypatch, *, cropped=False):
    """Asserts that all texts of a figure lie within it, unless it is `cropped` to its content, and none on another."""
    boxes = [(text.get_text(), text.get_window_extent()) for text in drawn_texts(figure, monkeypatch)]
    assert boxes
    whole = figure.bbox
    for text, box in boxes:
        inside = whole.x0 <= box.x0 and box.x1 <= whole.x1 + 1 and whole.y0 <= box.y0 and box.y1 <= whole.y1 + 1
        assert inside or cropped, f"{text!r} is cut off: {box} of {whole}"
    for (one, box), (other, its) in itertools.combinations(boxes, 2):
        assert not box.shrunk(0.98, 0.9).overlaps(its.shrunk(0.98, 0.9)), f"{one!r} lies on {other!r}"


def assert_svg_legible(picture, sizes):
    """The same of an SVG of our own. `sizes`: pixels of a text by its class."""
    root = ElementTree.fromstring(picture)
    _, _, width, height = map(float, root.get("viewBox").split())
    boxes = []
    for text in root.iter("{http://www.w3.org/2000/svg}text"):
        size = sizes[text.get("class")]
        wide = text_to_path.get_text_width_height_descent(text.text, FontProperties(size=size), ismath=False)[0]
        x, y = float(text.get("x")), float(text.get("y"))
        left = x - wide * {"start": 0, "middle": 0.5, "end": 1}[text.get("text-anchor")]
        boxes.append((text.text, left, left + wide, y - 0.75 * size, y + 0.2 * size))
    assert boxes
    for text, left, right, top, bottom in boxes:
        assert min(left, width - right, top, height - bottom) >= 0, f"{text!r} is cut off"
    for one, other in itertools.combinations(boxes, 2):
        apart = one[2] <= other[1] or other[2] <= one[1] or one[4] <= other[3] or other[4] <= one[3]
        assert apart, f"{one[0]!r} lies on {other[0]!r}"


def font_sizes(style):
    """Pixels of a text of each class of a style sheet, which has one for all texts."""
    sizes = dict(re.findall(r"(?:\.(\w*)|text) \{[^}]*font-size: (\d+)px", style))
    return {name: float(size) for name, size in sizes.items()}
