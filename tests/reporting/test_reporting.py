import json
import re

import pytest
from doubles import make_run
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from statewise.reporting.compare import compare
from statewise.reporting.plots import draw_curves
from statewise.reporting.star_graphs import draw
from statewise.reporting.statistics import equivalence, summarise, welch
from statewise.reporting.tables import markdown_table, number, text_table
from statewise.run import Run


def test_groups_are_runs_that_differ_in_the_seed_alone(tmp_path):
    folders = [
        make_run(tmp_path / "a1", 1, 0.5), make_run(tmp_path / "b1", 1, 1.0, "next_latent"),
        make_run(tmp_path / "a2", 2, 0.52), make_run(tmp_path / "b2", 2, 0.8, "next_latent"),
        make_run(tmp_path / "b3", 3, 1.0, "next_latent"), make_run(tmp_path / "c1", 1, 0.7, "next_latent", clip=3.0),
    ]  # fmt: skip
    found = compare(folders)
    assert [group.label for group in found.groups] == [
        "next_token",
        "next_latent (clip=None)",
        "next_latent (clip=3.0)",
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
    paths = found.write(tmp_path / "report")
    page = paths[-1].read_text()
    assert "<script>" not in re.sub(r"<script[^>]*>.*?</script>", "", page, flags=re.DOTALL).replace(
        "&lt;script&gt;", ""
    )
    assert not re.search(r'<(script|link|img)[^>]*(src|href)="?http', page)
    assert "&lt;script&gt;" in page
    found.write(tmp_path / "report")  # writing it again replaces it


@pytest.mark.parametrize("groups", [1, 3, 9])
def test_the_legend_covers_no_curve_however_long_its_labels(tmp_path, groups):
    long = {f"option_{place}": "a" * 12 for place in range(6)}
    folders = [make_run(tmp_path / str(number), 1, 0.5, **{name: f"{value}{number}" for name, value in long.items()})
               for number in range(groups)]  # fmt: skip
    found = compare(folders)
    assert groups == 1 or len(found.groups[0].label) > 100
    figure = draw_curves(found)
    figure.draw_without_rendering()
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [group.label for group in found.groups]
    box = legend.get_window_extent()
    inside = figure.bbox
    assert box.x0 >= inside.x0
    assert box.x1 <= inside.x1
    assert box.y0 >= inside.y0
    for axes in figure.axes:
        whole = axes.get_tightbbox()
        assert not box.overlaps(whole)
        assert axes.get_window_extent().height > 200  # pixels of 360: the plots are not squeezed for it


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


def test_decoding_is_spoken_of_where_answers_were_decoded(tmp_path):
    folder = make_run(tmp_path / "a", 1, 0.5)
    assert compare([folder]).notes()[0].startswith("Answers are decoded greedily")
    run = Run(folder)
    run.write_report("evaluation", {**run.report("evaluation"), "samples": []})
    assert compare([folder]).notes()[0] == "All metrics are teacher-forced on held-out examples."


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
        ("better", "next_latent", "next_token"), ("better", "next_latent", "teacherless"),
        ("equal", "next_token", "next_latent"), ("equal", "next_token", "teacherless"),
        ("equal", "next_latent", "teacherless"),
    ]  # fmt: skip
    first, single, apart = found.claims[:3]
    assert first.difference == pytest.approx(0.4)
    assert first.p_value == pytest.approx(welch([0.91, 0.92, 0.93], [0.51, 0.52, 0.53], "greater"))
    assert first.p_value < 0.001
    assert single.p_value is None
    assert apart.p_value > 0.99
    for text in (found.as_text(), found.as_markdown()):
        assert "next_latent is better than next_token" in text
        assert "next_token equals, within 0.1, next_latent" in text
        assert "within 0.1, teacherless" not in text  # one seed
        assert "One seed, so neither interval nor test: teacherless." in text
    assert json.loads(found.as_json())["claims"][1]["p_value"] is None
    page = found.write(tmp_path / "report")[-1].read_text()
    assert "next_latent is better than next_token" in page
    plain = compare(folders)
    assert plain.claims == []
    assert "claim about" not in plain.as_text()
    assert "<h2>Tests</h2>" not in plain.write(tmp_path / "plain")[-1].read_text()
    alone = compare([folders[0], folders[6]], margin=0.1)
    assert [claim.p_value for claim in alone.claims] == [None]
    assert "claim about" not in alone.as_text() + alone.as_markdown()
    assert "neither interval nor test: next_token; teacherless." in alone.as_text()
    assert "<h2>Tests</h2>" not in alone.write(tmp_path / "alone")[-1].read_text()


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
    with pytest.raises(ValueError, match="none of the runs"):
        compare(folders[:3], better=folders[4])
    with pytest.raises(ValueError, match="differ in the seed alone"):
        compare(folders[:3], better=folders[0])
    with pytest.raises(ValueError, match="differ in the seed alone"):
        compare(folders[:3], margin=0.1)
    with pytest.raises(ValueError, match="margin must be positive"):
        compare(folders, margin=0.0)


CELLS = st.text("ab|é", min_size=1, max_size=5)


@given(st.lists(st.lists(CELLS, min_size=3, max_size=3), max_size=4))
def test_tables_line_up(rows):
    table = ["x", "yy", "zzz"]
    lines = text_table(table, rows).splitlines()
    assert len(lines) == len(rows) + 2
    assert {len(line) for line in lines} == {len(lines[1])}  # the last column ends where its rule ends
    for line in markdown_table(table, rows).splitlines():
        assert len(re.findall(r"(?<!\\)\|", line)) == 4


def test_numbers_stay_readable():
    assert [number(v) for v in (0.5, 0.0, 1e-5, 1.5e7, None, float("nan"), 6144)] == [
        "0.5000", "0.0000", "1.00e-05", "1.50e+07", "-", "-",
        "6,144",
    ]  # fmt: skip


def test_graphs_show_right_and_wrong_steps():
    graph = {
        "edges": [[0, 1], [1, 2], [0, 3], [3, 4]],
        "start": 0,
        "goal": 2,
        "truth": [0, 1, 2],
        "predicted": [0, 3, 2],
    }
    svg = draw(graph)
    assert svg.count("<circle") == 5
    assert svg.count("#c8442f") == 2  # both steps are wrong,
    assert svg.count("stroke-dasharray") == 1  # and one of them is no edge
    assert draw({**graph, "predicted": [0, 1, 2]}).count("#c8442f") == 0
    assert draw({**graph, "predicted": []}).count("<circle") == 5


def test_fields_that_only_one_backbone_has_tell_apart_those_of_it(tmp_path):
    slots = [{"name": "belief_slots", "width": 8, "slots": count, "chunk": 16} for count in (1, 2)]
    kinds = [{"name": "gpt", "width": 8}, *slots]
    folders = [make_run(tmp_path / str(place), 1, 0.5, backbone=kind) for place, kind in enumerate(kinds)]
    assert [group.label for group in compare(folders).groups] == [
        "next_token (backbone=gpt)",
        "next_token (backbone=belief_slots, slots=1)",
        "next_token (backbone=belief_slots, slots=2)",
    ]


def test_runs_that_only_a_field_tells_apart_are_told_apart(tmp_path):
    kinds = [{"name": "gpt"}, {"name": "gpt", "width": 8}]
    folders = [make_run(tmp_path / str(place), 1, 0.5, backbone=kind) for place, kind in enumerate(kinds)]
    assert [group.label for group in compare(folders).groups] == ["next_token (width=None)", "next_token (width=8)"]
