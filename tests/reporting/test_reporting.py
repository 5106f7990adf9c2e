import errno
import json
import math
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from doubles import make_run
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from scipy import stats

from statewise.reporting.comparison import letter_of
from statewise.reporting.drawings import star_graph_svg
from statewise.reporting.figures import MOST_GROUPS, MOST_LINES, Curve, Look, Panel, small_multiples
from statewise.reporting.grouping import compare
from statewise.reporting.labels import setting_words
from statewise.reporting.panels import training_panels
from statewise.reporting.plots import draw_panels, interactive
from statewise.reporting.report import _agreed, write_report
from statewise.reporting.statistics import equivalence, summarise, welch
from statewise.reporting.tables import fitted_notes, fitted_tables, markdown_table, number, text_table, with_texts
from statewise.run import Run


def test_groups_are_runs_that_differ_in_the_seed_alone(tmp_path):
    folders = [
        make_run(tmp_path / "a1", 1, 0.5),
        make_run(tmp_path / "b1", 1, 1.0, "next_latent"),
        make_run(tmp_path / "a2", 2, 0.52),
        make_run(tmp_path / "b2", 2, 0.8, "next_latent"),
        make_run(tmp_path / "b3", 3, 1.0, "next_latent"),
        make_run(tmp_path / "c1", 1, 0.7, "next_latent", clip=3.0),
    ]
    found = compare(folders)
    assert [group.label for group in found.groups] == [
        "next-token",
        "next-latent (gradient clipping not set)",
        "next-latent (gradient clipping 3)",
    ]
    assert [len(group.members) for group in found.groups] == [2, 3, 1]
    assert [group.solved for group in found.groups] == [0, 2, 0]
    second = found.groups[1].metrics["path_accuracy"]
    assert second.values == {1: 1.0, 2: 0.8, 3: 1.0}
    assert second.mean == pytest.approx(2.8 / 3)
    assert second.p_value == pytest.approx(stats.ttest_ind([1.0, 0.8, 1.0], [0.5, 0.52], equal_var=False).pvalue)
    assert found.differences["objective"] == ["next_token", "next_latent", "next_latent"]
    parsed = json.loads(found.as_json())
    assert parsed["groups"][1]["metrics"]["path_accuracy"]["values"] == {"1": 1.0, "2": 0.8, "3": 1.0}


def test_the_page_stands_alone_and_escapes_what_it_shows(tmp_path):
    found = compare([make_run(tmp_path / "a", 1, 0.5), make_run(tmp_path / "b", 1, 1.0, "next_latent")])
    paths = write_report(found, tmp_path / "report")
    page = paths[-1].read_text()
    assert "<script>" not in re.sub(r"<script[^>]*>.*?</script>", "", page, flags=re.DOTALL).replace(
        "&lt;script&gt;", ""
    )
    assert not re.search(r'<(script|link|img)[^>]*(src|href)="?http', page)
    assert "&lt;script&gt;" in page
    with pytest.raises(FileExistsError, match="or give --overwrite"):
        write_report(found, tmp_path / "report")
    write_report(found, tmp_path / "report", overwrite=True)


def test_a_report_that_cannot_be_written_leaves_the_old_one_whole(tmp_path, monkeypatch):
    """Not the table of one comparison beside the page of another."""
    out, old, new = tmp_path / "report", make_run(tmp_path / "a", 1, 0.5), make_run(tmp_path / "b", 1, 1.0)
    write_report(compare([old]), out)
    before, synced = {path.name: path.read_bytes() for path in out.iterdir()}, []

    def full(_):
        synced.append(1)
        if len(synced) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_report(compare([new]), out, overwrite=True)
    monkeypatch.undo()
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    write_report(compare([new]), out, overwrite=True)
    assert (out / "report.json").read_bytes() != before["report.json"]


PANELS = (
    "path accuracy, held out",
    "loss, held out (nats per token)",
    "next-token loss in training (nats per prediction)",
)


@pytest.mark.parametrize("groups", [1, 3, MOST_GROUPS, MOST_GROUPS + 1])
@pytest.mark.parametrize("panels", [1, 3])
def test_no_text_of_a_figure_is_cut_off_or_lies_on_a_plot_however_long_labels_are(tmp_path, groups, panels):
    long = {f"option_{place}": "W" * 12 for place in range(6)}
    folders = [
        make_run(tmp_path / str(number), 1, 0.5, **{name: f"{value}{number}" for name, value in long.items()})
        for number in range(groups)
    ]
    found = compare(folders)
    labels = [group.label for group in found.groups]
    assert groups == 1 or len(labels[0]) > 100
    figure = draw_panels(training_panels(found)[:panels], found.looks(), heading="W" * 150 + " " + "path " * 40)
    nothing_is_cut(figure)
    (legend,) = figure.legends
    named = ["".join(text.get_text().split()) for text in legend.get_texts()]
    if groups > MOST_GROUPS:  # each has plots of its own, named above them
        assert named == ["chance"]
        titles = ["".join(axes.get_title().split()) for axes in figure.axes]
        assert titles == ["".join(label.split()) for label in labels] * panels
        assert {axes.get_ylabel().replace("\n", " ") for axes in figure.axes} <= {"", *PANELS}
    else:
        assert named == ["".join(label.split()) for label in [*labels, "chance"]]
        assert all(axes.get_window_extent().height > 200 for axes in figure.axes)  # pixels of 360: not squeezed for it


