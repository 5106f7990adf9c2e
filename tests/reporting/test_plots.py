"""Pictures of curves: which line is whose, and what is on the axes."""

import json
import math
import re
from dataclasses import replace

import pytest
from doubles import make_run

from statewise.reporting.figures import Curve, Look, Panel, looks
from statewise.reporting.grouping import compare
from statewise.reporting.panels import sweep_panels, training_panels
from statewise.reporting.plots import CARRIED, draw_panels, fitted, on_its_axes, panel_svg

pytestmark = pytest.mark.usefixtures("rendered")


def ended(folder, accuracies, reason):
    """A run with evaluations at steps 10, 20 and so on, and its end after the last."""
    records = [
        {"kind": "evaluation", "step": 10 * place, "path_accuracy": value, "loss": 1 - value, "seconds": place}
        for place, value in enumerate(accuracies, 1)
    ]
    last = {"kind": "end", "step": 10 * len(accuracies), "reason": reason, "seconds": 1.0}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in [*records, last]))
    return folder


def seeds(tmp_path, *runs):
    return [ended(make_run(tmp_path / f"a{seed}", seed, 0.5), *run) for seed, run in enumerate(runs, 1)]


def test_a_run_that_ended_counts_with_its_last_value_in_the_mean_and_the_range(tmp_path):
    runs = seeds(tmp_path, ([0.2, 1.0], "solved"), ([0.2, 0.4, 0.6, 1.0], "solved"), ([0.2, 0.4, 0.6, 0.7], "steps"))
    panels = training_panels(compare(runs))
    mean = panels[0].curves[0]
    assert mean.x == [10, 20, 30, 40]
    assert mean.y == pytest.approx([0.2, 0.6, 2.2 / 3, 0.9])
    assert mean.band == [(0.2, 0.2), (0.4, 1.0), (0.6, 1.0), (0.7, 1.0)]
    assert mean.carried == 20
    figure = draw_panels(panels, compare(runs).looks())
    assert CARRIED.split()[-1] in figure.legends[0].get_title().get_text()
    ends = [line.get_xydata().tolist() for line in figure.axes[0].lines if len(line.get_xdata()) == 1]
    assert ends == [[[20.0, 1.0]]], "a dot where the run ended"
    assert "next-token, seed 1\n20: 1.0000" in panel_svg(panels[0], compare(runs).looks())


def test_a_run_that_goes_on_ends_the_mean(tmp_path):
    runs = seeds(tmp_path, ([0.2, 0.3], "signal"), ([0.2, 0.4, 0.6, 1.0], "solved"))
    mean = training_panels(compare(runs))[0].curves[0]
    assert (mean.x, mean.carried) == ([10, 20], None)
    figure = draw_panels(training_panels(compare(runs)), compare(runs).looks())
    assert "last value" not in figure.legends[0].get_title().get_text()


def test_an_objective_has_its_colour_in_pictures_and_on_the_page_whatever_it_is_compared_with(tmp_path):
    names = ["next_token", "next_latent", "belief_state"]
    one = [make_run(tmp_path / name, 1, 0.5, name) for name in names]
    found = {}
    for chosen in (one, one[::-1], one[1:]):
        compared = compare(chosen)
        figure = draw_panels(training_panels(compared), compared.looks())
        legend = {
            text.get_text(): line.get_color()
            for text, line in zip(figure.legends[0].get_texts(), figure.legends[0].get_lines())
        }
        page = panel_svg(training_panels(compared)[0], compared.looks())
        for label, look in compared.looks().items():
            assert legend[label] == look.colour == found.setdefault(label, look.colour)
            assert f"stroke: {look.colour}" in page
    assert len({*found.values()}) == 3
    sweep = [
        make_run(tmp_path / f"w{window}", 1, 0.5, "next_latent", backbone={"name": "gpt", "window": window})
        for window in (1, 2, 3)
    ]
    assert {curve.colour for panel in sweep_panels(compare(sweep)) for curve in panel.curves} == {found["next-latent"]}


