"""What analyses found of runs, in a comparison: metrics in the table, curves in one plot."""

from dataclasses import replace

import pytest
from doubles import make_run

from statewise.reporting.grouping import compare
from statewise.reporting.panels import analysis_panels
from statewise.reporting.report import write_report
from statewise.run import Run


def line(label, x, y, role="line"):
    return {"label": label, "x": x, "y": y, "role": role}


def panel(curves, shares=False):
    return {"x_title": "rides", "y_title": "streets", "curves": curves, "shares": shares}


def means(panels):
    """The panels without single runs."""
    return [replace(one, curves=[curve for curve in one.curves if curve.role == "line"]) for one in panels]


def analysed(folder, name, panels=(), main=(), checkpoint=10, **settings):
    content = {
        "checkpoint": checkpoint,
        "settings": settings,
        "metrics": dict.fromkeys(main, 0.25),
        "main": list(main),
        "panels": list(panels),
        "drawings": [],
        "details": {},
        "notes": [],
        "verdict": f"{name} finds 3 < 4.",
    }
    Run(folder).write_report(name, content)


@pytest.fixture
def folders(tmp_path):
    """Two seeds of next_token, one of next_latent."""
    made = [make_run(tmp_path / f"a{seed}", seed, 0.5) for seed in (1, 2)]
    return [*made, make_run(tmp_path / "b1", 1, 0.9, "next_latent")]


def test_metrics_of_analyses_stand_in_the_table_when_asked_for(folders):
    for folder in folders:
        analysed(folder, "map", main=["new_streets"], sequences=100)
    assert "new_streets" not in compare(folders).as_text()
    text = compare(folders, metrics="all").as_text()
    assert "new_streets" in text
    assert "From analyze map (sequences 100): new_streets." in text
    assert list(compare(folders, metrics="new_streets").groups[0].metrics) == ["path_accuracy", "loss", "new_streets"]
    with pytest.raises(ValueError, match="not every run has the metric 'old_streets'"):
        compare(folders, metrics="old_streets")


def test_metrics_of_one_name_are_told_apart_by_their_analysis(folders):
    for folder in folders:
        analysed(folder, "future-probe-layer-all", main=["accuracy_blocks.0", "loss"])
        analysed(folder, "prompt-probe-layer-all", main=["accuracy_blocks.0", "other"])
        report = Run(folder).report("prompt-probe-layer-all")
        Run(folder).write_report(
            "prompt-probe-layer-all", {**report, "metrics": {"accuracy_blocks.0": 0.75, "other": 1}}
        )
    compared = compare(folders, metrics="all")
    assert {name: found.mean for name, found in compared.groups[0].metrics.items()} == {
        "path_accuracy": 0.5,
        "loss": 0.5,
        "future-probe-layer-all:accuracy_blocks.0": 0.25,
        "future-probe-layer-all:loss": 0.25,
        "prompt-probe-layer-all:accuracy_blocks.0": 0.75,
        "other": 1,
    }
    assert "prompt-probe-layer-all:accuracy_blocks.0, other." in compared.as_text(10_000)
    one = compare(folders, metrics="prompt-probe-layer-all:accuracy_blocks.0")
    assert one.shown_metrics() == ["path_accuracy", "prompt-probe-layer-all:accuracy_blocks.0"]
    with pytest.raises(ValueError, match=r"several analyses have the metric 'accuracy_blocks.0': choose future-probe-"):
        compare(folders, metrics="accuracy_blocks.0")
    assert compare(folders, metrics="loss").groups[0].metrics["loss"].mean == 0.5


def test_metrics_that_are_not_main_are_shown_by_name(folders):
    for folder in folders:
        analysed(folder, "belief-geometry", main=["r2"])
        report = Run(folder).report("belief-geometry")
        Run(folder).write_report(
            "belief-geometry", {**report, "metrics": {"r2": 0.5, "r2_untrained": 0.25, "loss": 2.0}}
        )
    assert "r2_untrained" not in compare(folders, metrics="all").groups[0].metrics
    found = compare(folders, metrics="r2_untrained,belief-geometry:loss").groups[0].metrics
    assert {name: one.mean for name, one in found.items()} == {
        "path_accuracy": 0.5,
        "loss": 0.5,
        "r2": 0.5,
        "r2_untrained": 0.25,
        "belief-geometry:loss": 2.0,
    }
    Run(folders[1]).write_report("belief-geometry", {**report, "metrics": {"r2": 0.5}})
    with pytest.raises(ValueError, match="not every run has the metric 'r2_untrained'"):
        compare(folders, metrics="r2_untrained")


def test_what_not_every_run_has_is_left_out_and_other_settings_are_refused(folders):
    analysed(folders[0], "map", main=["new_streets"], sequences=100)
    assert compare(folders, metrics="all").groups[0].members[0].analyses == {}
    for folder in folders[1:]:
        analysed(folder, "map", main=["new_streets"], sequences=200)
    with pytest.raises(ValueError, match=r"map with different settings \(sequences 100 and 200"):
        compare(folders, metrics="all")


def test_an_analysis_of_another_checkpoint_than_the_one_evaluated_does_not_count(folders):
    for folder in folders:
        analysed(folder, "map", main=["new_streets"], checkpoint=5 if folder == folders[0] else 10)
    assert "new_streets" not in compare(folders, metrics="all").as_text()