def nothing_is_cut(figure):
    """All texts are within the figure, and none lies on a plot or on another text."""
    figure.draw_without_rendering()
    texts = [text for axes in figure.axes for text in (axes.title, axes.xaxis.label, axes.yaxis.label)]
    legends = [*figure.legends, *(axes.get_legend() for axes in figure.axes if axes.get_legend())]
    texts += [text for legend in legends for text in (*legend.get_texts(), legend.get_title())]
    texts += [figure._suptitle] if figure.get_suptitle() else []
    boxes = [text.get_window_extent() for text in texts if text.get_text()]
    assert boxes
    for place, box in enumerate(boxes):
        assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1 + 1
        assert figure.bbox.y0 <= box.y0 < box.y1 <= figure.bbox.y1 + 1
        assert not any(box.overlaps(axes.get_window_extent()) for axes in figure.axes)
        assert not any(box.shrunk(0.98, 0.9).overlaps(other.shrunk(0.98, 0.9)) for other in boxes[place + 1 :])


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("objective.kl_weight", 0.1, "KL weight 0.1"),
        ("trainer.clip", 0, "without gradient clipping"),
        ("trainer.clip", 1.0, "gradient clipping 1"),
        ("trainer.tokens", None, "tokens not set"),
        ("trainer.betas", [0.9, 0.95], "AdamW betas 0.9, 0.95"),
        ("trainer.learning_rate", 3e-4, "learning rate 0.0003"),
        ("backbone.tied", False, "without tied head"),
        ("objective.stop_gradient", True, "with stop-gradient"),
        ("backbone", "two_stream", "backbone two stream"),
        ("backbone", "mine:Some_model", "backbone mine:Some_model"),
        ("objective.pairs", "any_prefix", "pairs any prefix"),
        ("task.held_out_graphs", 20, "held out graphs 20"),
        ("task.path", "my_file", "path my_file"),
        ("backbone.model", "my_tiny_gpt2", "model my_tiny_gpt2"),
    ],
)
def test_settings_are_told_in_words(key, value, words):
    assert setting_words(key, value) == words


def test_a_group_is_shown_by_its_mean_its_range_and_its_runs(tmp_path):
    folders = [make_run(tmp_path / f"a{seed}", seed, accuracy) for seed, accuracy in ((1, 0.2), (2, 0.9), (3, 0.4))]
    folders.append(make_run(tmp_path / "b", 1, 0.7, "next_latent"))
    accuracy = training_panels(compare(folders))[0]
    mean, *runs, single, chance = accuracy.curves
    assert (mean.x, mean.y, mean.band) == ([5, 10], pytest.approx([0.5, 0.5]), [(0.2, 0.9)] * 2)
    assert [(run.role, run.run, run.y) for run in runs] == [
        ("raw", "seed 1", [0.2, 0.2]),
        ("raw", "seed 2", [0.9, 0.9]),
        ("raw", "seed 3", [0.4, 0.4]),
    ]
    assert (single.group, single.y, single.band) == ("next-latent", [0.7, 0.7], None)
    assert (chance.label, chance.role, chance.x, chance.y) == ("chance", "control", [5, 10], [0.5, 0.5])


def test_runs_without_a_mean_are_shown_by_themselves(tmp_path):
    """Where runs have no step in common, or one lacks the curve, there is no mean."""
    lacking, early, late = (make_run(tmp_path / f"a{seed}", seed, 0.2 * seed) for seed in (1, 2, 3))
    other = make_run(tmp_path / "b", 1, 0.7, "next_latent")
    for folder, change in ((lacking, ('"evaluation"', '"none"')), (early, ('"step": 10', '"step": 6'))):
        path = folder / "metrics.jsonl"
        path.write_text(
            path.read_text().replace(*change)
            if change[0] != '"evaluation"'
            else "".join(line for line in path.read_text().splitlines(True) if '"evaluation"' not in line)
        )
    mean = training_panels(compare([early, late, other]))[0].curves[0]
    assert (mean.role, mean.x, mean.carried) == ("line", [5, 6, 10], 6)
    found = compare([lacking, early, late, other])
    accuracy, *_, training = training_panels(found)
    assert [(curve.group, curve.role, curve.run) for curve in accuracy.curves[:3]] == [
        ("next-token", "raw", "seed 2"),
        ("next-token", "raw", "seed 3"),
        ("next-latent", "line", ""),
    ]
    assert training.curves[0].role == "line"
    text = late / "metrics.jsonl"
    text.write_text(text.read_text().replace('"step": 5,', '"step": 8,'))
    rewrite_end(early)  # a run that goes on has no last value yet
    apart = compare([early, late, other])
    early_text = early / "metrics.jsonl"
    early_text.write_text(early_text.read_text().replace('"step": 6,', '"step": 5,'))
    apart = compare([early, late, other])
    assert [curve.role for curve in training_panels(apart)[0].curves] == ["raw", "raw", "line", "control"]
    for one in (found, apart):
        page = write_report(one, tmp_path / "report", overwrite=one is apart)[-1].read_text()
        assert "path accuracy, held out: no mean of next-token, since" in page
    figure = draw_panels(training_panels(apart), apart.looks())
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["next-token", "next-latent", "chance"]


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