def test_one_legend_names_groups_labels_and_controls():
    groups = dict(zip(["a", "b"], looks(["next_token", "next_latent"])))
    lines = [
        Curve(label, [0.0, 1.0], [0.0, 1.0], group=group) for group in groups for label in ("trained", "untrained")
    ]
    control, other = (Curve(label, [0.0, 1.0], [0.5, 0.5], "control") for label in ("chance", "true belief"))
    panels = [Panel("x", "", [*lines, control], title="one"), Panel("x", "", [*lines, other, control], title="two")]
    figure = draw_panels(panels, groups)
    (legend,) = figure.legends
    styles = {
        text.get_text(): (line.get_color(), line.get_linestyle())
        for text, line in zip(legend.get_texts(), legend.get_lines())
    }
    assert list(styles) == ["a", "b", "trained", "untrained", "chance", "true belief"]
    assert len({*styles.values()}) == 6
    assert not any(axes.get_legend() for axes in figure.axes)
    for axes in figure.axes:
        for line in axes.lines:
            if line.get_label() in ("chance", "true belief"):
                assert (line.get_color(), line.get_linestyle()) == styles[line.get_label()], "the same in every panel"


def test_groups_of_which_each_panel_shows_one_are_named():
    """Their colours had no names."""
    groups = dict(zip(["a", "b"], looks(["next_token", "next_latent"])))
    panels = [Panel("x", "", [Curve("", [0.0, 1.0], [0.0, 1.0], group=group)], title="loss") for group in groups]
    assert [text.get_text() for text in draw_panels(panels, groups).legends[0].get_texts()] == ["a", "b"]


def test_a_legend_beside_a_plot_has_room_for_all_its_names():
    curves = [Curve(f"{'long name ' * 9}{place}", [0.0, 1.0], [0.0, 1.0]) for place in range(8)]
    figure = draw_panels([Panel("x", "y", curves)])
    figure.draw_without_rendering()
    box = figure.axes[0].get_legend().get_window_extent()
    assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1
    assert figure.bbox.y0 <= box.y0 < box.y1 <= figure.bbox.y1


def ends_of(values, **fields):
    """The names that stand at the ends of lines which end at these values, and the names in the legend."""
    curves = [Curve(name, [0.0, 1.0], [0.5, value], **fields) for name, value in values.items()]
    panel = Panel("x", "y", curves, shares=True)
    first, second = draw_panels([panel, panel]).axes
    assert not second.texts
    assert not second.get_legend(), "the lines are those of the first"
    legend = first.get_legend()
    return [text.get_text() for text in first.texts], [text.get_text() for text in legend.get_texts()] if legend else []


def test_names_stand_at_the_ends_of_lines_where_they_fit():
    assert ends_of({"low": 0.1, "high": 0.9, "middle": 0.4}) == (["low", "middle", "high"], [])
    assert ends_of({"one": 0.5, "two": 0.53}) == (["one", "two"], []), "moved apart by less than a line"
    assert ends_of({"one": 0.5, "two": 0.5, "three": 0.5, "four": 0.5}) == ([], ["one", "two", "three", "four"])
    assert ends_of({"one": 0.1, "two": math.nan}) == ([], ["one", "two"]), "the second ends at the left"
    assert ends_of({str(place): place / 7 for place in range(7)}) == ([], [*"0123456"])
    assert ends_of({"one": 0.1, "two": 0.9}, role="control") == (["one", "two"], [])
    curves = [Curve(name, [0.0, 1.0], [0.5, 0.5 + place / 50]) for place, name in enumerate("ab")]
    axes = draw_panels([Panel("x", "y", curves, shares=True)]).axes[0]
    assert [text.get_color() for text in axes.texts] == [line.get_color() for line in axes.lines]
    figure = axes.figure
    figure.draw_without_rendering()
    low, high = (text.get_window_extent() for text in axes.texts)
    assert low.y1 <= high.y0 + 1
    assert high.x1 <= figure.bbox.x1


def test_a_control_is_named_at_its_end_on_pages():
    panel = Panel(
        "x", "y", [Curve("", [0.0, 1.0], [0.0, 1.0], group="a"), Curve("chance", [0.0, 1.0], [0.3] * 2, "control")]
    )
    page = panel_svg(panel, {"a": Look("#123456")})
    (style,) = re.findall(r'<text style="([^"]*)"[^>]*>chance<', page)
    assert "#737373" in style
    assert ">a<" not in page, "the page names groups"


