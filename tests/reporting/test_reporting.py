import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from statewise.reporting.compare import compare
from statewise.reporting.star_graphs import draw
from statewise.reporting.statistics import summarise, welch
from statewise.reporting.tables import markdown_table, number, text_table
from statewise.run import Run


def make_run(folder, seed, accuracy, objective="next_token", **trainer):
    recipe = {
        "task": {"name": "path_star", "degree": 2},
        "backbone": {"name": "gpt"},
        "objective": {"name": objective},
        "trainer": {"steps": 10, **trainer},
        "seed": seed,
    }
    run = Run.create(folder, recipe, {}, overwrite=False)
    for step in (5, 10):
        run.log({"kind": "train", "step": step, "next_token": 1.0 / step, "loss": 1.0 / step, "seconds": step})
        run.log({"kind": "evaluation", "step": step, "path_accuracy": accuracy, "loss": 0.5, "seconds": step})
    run.log({"kind": "end", "step": 10, "reason": "steps", "seconds": 10.0})
    sample = {"prompt": "<script>", "truth": "1,2", "predicted": "1,3"}
    headline = {"metric": "path_accuracy", "higher_is_better": True, "solved_at": 0.99}
    run.write_report("evaluation", {
        "checkpoint": 10, "headline": headline, "chance": {"path_accuracy": 0.5},
        "metrics": {"path_accuracy": accuracy, "loss": 0.5}, "num": 10, "samples": [sample],
    })  # fmt: skip
    return folder


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


def test_interval_is_students(tmp_path):
    summary = summarise({1: 1.0, 2: 2.0, 3: 4.0}, None)
    low, high = stats.t.interval(0.95, 2, loc=7 / 3, scale=stats.sem([1.0, 2.0, 4.0]))
    assert summary.interval == pytest.approx((low, high))
    assert summarise({1: 1.0}, [1.0, 2.0]).interval is None


def test_welch_is_silent_where_it_is_not_defined():
    assert welch([1.0], [1.0, 2.0]) is None
    assert welch([1.0, 1.0], [1.0, 1.0]) is None
    assert welch([1.0, 1.1], None) is None


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