def test_runs_without_a_report_or_twice_are_named(tmp_path):
    one = make_run(tmp_path / "a", 1, 0.5)
    twin = make_run(tmp_path / "b", 1, 0.5)
    with pytest.raises(ValueError, match="same recipe with the same seed"):
        compare([one, twin])
    (twin / "reports" / "evaluation.json").unlink()
    with pytest.raises(ValueError, match=f"statewise evaluate {twin}"):
        compare([one, twin])


def test_runs_that_were_measured_differently_are_not_compared(tmp_path):
    one, other = make_run(tmp_path / "a", 1, 0.5), make_run(tmp_path / "b", 2, 0.5)
    report = Run(other).report("evaluation")
    Run(other).write_report("evaluation", {**report, "num": 5})
    with pytest.raises(ValueError, match="was evaluated on 10 examples"):
        compare([one, other])
    Run(other).write_report("evaluation", {**report, "headline": {**report["headline"], "metric": "loss"}})
    with pytest.raises(ValueError, match="ranked by different metrics"):
        compare([one, other])
    Run(other).write_report("evaluation", {**report, "headline": {**report["headline"], "solved_at": 0.75}})
    metric = report["headline"]["metric"]
    with pytest.raises(ValueError, match=rf"count as solved by different values of {metric} \(0\.99 and 0\.75\)"):
        compare([one, other])


def test_decoding_is_spoken_of_where_answers_were_decoded(tmp_path):
    folder = make_run(tmp_path / "a", 1, 0.5)
    assert compare([folder]).notes()[0].startswith("Answers are decoded greedily")
    run = Run(folder)
    run.write_report("evaluation", {**run.report("evaluation"), "samples": []})
    assert compare([folder]).notes()[0] == "All metrics are teacher-forced on held-out examples."


def rewrite_end(folder, **fields):
    """Changes fields of the record of the end of training; without any, drops it."""
    path = folder / "metrics.jsonl"
    *others, end = path.read_text().splitlines(keepends=True)
    path.write_text("".join(others) + (json.dumps({**json.loads(end), **fields}) + "\n") * bool(fields))
    return folder


def test_runs_that_are_not_finished_are_named(tmp_path):
    whole, begun, stopped = (make_run(tmp_path / name, seed, 0.5) for seed, name in enumerate(("a", "b", "c")))
    assert not [note for note in compare([whole]).notes() if "not finished" in note]
    found = compare([whole, rewrite_end(begun), rewrite_end(stopped, reason="signal", step=7)])
    (note,) = [note for note in found.notes() if "not finished" in note]
    assert f"{begun} (step 10); {stopped} (step 7)" in note
    assert str(whole) not in note
    for text in (found.as_text(10_000), found.as_markdown()):
        assert note in text


def test_the_checkpoint_that_was_evaluated_is_told(tmp_path):
    folders = [
        make_run(tmp_path / name, seed, value)
        for seed, (name, value) in enumerate((("a", 0.97), ("b", 0.995), ("c", 0.5)))
    ]
    for folder in folders[:2]:
        rewrite_end(folder, reason="solved")
    Run(folders[2]).write_report("evaluation", {**Run(folders[2]).report("evaluation"), "checkpoint": 5})
    found = compare(folders)
    header, rows = found.seeds_table()
    assert [dict(zip(header, row))["checkpoint"] for row in rows] == ["10", "10", "5"]
    assert json.loads(found.as_json())["groups"][0]["checkpoints"] == {"0": 10, "1": 10, "2": 5}
    assert any("best checkpoint" in note and "on 10 held-out examples" in note for note in found.notes())
    (note,) = [note for note in found.notes() if "ended as solved" in note]
    assert str(folders[0]) in note
    assert str(folders[1]) not in note
    assert not [note for note in compare(folders[1:]).notes() if "ended as solved" in note]


def test_interval_is_students(tmp_path):
    summary = summarise({1: 1.0, 2: 2.0, 3: 4.0}, None)
    low, high = stats.t.interval(0.95, 2, loc=7 / 3, scale=stats.sem([1.0, 2.0, 4.0]))
    assert summary.interval == pytest.approx((low, high))
    assert summarise({1: 1.0}, [1.0, 2.0]).interval is None


def test_welch_is_silent_where_it_is_not_defined():
    assert welch([1.0], [1.0, 2.0]) is None
    assert welch([1.0, 1.0], [1.0, 1.0]) is None
    assert welch([1.0, 1.1], None) is None


def by_hand(a, b):
    """Difference of means, its standard error and the degrees of freedom (Welch and Satterthwaite)."""
    spreads = [sum((x - sum(v) / len(v)) ** 2 for x in v) / (len(v) - 1) / len(v) for v in (a, b)]
    freedom = sum(spreads) ** 2 / sum(spread**2 / (len(v) - 1) for spread, v in zip(spreads, (a, b)))
    return sum(a) / len(a) - sum(b) / len(b), sum(spreads) ** 0.5, freedom


