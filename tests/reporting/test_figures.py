"""Colours of objectives, and lines that share a panel."""

import itertools
import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from statewise.objectives import OBJECTIVES
from statewise.reporting.figures import (
    MOST_GROUPS,
    MOST_LINES,
    OBJECTIVE_COLOURS,
    OTHER_COLOURS,
    Curve,
    Look,
    Panel,
    looks,
    objective_colour,
    small_multiples,
)
from statewise.reporting.plots import draw_panels, panel_svg


def luminance(colour):
    """Relative luminance, as WCAG 2 defines it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear))


def test_every_objective_has_a_colour_of_its_own():
    assert {*OBJECTIVES} == {*OBJECTIVE_COLOURS}
    every = [*OBJECTIVE_COLOURS.values(), *OTHER_COLOURS]
    apart = [
        max(abs(int(one[at : at + 2], 16) - int(other[at : at + 2], 16)) for at in (1, 3, 5))
        for one, other in itertools.combinations(every, 2)
    ]
    assert min(apart) >= 24


@pytest.mark.parametrize("background", ["#ffffff", "#14181e"])
def test_colours_can_be_read_on_bright_and_dark_pages(background):
    for colour in (*OBJECTIVE_COLOURS.values(), *OTHER_COLOURS):
        low, high = sorted([luminance(colour), luminance(background)])
        assert (high + 0.05) / (low + 0.05) >= 3, colour


def test_groups_of_one_objective_have_shades_and_markers():
    first, second, third, other = looks(["next_token", "next_token", "next_token", "next_latent"])
    assert first.colour == objective_colour("next_token")
    assert other.colour == objective_colour("next_latent")
    assert len({first, second, third, other}) == 4
    assert len({look.marker for look in (first, second, third)}) == 3
    assert len({look.colour for look in looks(["belief_state"] * 6)}) == 6


def test_objectives_from_elsewhere_keep_their_colour_and_differ_in_a_comparison():
    alone = looks(["mine:Own"])[0].colour
    assert alone == looks(["next_token", "mine:Own"])[1].colour
    assert alone not in OBJECTIVE_COLOURS.values()
    assert len({look.colour for look in looks(["mine:One", "mine:Two", "mine:Three"])}) == 3
    assert len(looks([f"mine:{place}" for place in range(9)])) == 9


def lines(groups, labels):
    return [Curve(label, [0.0, 1.0], [0.0, 1.0], group=group) for group in groups for label in labels]


def seen(panel):
    return [(curve.group, curve.label) for curve in panel.curves if curve.role == "line"]


def test_more_lines_than_can_be_told_apart_become_small_multiples():
    few, control = lines("ab", "xyz"), Curve("chance", [0.0, 1.0], [0.5, 0.5], "control")
    panel = Panel("x", "y", [*few, control], title="probe")
    assert small_multiples(panel) == [panel]
    by_label = small_multiples(replace(panel, curves=[*lines("abc", "xyz"), control]))
    assert [one.title for one in by_label] == ["probe: x", "probe: y", "probe: z"]
    assert [seen(one) for one in by_label] == [[(group, label) for group in "abc"] for label in "xyz"]
    assert all(control in one.curves for one in by_label)
    groups = "abcdefg"
    assert len(groups) == MOST_GROUPS + 1 < MOST_LINES
    by_group = small_multiples(replace(panel, curves=[*lines(groups, "x"), control]))
    assert [(one.title, one.y_title) for one in by_group] == [(group, "probe: y") for group in groups]
    assert [seen(one) for one in by_group] == [[(group, "x")] for group in groups]
    assert len(small_multiples(replace(panel, curves=lines(groups[1:], "x")))) == 1
    by_both = small_multiples(replace(panel, curves=lines("abcdefghi", "xy")))
    assert [(one.title, one.y_title) for one in by_both] == [
        (group, f"probe: {label}: y") for label in "xy" for group in "abcdefghi"
    ]
    assert [seen(one) for one in by_both] == [[(group, label)] for label in "xy" for group in "abcdefghi"]
    assert all([curve.role for curve in one.curves] == ["background"] * 8 + ["line"] for one in by_both)


def test_lines_of_one_model_are_taken_apart_by_name_with_what_they_smooth():
    curves = [curve for label in "abcdefghi" for curve in (*lines([""], label), Curve(label, [0.0], [0.0], "raw"))]
    multiples = small_multiples(Panel("x", "y", curves))
    assert [one.title for one in multiples] == list("abcdefghi")
    assert [[curve.label for curve in one.curves if curve.role == "raw"] for one in multiples] == [
        [label] for label in "abcdefghi"
    ]
    figure = draw_panels([Panel("x", "y", curves)])
    assert len(figure.axes) == 9
    assert len({axes.get_ylim() for axes in figure.axes}) == 1


def test_legends_of_the_page_lie_on_no_title():
    chance = Curve("chance", [0.0, 1.0], [0.0, 1.0], "control")
    panel = Panel("step", "y", [chance, *lines(["a" * 90], ["", "other"])], title="t")
    svg = ElementTree.fromstring(panel_svg(panel, {"a" * 90: Look("#000000")}))
    texts = {text.text: text for text in svg.iter("text")}
    assert "chance" in texts
    assert not {"a" * 90, "t"} & {*texts}, "the page names the groups, and wraps the title"
    places = {name: height(texts[name]) for name in ("chance", "0.0", "1.0", "step")}
    assert places["chance"] < places["1.0"] < places["0.0"] < places["step"]


def height(text):
    """The vertical place of an SVG text."""
    turned = re.search(r"translate\(\S+ ([\d.]+)\)", text.get("transform", ""))
    return float(turned[1] if turned else text.get("y"))


def test_points_of_the_page_have_their_values_and_names_as_tooltips():
    curves = [
        Curve("<b>", [0.0, 1.0], [0.25, 0.5], group="g"),
        Curve("dense", [n / 999 for n in range(1000)], [0.5] * 1000),
    ]
    text = panel_svg(Panel("step", "y", curves, title="t & u"), {"g": Look("#123456")})
    svg = ElementTree.fromstring(text)
    assert svg.get("aria-label") == "t & u"
    tips = ["".join(tip.itertext()) for tip in svg.iter("circle")]
    assert tips[:2] == ["g, <b>\n0: 0.2500", "g, <b>\n1: 0.5000"]
    assert 50 < len(tips) < 150, "points that lie on each other share one"
    assert len(panel_svg(Panel("step", "y", curves[:1]))) < 20_000
    assert text == panel_svg(Panel("step", "y", curves, title="t & u"), {"g": Look("#123456")}), "no ids by chance"