def test_curves_are_means_over_seeds(folders, tmp_path):
    """Also where a seed was looked at in other places: there its value is taken from between its neighbours."""
    found = ([0, 2, 4], [0.0, 4.0, 8.0]), ([0, 1, 4, 5], [2.0, 3.0, 6.0, 100.0]), ([0, 4], [1.0, 1.0])
    for folder, (x, y) in zip(folders, found):
        step = 10 * (1 + folders.index(folder))
        controls = [line("constant", [0, 1], [0.0, 0.0], "control"), line("untrained", [0, 1], [step, 0], "control")]
        analysed(folder, "probe", [panel([line(f"step {step}", x, y), *controls], shares=True)])
    compared = compare(folders, metrics="all")
    (whole,) = analysis_panels(compared)
    assert [curve.label for curve in whole.curves if curve.role == "control"] == ["constant"], "the same in all runs"
    (relative,) = analysis_panels(compare(folders, metrics="all", relative=True))
    assert not [curve for curve in relative.curves if curve.role == "control"]
    (overlay,) = means(analysis_panels(compared))
    assert (overlay.title, overlay.x_title, overlay.y_title, overlay.shares) == ("probe: streets", "rides", "", True)
    first, second = overlay.curves
    assert (first.group, first.label, first.x) == ("next-token", "", [0, 1, 2, 4])
    assert first.y == pytest.approx([1.0, 2.5, 4.0, 7.0])
    assert (second.group, second.x, second.y) == ("next-latent", [0, 4], [1.0, 1.0])
    written = {path.name: path for path in write_report(compared, tmp_path / "report")}
    assert written["analyses.png"].read_bytes().startswith(b"\x89PNG")
    page = written["report.html"].read_text()
    assert "<h2>Analyses</h2>" in page
    verdicts = [f"probe, {label}, seed 1: probe finds 3 &lt; 4." for label in ("next-token", "next-latent")]
    assert all(f"<p>{verdict}</p>" in page for verdict in verdicts), "of each group's first run"
    plain = compare(folders)
    assert analysis_panels(plain) == []
    again = {path.name: path for path in write_report(plain, tmp_path / "plain")}
    assert "analyses.png" not in again
    assert "<h2>Analyses</h2>" not in again["report.html"].read_text()


def test_several_curves_of_a_panel_are_told_apart_by_name(folders):
    """One group has both streams, the other but the first; a panel that a run lacks is not shown."""
    both = [line("input", [1, 2], [1.0, 1.0]), line("prediction", [1, 2], [3.0, 3.0])]
    for folder in folders:
        curves = both[:1] if folder == folders[2] else both
        analysed(folder, "ratio", [panel(curves), panel([] if folder == folders[2] else curves)])
    (overlay,) = means(analysis_panels(compare(folders, metrics="all")))
    assert [(one.group, one.label) for one in overlay.curves] == [
        ("next-token", "input"),
        ("next-token", "prediction"),
        ("next-latent", "input"),
    ]


def test_a_curve_that_one_seed_lacks_is_not_shown_for_the_group(folders):
    for folder in folders:
        curves = [line("input", [1], [1.0]), line("prediction", [1], [1.0])]
        analysed(folder, "ratio", [panel(curves[:1] if folder == folders[1] else curves)])
    (overlay,) = means(analysis_panels(compare(folders, metrics="all")))
    assert [(one.group, one.label) for one in overlay.curves] == [
        ("next-token", "input"),
        ("next-latent", "input"),
        ("next-latent", "prediction"),
    ]


def test_relative_curves_are_what_lies_above_the_first_group(folders):
    found = ([0, 2, 4], [0.0, 4.0, 8.0]), ([0, 2, 4], [2.0, 6.0, 10.0]), ([1, 2, 9], [5.0, 5.0, 5.0])
    for folder, (x, y) in zip(folders, found):
        analysed(folder, "probe", [panel([line("loss", x, y)], shares=True)])
    (overlay,) = means(analysis_panels(compare(folders, metrics="all", relative=True)))
    first, second = overlay.curves
    assert (first.x, first.y) == ([0, 2, 4], [0.0, 0.0, 0.0])
    assert (second.group, second.x, second.y) == ("next-latent", [1, 2], [2.0, 0.0])
    assert not overlay.shares
    assert overlay.title == "probe: streets, minus the first group"
    with pytest.raises(ValueError, match="add `metrics` all"):
        compare(folders, relative=True)


def test_relative_curves_have_no_logarithmic_axis(folders):
    """Differences may be 0 or negative."""
    for folder in folders:
        analysed(folder, "probe", [{**panel([line("loss", [1, 2], [0.5, 0.25])]), "log_y": True, "log_x": True}])
    (plain,), (relative,) = (analysis_panels(compare(folders, metrics="all", relative=one)) for one in (False, True))
    assert (plain.log_x, plain.log_y) == (True, True)
    assert (relative.log_x, relative.log_y) == (True, False)


def test_relative_to_a_group_without_a_curve_there_is_none(folders):
    both = [line("input", [1, 2], [1.0, 1.0]), line("prediction", [1, 2], [3.0, 3.0])]
    for folder in folders:
        analysed(folder, "ratio", [panel(both if folder == folders[2] else both[:1])])
    (overlay,) = means(analysis_panels(compare(folders, metrics="all", relative=True)))
    assert [(one.group, one.label, one.y) for one in overlay.curves] == [
        ("next-token", "input", [0.0, 0.0]),
        ("next-latent", "input", [0.0, 0.0]),
    ]