@given(
    st.lists(st.integers(-50, 50), min_size=2, max_size=5, unique=True),
    st.lists(st.integers(-50, 50), min_size=2, max_size=5, unique=True),
    st.floats(0.1, 100),
)
def test_one_sided_tests_and_equivalence_are_as_by_hand(a, b, margin):
    difference, error, freedom = by_hand(a, b)
    tail = stats.t(freedom).sf
    assert welch(a, b, "greater") == pytest.approx(tail(difference / error))
    assert welch(a, b, "less") == pytest.approx(tail(-difference / error))
    assert welch(a, b) == pytest.approx(2 * tail(abs(difference) / error))
    expected = max(tail((difference + margin) / error), tail((margin - difference) / error))
    assert equivalence(a, b, margin) == pytest.approx(expected)
    assert equivalence(b, a, margin) == pytest.approx(expected)


def test_three_seeds_as_in_a_paper():
    """A worked case: differences of 0.0153 and margins of 0.01 at a spread of 0.001."""
    better, worse = [2.999, 3.000, 3.001], [3.0143, 3.0153, 3.0163]
    assert summarise({0: 2.999, 1: 3.0, 2: 3.001}, None).interval == pytest.approx(
        (3 - 0.002484, 3 + 0.002484), abs=1e-6
    )
    # t = 0.0153 / (0.001 sqrt(2/3)) = 18.74 with 4 degrees of freedom
    assert welch(better, worse, "less") == pytest.approx(2.39e-5, rel=0.01)
    assert equivalence(better, worse, 0.01) > 0.99
    # t = (0.01 - 0.002) / 0.000816 = 9.80
    assert equivalence(better, [3.001, 3.002, 3.003], 0.01) == pytest.approx(3.04e-4, rel=0.01)


def three_groups(tmp_path):
    """next_token around 0.5, next_latent around 0.9, teacherless once at 0.5."""
    folders = [make_run(tmp_path / f"a{seed}", seed, 0.5 + seed / 100) for seed in (1, 2, 3)]
    folders += [make_run(tmp_path / f"b{seed}", seed, 0.9 + seed / 100, "next_latent") for seed in (1, 2, 3)]
    return [*folders, make_run(tmp_path / "c1", 1, 0.5, "teacherless")]


def test_a_group_is_tested_against_every_other_and_two_for_equality(tmp_path):
    folders = three_groups(tmp_path)
    found = compare(folders, better=folders[4], margin=0.1)
    assert [(claim.kind, claim.group, claim.other) for claim in found.claims] == [
        ("better", "next-latent", "next-token"),
        ("better", "next-latent", "teacherless"),
        ("equal", "next-token", "next-latent"),
        ("equal", "next-token", "teacherless"),
        ("equal", "next-latent", "teacherless"),
    ]
    first, single, apart = found.claims[:3]
    assert first.difference == pytest.approx(0.4)
    assert first.p_value == pytest.approx(welch([0.91, 0.92, 0.93], [0.51, 0.52, 0.53], "greater"))
    assert first.p_value < 0.001
    assert single.p_value is None
    assert apart.p_value > 0.99
    for text in (found.as_text(10_000), found.as_markdown()):
        assert "next-latent is better than next-token" in text
        assert "next-token equals, within 0.1, next-latent" in text
        assert "within 0.1, teacherless" not in text  # one seed
        assert "Only one seed, so no interval and no test: teacherless." in text
    assert json.loads(found.as_json())["claims"][1]["p_value"] is None
    page = write_report(found, tmp_path / "report")[-1].read_text()
    assert "next-latent is better than next-token" in page
    plain = compare(folders)
    assert plain.claims == []
    assert "claim about" not in plain.as_text(10_000)
    assert "<h2>Tests</h2>" not in write_report(plain, tmp_path / "plain")[-1].read_text()
    alone = compare([folders[0], folders[6]], margin=0.1)
    assert [claim.p_value for claim in alone.claims] == [None]
    assert "claim about" not in alone.as_text(10_000) + alone.as_markdown()
    assert "no interval and no test: next-token; teacherless." in alone.as_text(10_000)
    assert "<h2>Tests</h2>" not in write_report(alone, tmp_path / "alone")[-1].read_text()


def test_better_is_less_where_less_is_better(tmp_path):
    folders = three_groups(tmp_path)[:6]
    for folder in folders:
        report = Run(folder).report("evaluation")
        headline = {**report["headline"], "higher_is_better": False, "solved_at": None}
        Run(folder).write_report("evaluation", {**report, "headline": headline})
    assert compare(folders, better=folders[0]).claims[0].p_value < 0.001
    assert compare(folders, better=folders[3]).claims[0].p_value > 0.999


def test_tests_that_make_no_sense_are_named(tmp_path):
    folders = three_groups(tmp_path)
    with pytest.raises(ValueError, match="not one of the runs"):
        compare(folders[:3], better=folders[4])
    with pytest.raises(ValueError, match="differ only in the seed"):
        compare(folders[:3], better=folders[0])
    with pytest.raises(ValueError, match="differ only in the seed"):
        compare(folders[:3], margin=0.1)
    with pytest.raises(ValueError, match="margin must be positive"):
        compare(folders, margin=0.0)


CELLS = st.text("ab|é19", min_size=1, max_size=5)


