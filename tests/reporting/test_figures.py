"""Colours of objectives."""

import itertools

import pytest

from statewise.objectives import OBJECTIVES
from statewise.reporting.figures import OBJECTIVE_COLOURS, OTHER_COLOURS, looks, objective_colour


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
