"""Panels as SVG elements."""

import math
import re
from xml.etree import ElementTree

import pytest

from statewise.reporting.figures import Curve, Panel
from statewise.reporting.svg import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, panel_keys, panel_svg, ticks

PANEL = Panel(
    "events <before>",
    "nats",
    [
        Curve("chance", [0.0, 10.0], [1.0, 1.0], "control"),
        Curve("a & b", [0.0, 5.0, 10.0], [0.0, math.nan, 2.0], band=[(0.0, 0.1), (0.5, 1.0), (1.5, 2.5)]),
        Curve("empty", [], []),
    ],
)


def test_points_stand_where_their_axes_say():
    root = ElementTree.fromstring(panel_svg(PANEL, 'what "it" shows'))
    assert root.attrib["aria-label"] == 'what "it" shows'
    dots = list(root.iter("circle"))
    assert len(dots) == 2  # NaN has no place, a control no dots
    assert float(dots[0].attrib["cx"]) == LEFT
    assert float(dots[1].attrib["cx"]) == WIDTH - RIGHT
    assert float(dots[0].attrib["cy"]) == HEIGHT - BOTTOM
    share = (HEIGHT - BOTTOM - float(dots[1].attrib["cy"])) / (HEIGHT - BOTTOM - TOP)
    assert share == pytest.approx(2 / (2.5 * 1.05), abs=1e-3)  # the band is within the axes, too
    assert [element.text for element in root.iter("title")] == ["a & b, 0: 0", "a & b, 10: 2"]
    assert "events <before>" in [element.text for element in root.iter("text")]


def test_the_key_has_the_look_of_each_line():
    keys, lines = panel_keys(PANEL), panel_svg(PANEL, "")
    looks = re.findall(r'stroke="(var[^"]*)" stroke-dasharray="([^"]*)"', keys)
    assert looks == [("var(--soft)", "3 4"), ("var(--c1)", "")]
    assert [dash for _, dash in looks] == re.findall(r'stroke-dasharray="([^"]*)"', lines)
    assert "a &amp; b" in keys
    assert "empty" not in keys


@pytest.mark.parametrize("panel", [Panel("", "", []), Panel("", "", [Curve("a", [1.0], [0.0])], shares=True)])
def test_panels_of_hardly_anything_are_drawn(panel):
    root = ElementTree.fromstring(panel_svg(panel, ""))
    places = [float(value) for element in root.iter() for name, value in element.attrib.items() if name in ("cx", "cy")]
    assert all(map(math.isfinite, places))


def test_ticks_are_round():
    assert ticks(0, 1) == [0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert ticks(3, 20) == [5, 10, 15, 20]
    assert ticks(2, 2) == [2]
    assert len(ticks(0, 1e-9)) in range(2, 8)