@given(st.lists(st.lists(CELLS, min_size=3, max_size=3), max_size=4))
def test_tables_line_up(rows):
    table = ["x", "yy", "zzz"]
    lines = text_table(table, rows).splitlines()
    assert len(lines) == len(rows) + 2
    ends = [match.end() for match in re.finditer("-+", lines[1])]
    starts = [match.start() for match in re.finditer("-+", lines[1])]
    for cells, line in zip([table, *rows], [lines[0], *lines[2:]]):
        for column, cell in enumerate(cells):
            right = column > 0 and all(row[column][0] in "19" for row in rows)
            at = ends[column] - len(cell) if right else starts[column]
            assert line[at : at + len(cell)] == cell
            assert not line[starts[column] : ends[column]].replace(cell, "", 1).strip()
    for line in markdown_table(table, rows).splitlines():
        assert len(re.findall(r"(?<!\\)\|", line)) == 4


def test_columns_of_numbers_are_to_the_right():
    rows = [["1", "gpt", "3/3", "0.5 ±<0.1", "-"], ["2", "-", "-", "-1.2e-05", ""]]
    assert markdown_table(["run", "backbone", "runs", "loss", "gap"], rows).splitlines()[1] == (
        "| --- | --- | ---: | ---: | ---: |"
    )
    assert markdown_table(["run"], []).splitlines()[1] == "| --- |"
    assert text_table(["run", "backbone", "runs", "loss"], [row[:4] for row in rows]).splitlines() == [
        "run  backbone  runs       loss",
        "---  --------  ----  ---------",
        "1    gpt        3/3  0.5 ±<0.1",
        "2    -            -   -1.2e-05",
    ]


CELL = st.text("ab-", min_size=1, max_size=20).filter(lambda text: text != "-")  # a part of dashes alone is left out
WIDE = st.lists(CELL, min_size=6, max_size=6)


@given(WIDE, st.lists(WIDE, max_size=4), st.integers(60, 140), st.sampled_from([1, 2]))
def test_tables_that_are_too_wide_are_split(header, rows, width, keys):
    tables = fitted_tables(header, rows, width, keys).split("\n\n")
    sizes = [max(len(row[column]) for row in (header, *rows)) for column in range(6)]
    if sum(sizes[:keys]) + 2 * keys <= width // 2:
        assert all(len(line) <= width for table in tables for line in table.splitlines())
    headers = [table.splitlines()[0].split() for table in tables]
    assert all(words[:keys] == header[:keys] for words in headers)
    assert [name for words in headers for name in words[keys:]] == header[keys:]
    if sum(sizes) + 10 <= width:
        assert len(tables) == 1


def test_notes_keep_to_the_width_and_lose_nothing():
    path = "runs/" + "long-" * 30
    notes = ["short.", f"Every word of {path} stays whole, and {'many more ' * 20}follow."]
    lines = fitted_notes(notes, 40).split("\n")
    assert [line for line in lines if not line.startswith("  ")] == ["short.", "Every word of"]
    assert all(len(line) <= 40 or line.strip() == path for line in lines)
    assert " ".join(line.strip() for line in lines) == " ".join(notes)
    assert fitted_notes(["a b c"], 1) == "a b c"  # a terminal that is not wide enough for anything


def test_numbers_stay_readable():
    assert [number(v) for v in (0.5, 0.0, 1e-5, 1.5e7, None, float("nan"), 6144)] == [
        "0.5000",
        "0.0000",
        "1.00e-05",
        "1.50e+07",
        "-",
        "-",
        "6,144",
    ]


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


def test_fields_that_only_one_backbone_has_tell_apart_those_of_it(tmp_path):
    slots = [{"name": "belief_slots", "width": 8, "slots": count, "chunk": 16} for count in (1, 2)]
    kinds = [{"name": "gpt", "width": 8}, *slots]
    folders = [make_run(tmp_path / str(place), 1, 0.5, backbone=kind) for place, kind in enumerate(kinds)]
    assert [group.label for group in compare(folders).groups] == [
        "next-token (backbone gpt)",
        "next-token (backbone belief slots, slots 1)",
        "next-token (backbone belief slots, slots 2)",
    ]


def test_runs_that_only_a_field_tells_apart_are_told_apart(tmp_path):
    kinds = [{"name": "gpt"}, {"name": "gpt", "width": 8}]
    folders = [make_run(tmp_path / str(place), 1, 0.5, backbone=kind) for place, kind in enumerate(kinds)]
    assert [group.label for group in compare(folders).groups] == ["next-token (width not set)", "next-token (width 8)"]


def with_baselines(folder, bigram=0.3):
    run = Run(folder)
    long = {"text": "a b <b>", "tokens": 3, "copies": 2}
    run.write_report(
        "evaluation",
        {
            **run.report("evaluation"),
            "baselines": {
                "bigram": {"loss": 0.9, "path_accuracy": bigram, "token_accuracy": 0.4},
                "always <end>": {"token_accuracy": 0.2},
            },
            "continuations": [{"prompt": "p [/b]", "truth": "a b c", "predicted": "a b <i>"}],
            "hardest": [{**long, "nats_per_token": 3.25}],
            "easiest": [{**long, "nats_per_token": 0.125}],
        },
    )
    return folder


