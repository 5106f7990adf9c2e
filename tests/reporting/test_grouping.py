import json

import pytest
from doubles import make_run, with_baselines
from scipy import stats

from statewise.reporting.grouping import compare
from statewise.reporting.report import write_report
from statewise.reporting.statistics import welch
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