def test_zeros_stand_at_the_lower_edge_of_a_logarithmic_axis():
    """They lay outside, so that a curve seemed to end."""
    curves = [Curve("a", [1.0, 2.0, 3.0], [0.5, 0.02, 0.0]), Curve("b", [1.0, 2.0, 3.0], [0.0, math.nan, 0.7])]
    panel = Panel("step", "loss", curves, log_y=True)
    shown, lowest = on_its_axes(panel)
    assert lowest == pytest.approx(1e-3)
    assert shown.curves[0].y == [0.5, 0.02, lowest]
    axes = draw_panels([panel]).axes[0]
    assert axes.get_yscale() == "log"
    assert axes.get_ylim()[0] < lowest
    assert "at the lower edge: 0 or less" in axes.get_xlabel().replace("\n", " ")
    page = panel_svg(panel)
    assert "a\n3: 0.0000" in page, "the tooltip says the value"
    assert "lower edge" in page
    assert "b\n2: " not in page, "what is not a number has no place"
    assert on_its_axes(replace(panel, curves=[Curve("a", [1.0], [0.0])]))[0].log_y is False
    assert on_its_axes(replace(panel, curves=curves[:1], log_y=False)) == (
        replace(panel, curves=curves[:1], log_y=False),
        None,
    )
    assert on_its_axes(Panel("x", "y", [Curve("a", [0.0, 1.0], [1.0, 2.0])], log_x=True))[0].log_x is False


@pytest.mark.parametrize("values", [[2.0, 0.0], [0.0, 0.0], [-1.0, 0.0]])
def test_zeros_are_within_a_linear_axis(values):
    panel = Panel("step", "loss", [Curve("", [1.0, 2.0], values, group="a", band=[(value, value) for value in values])])
    low, high = draw_panels([panel], {"a": Look("#000000")}).axes[0].get_ylim()
    assert low < min(values) <= max(values) < high


def test_texts_are_broken_where_they_do_not_fit():
    assert fitted("one two three", 10, 10) == "one two three"
    assert fitted("one\ntwo  three", 10, 10) == "one\ntwo three"
    assert fitted("one two three", 0.35, 10) == "one\ntwo\nthre\ne"
    assert fitted("", 1, 10) == ""
    assert fitted("WW", 0.001, 10) == "W\nW"


def test_r2_below_zero_is_drawn_down_to_a_limit():
    """It was cut off at 0, and a panel of such values was empty."""
    for lowest, low in ((0.2, -0.03), (-0.2, -0.23), (-7.0, -1.03)):
        panel = Panel("x", "R2", [Curve("model", [1.0, 2.0, 3.0], [lowest, float("nan"), 0.9])], shares=True)
        assert draw_panels([panel]).axes[0].get_ylim() == pytest.approx((low, 1.05))


def test_ticks_are_where_evaluations_are():
    axes = draw_panels([Panel("step", "y", [Curve("a", [10.0, 20.0, 30.0], [1.0, 2.0, 3.0])])]).axes[0]
    low, high = axes.get_xlim()
    assert [tick for tick in axes.get_xticks() if low <= tick <= high] in ([10, 20, 30], [10, 15, 20, 25, 30])


def test_an_axis_does_not_enlarge_what_hardly_differs():
    flat = Panel("step", "norm", [Curve("a", [0.0, 1.0], [5.000, 5.002])])
    low, high = draw_panels([flat]).axes[0].get_ylim()
    assert (low, high) == pytest.approx((4.951, 5.051), abs=1e-3)
    for varied in (replace(flat, curves=[Curve("a", [0.0, 1.0], [5.0, 6.0])]), replace(flat, log_y=True)):
        low, high = draw_panels([varied]).axes[0].get_ylim()
        assert (low, high) != pytest.approx((4.951, 5.051), abs=1e-3)


def test_four_panels_stand_in_two_rows_of_two():
    panel = Panel("x", "y", [Curve("model", [1.0, 2.0], [0.0, 1.0])])
    for count, columns in ((2, 2), (3, 3), (4, 2), (5, 3)):
        axes = draw_panels([panel] * count).axes
        assert len({round(one.get_position().x0, 2) for one in axes}) == columns


def test_ticks_of_a_logarithmic_axis_leave_room_for_their_labels():
    steps = [1.0, 2.0, 3.0, 6.0, 11.0, 19.0, 34.0, 62.0, 111.0, 200.0]
    panel = Panel("x", "y", [Curve("model", steps, steps)], log_x=True)
    assert draw_panels([panel]).axes[0].get_xticks().tolist() == [1, 3, 6, 19, 62, 200]