def test_a_loss_that_also_reads_a_suffix_is_noted(tmp_path):
    runs = [make_run(tmp_path / name, 1, 0.5, name) for name in ("next_token", "belief_state")]
    noted = [note for note in compare(runs).notes() if "belief_state" in note]
    assert len(noted) == 1
    assert "predictions that also read a suffix" in noted[0]
    assert not any("suffix" in note for note in compare(runs[:1]).notes() + compare(runs[1:]).notes())


def test_baselines_stand_under_the_groups_and_in_plots(tmp_path):
    found = compare(
        [
            with_baselines(make_run(tmp_path / "a", 1, 0.5)),
            with_baselines(make_run(tmp_path / "b", 1, 0.7, "next_latent"), bigram=0.3 + 1e-15),
        ]
    )
    header, rows = found.table()
    assert [row[0] for row in rows] == ["next-token", "next-latent", "bigram", "always <end>"]
    assert {len(row) for row in rows} == {len(header)}
    assert dict(zip(header, rows[2])) == {
        "group": "bigram",
        "runs": "-",
        "solved": "-",
        "path_accuracy": "0.3000",
        "loss": "0.9000",
        "steps": "-",
        "minutes": "-",
    }
    assert "Baselines, which are not models: bigram, always <end>." in found.notes()
    assert json.loads(found.as_json())["baselines"]["bigram"]["loss"] == 0.9
    controls = {
        panel.title: {curve.label: curve.y[0] for curve in panel.curves if curve.role == "control"}
        for panel in training_panels(found)
    }
    assert controls == {
        "path accuracy, held out": {"chance": 0.5, "bigram": 0.3},
        "loss, held out (nats per token)": {"bigram": 0.9},
        "next-token accuracy, held out": {"bigram": 0.4, "always <end>": 0.2},
        "next-token loss in training (nats per prediction)": {},
    }
    page = write_report(found, tmp_path / "report")[-1].read_text()
    for text in (
        "always &lt;end&gt;",
        "Continuations",
        "p [/b]",
        '<span class="right">a b </span>',
        "&lt;i&gt;",
        "Hardest sequences",
        "3.2500",
        "Easiest sequences",
        "a b &lt;b&gt;",
        f"statewise train --config {tmp_path / 'a'} --out {tmp_path / 'a-again'}",
    ):
        assert text in page, text


def test_a_comparison_lines_up_in_a_narrow_terminal(tmp_path):
    found = compare(
        [
            with_baselines(make_run(tmp_path / f"{name}{seed}", seed, 0.5 + seed / 10, name))
            for name in ("next_token", "next_latent")
            for seed in (1, 2)
        ]
    )
    said, *table = found.as_text(80).split("\n\n")
    assert " ".join(said.split()) == found.finding()
    assert all(len(line) <= 80 for line in "\n".join([said, *table[:2]]).splitlines())
    assert [part.split()[0] for part in table[:2]] == ["group", "group"]
    assert "always <end>" not in table[0] + table[1]  # it has none of the metrics shown
    assert "bigram" in table[0] + table[1]


def test_long_labels_have_letters_in_a_narrow_terminal(tmp_path, monkeypatch):
    """One label is of 100 characters: no table is wider than the terminal, and the legend names every group in full."""
    monkeypatch.chdir(tmp_path)
    folders = []
    for letter in "xy":
        for seed in (1, 2):
            path = Path(f"{letter}{seed}")
            make_run(path, seed, 0.5 + seed / 10, plan="x" * 82 + letter)
            headline = {"metric": "loss", "higher_is_better": False, "solved_at": None}
            Run(path).write_report("evaluation", {**Run(path).report("evaluation"), "headline": headline})
            records = path / "metrics.jsonl"
            records.write_text(records.read_text().replace('"seconds"', '"tokens": 100, "seconds"'))
            folders.append(path)
    found = compare(folders, margin=0.1)
    labels = [group.label for group in found.groups]
    assert {len(label) for label in labels} == {len("next-token (plan )") + 83}
    legend, said, *tables = found.as_text(80).split("\n\n")
    notes = tables.pop()
    assert len(tables) >= 4
    assert said.startswith("No difference in loss is shown between A, 0.5000 (mean of 2 runs), and B, 0.5000")
    assert all(len(line) <= 80 for part in (legend, *tables) for line in part.splitlines())
    assert all(len(line) <= 80 or " " not in line.strip() for line in notes.splitlines())
    told = re.sub(r"\n +", "", legend)
    assert [line.replace(" ", "") for line in told.splitlines()] == [
        f"{letter}:{label}".replace(" ", "") for letter, label in zip("AB", labels)
    ]
    assert "A equals, within 0.1, B" in "\n".join(tables)
    assert labels[0] not in " ".join("\n".join([*tables, notes]).split())
    assert found.as_text(400).split("\n\n")[1].startswith("group"), "where there is room, groups have their labels"
    assert labels[0] in found.as_markdown()


def test_letters_go_on_after_z():
    assert [letter_of(place) for place in (0, 25, 26, 51, 52, 701, 702)] == ["A", "Z", "AA", "AZ", "BA", "ZZ", "AAA"]


def test_baselines_of_other_data_are_not_shown_for_all(tmp_path):
    found = compare(
        [
            with_baselines(make_run(tmp_path / "a", 1, 0.5)),
            with_baselines(make_run(tmp_path / "b", 1, 0.7, "next_latent"), bigram=0.4),
        ]
    )
    assert found.baselines == {}
    assert any("baselines differ" in note for note in found.notes())
    assert compare([make_run(tmp_path / "c", 1, 0.5)]).baselines == {}  # an older report, or another task


@pytest.mark.parametrize(
    ("truth", "predicted", "agreed"),
    [
        ("a b c", "a b d", "a b "),
        ("a b c", "a b", "a b"),
        ("a bc", "a b", "a "),
        ("a b", "a b", "a b"),
        ("", "a", ""),
        ("ACGT", "ACTT", "AC"),
        ('["Send letter", "Close"]', '["Send letter", "Complaint"]', '["Send letter", '),
    ],
)
def test_what_agrees_is_shown_in_whole_words(truth, predicted, agreed):
    assert _agreed(truth, predicted) == agreed


def test_solved_is_shown_only_where_a_task_can_be_solved(tmp_path):
    folders = [make_run(tmp_path / "a", 1, 0.5), with_baselines(make_run(tmp_path / "b", 1, 0.7, "next_latent"))]
    assert "solved" in compare(folders).table()[0]
    for folder in folders:
        report = Run(folder).report("evaluation")
        report["headline"]["solved_at"] = None
        Run(folder).write_report("evaluation", report)
    header, rows = compare(folders).table()
    assert "solved" not in header
    assert {len(row) for row in rows} == {len(header)}


def test_a_p_value_that_is_not_defined_is_explained(tmp_path):
    a = [make_run(tmp_path / f"a{seed}", seed, 0.5) for seed in (1, 2)]
    b = [make_run(tmp_path / f"b{seed}", seed, 0.7, "next_latent") for seed in (1, 2)]
    found = compare([*a, *b], better=b[0])
    header, rows = found.table()
    assert dict(zip(header, rows[1]))["p (Welch)"] == "-"
    (note,) = [note for note in found.notes() if note.startswith("p is -")]
    assert "all runs have the same value" in note
    c = make_run(tmp_path / "b3", 3, 0.8, "next_latent")
    assert not [note for note in compare([*a, *b, c]).notes() if note.startswith("p is -")]
    assert not [note for note in compare([a[0], b[0]]).notes() if note.startswith("p is -")]


def evaluated_once(folder):
    """Drops all evaluations but the last from the records of training."""
    path = folder / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if '"evaluation"' not in line or '"step": 10' in line))
    return folder


def test_baselines_are_drawn_across_a_plot_of_a_single_evaluation(tmp_path):
    found = compare([evaluated_once(with_baselines(make_run(tmp_path / "a", 1, 0.5)))])
    figure = draw_panels(training_panels(found), found.looks())
    axes = figure.axes[0]
    lines = {line.get_label(): line.get_xdata() for line in axes.lines}
    for name in ("bigram", "chance"):
        low, high = axes.get_xlim()
        assert max(lines[name]) - min(lines[name]) > 0.8 * (high - low)
    figure.canvas.draw()
    shown = [tick for tick in axes.get_xticks() if axes.get_xlim()[0] <= tick <= axes.get_xlim()[1]]
    assert all(float(tick).is_integer() for tick in shown)
    plotly = pytest.importorskip("plotly")
    assert plotly
    assert interactive(training_panels(found)[0], found.looks()).layout.xaxis.dtick == 1


def test_every_panel_of_losses_names_their_unit(tmp_path):
    folder = make_run(tmp_path / "a", 1, 0.5)
    report = Run(folder).report("evaluation")
    report["headline"] = {"metric": "loss", "higher_is_better": False, "solved_at": None}
    Run(folder).write_report("evaluation", report)
    titles = [panel.title for panel in training_panels(compare([folder]))]
    assert titles[0] == "loss, held out (nats per token)"
    assert all("(nats per " in title for title in titles if "loss" in title)


def test_a_figure_has_a_heading(tmp_path):
    panel = Panel("rank", "share", [Curve("a", [1, 2], [0.5, 0.4])])
    assert draw_panels([panel], heading="runs/a, step 2, effective-rank").get_suptitle() == (
        "runs/a, step 2, effective-rank"
    )
    assert draw_panels([panel]).get_suptitle() == ""


def test_long_texts_go_on_in_further_lines():
    header, rows = ["score", "completion"], [["-1.25", "one two three four five six seven"], ["-30.5", ""]]
    assert with_texts(header, rows, None).splitlines()[2:] == ["-1.25  one two three four five six seven", "-30.5"]
    assert with_texts(header, rows, 28).splitlines() == [
        "score  completion",
        "-----  ------------------",
        "-1.25  one two three four",
        "       five six seven",
        "-30.5",
    ]
    wide = with_texts(header, [["-1", "x" * 50]], 10).splitlines()
    assert [line.strip() for line in wide[2:]] == ["-1  " + "x" * 20, "x" * 20, "x" * 10], "20 characters at least"
    assert with_texts(header, [], 40).splitlines()[0] == "score  completion"


def test_wide_characters_take_two_columns_of_a_table():
    rows = [["取下 b1", "-1.5", "堆叠在 b1 b2 取下 b1"], ["go", "12.25", "one"]]
    lines = with_texts(["action", "score", "text"], rows, 32).splitlines()
    assert lines == [
        " action  score  text",
        "-------  -----  --------------------",
        "取下 b1   -1.5  堆叠在 b1 b2 取下 b1",
        "     go  12.25  one",
    ]
    wrapped = with_texts(["text"], [["堆叠在 " * 4]], 20).splitlines()
    assert wrapped[2:] == ["堆叠在 堆叠在 堆叠在", "堆叠在"]
    narrow = fitted_tables(["run", "a", "b"], [["x", "取下取下", "1"]], 14)
    assert max(cell_len(line) for line in narrow.splitlines()) <= 14
    assert narrow.count("run") == 2, "they do not fit beside each other"


def test_r2_below_zero_is_drawn_down_to_a_limit():
    """It was cut off at 0, and a panel of such values was empty."""
    for lowest, low in ((0.2, -0.03), (-0.2, -0.23), (-7.0, -1.03)):
        panel = Panel("x", "R2", [Curve("model", [1.0, 2.0, 3.0], [lowest, float("nan"), 0.9])], shares=True)
        assert draw_panels([panel]).axes[0].get_ylim() == pytest.approx((low, 1.05))
        assert interactive(panel).layout.yaxis.range == pytest.approx((low, 1.05))


def test_ticks_are_where_evaluations_are():
    axes = draw_panels([Panel("step", "y", [Curve("a", [10.0, 20.0, 30.0], [1.0, 2.0, 3.0])])]).axes[0]
    low, high = axes.get_xlim()
    assert [tick for tick in axes.get_xticks() if low <= tick <= high] in ([10, 20, 30], [10, 15, 20, 25, 30])


def test_an_axis_does_not_enlarge_what_hardly_differs():
    flat = Panel("step", "norm", [Curve("a", [0.0, 1.0], [5.000, 5.002])])
    low, high = draw_panels([flat]).axes[0].get_ylim()
    assert (low, high) == pytest.approx((4.951, 5.051), abs=1e-3)
    shown = interactive(flat).layout.yaxis.range
    assert shown == pytest.approx((4.951, 5.051), abs=1e-3)
    for varied in (replace(flat, curves=[Curve("a", [0.0, 1.0], [5.0, 6.0])]), replace(flat, log_y=True)):
        low, high = draw_panels([varied]).axes[0].get_ylim()
        assert (low, high) != pytest.approx((4.951, 5.051), abs=1e-3)
        shown = interactive(varied).layout.yaxis.range
        assert shown is None if varied.log_y else shown == pytest.approx((4.95, 6.05))


def test_legends_of_the_page_lie_on_no_title():
    chance = Curve("chance", [0.0, 1.0], [0.0, 1.0], "control")
    panel = Panel("step", "y", [chance, *lines(["a" * 90], [""])], title="t")
    layout = interactive(panel, {"a" * 90: Look("#000000")})
    assert [trace.name for trace in layout.data if trace.showlegend] == ["chance"], "the page names the groups"
    assert layout.layout.legend.y > 1
    assert layout.layout.legend.yanchor == "bottom"
    assert layout.layout.title.text is None, "the page wraps it"


def test_heads_of_long_labels_are_letters_and_colours_that_repeat_are_not_shown(tmp_path):
    def page(count):
        plans = ["x" * 10 + str(place) for place in range(count)]
        folders = [make_run(tmp_path / f"{count}" / plan, 1, 0.5, plan=plan) for plan in plans]
        return write_report(compare(folders), tmp_path / f"report-{count}")[-1].read_text()

    few, many = page(2), page(9)
    for text, letters in ((few, []), (many, list("ABCDEFGHI"))):
        table = text.split("<h2>Differences between the recipes</h2>")[1]
        assert re.findall(r"<th>([A-Z])</th>", table) == letters
        assert all(f">{letter}: next-token" in table for letter in letters)
    assert 'class="swatch"' in few
    assert "Colours as in the results table" in few
    assert 'class="swatch"' not in many
    assert "Colours as in the results table" not in many


def test_numbers_do_not_break_and_columns_are_explained(tmp_path):
    folder = make_run(tmp_path / "a", 1, 0.5)
    found = {"text": "a b", "tokens": 3, "nats_per_token": 2.25, "copies": 1}
    Run(folder).write_report("evaluation", {**Run(folder).report("evaluation"), "hardest": [found]})
    page = write_report(compare([folder]), tmp_path / "report")[-1].read_text()
    assert '<td class="number">2.2500</td>' in page
    assert "table.text td.number { white-space: nowrap; }" in page
    assert "Copies: how often the held-out set" in page


def test_four_panels_stand_in_two_rows_of_two():
    panel = Panel("x", "y", [Curve("model", [1.0, 2.0], [0.0, 1.0])])
    for count, columns in ((2, 2), (3, 3), (4, 2), (5, 3)):
        axes = draw_panels([panel] * count).axes
        assert len({round(one.get_position().x0, 2) for one in axes}) == columns


def test_ticks_of_a_logarithmic_axis_leave_room_for_their_labels():
    steps = [1.0, 2.0, 3.0, 6.0, 11.0, 19.0, 34.0, 62.0, 111.0, 200.0]
    panel = Panel("x", "y", [Curve("model", steps, steps)], log_x=True)
    assert draw_panels([panel]).axes[0].get_xticks().tolist() == [1, 3, 6, 19, 62, 200]
