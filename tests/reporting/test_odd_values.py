"""Values that came to nothing, very small and large ones, and reports that are damaged."""

import json
import math
from pathlib import Path

import pytest
from doubles import make_run

from statewise.cli import main
from statewise.reporting.grouping import compare
from statewise.reporting.report import write_report
from statewise.reporting.statistics import summarise
from statewise.reporting.tables import spread
from statewise.run import Run, evaluation_of

pytestmark = pytest.mark.usefixtures("rendered")


def with_metrics(folder, seed, accuracy=0.5, objective="next_token", **metrics):
    run = Run(make_run(folder, seed, accuracy, objective))
    report = run.report("evaluation")
    run.write_report("evaluation", {**report, "metrics": {**report["metrics"], **metrics}})
    return folder


def test_intervals_have_digits_as_their_means():
    assert spread(2e-5, (1e-5, 3e-5)) == "2.00e-05 ±1.00e-05"
    assert spread(1.5e9, (1.4e9, 1.6e9)) == "1.50e+09 ±1.00e+08"
    assert spread(0.5, (0.25, 0.75)) == "0.5000 ±0.2500"
    assert spread(0.5, (0.4992, 0.5008)) == "0.5000 ±0.0008"
    assert spread(0.5, (0.49999, 0.50001)) == "0.5000 ±<0.0001"
    assert spread(0.5, (0.5, 0.5)) == "0.5000 ±0.0000"
    assert spread(0.5, None) == "0.5000"
    assert spread(math.nan, (math.nan, math.nan)) == "-"


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_a_seed_without_a_value_leaves_no_mean(tmp_path, odd):
    summary = summarise({1: 1.0, 2: odd, 3: 2.0}, [1.0, 2.0])
    assert math.isnan(summary.mean)
    assert (summary.interval, summary.p_value) == (None, None)
    folders = [with_metrics(tmp_path / str(seed), seed, kl=value) for seed, value in ((1, odd), (2, 0.5))]
    folders.append(with_metrics(tmp_path / "c", 1, 0.9, "next_latent", kl=0.5))
    found = compare(folders)
    header, rows = found.table()
    assert [row[header.index("kl")] for row in rows] == ["-", "0.5000"]
    written = json.loads(found.as_json(), parse_constant=pytest.fail)
    assert written["groups"][0]["metrics"]["kl"] == {
        "values": {"1": None, "2": 0.5},
        "mean": None,
        "interval": None,
        "p_value": None,
    }


ANALYSIS = {"checkpoint": 10, "settings": {}, "metrics": {"m": 0.5}, "main": ["m"], "panels": []}
DOTS = {"places": [[0, 1]], "colours": ["#ff0000"], "names": ["a"], "size": 2.0}
CURVE = {"label": "l", "x": [1], "y": [1.0], "role": "line"}
PANEL = {"x_title": "x", "y_title": "y", "shares": False, "curves": [CURVE]}


def drawing(**dots):
    return {**ANALYSIS, "drawings": [{"title": "d", "layers": [], "points": [{**DOTS, **dots}]}]}


@pytest.mark.parametrize("content", [ANALYSIS, drawing(of_later="x")])
def test_analyses_may_have_no_drawings_and_points_of_later_versions(tmp_path, content):
    folder = make_run(tmp_path / "a", 1, 0.5)
    Run(folder).write_report("map", content)
    write_report(compare([folder], metrics="all"), tmp_path / "report")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (drawing(places=[[0, 1, 2]]), "points of 'd' must be two numbers and a colour each"),
        (drawing(colours=[]), "points of 'd' must be two numbers and a colour each"),
        (drawing(colours=["red"]), "must be a colour as #rrggbb"),
        (drawing(places=3), "points[0].places must be a list"),
        ({**ANALYSIS, "metrics": {"m": 10**400}}, "metrics.m must be a number"),
        ({**ANALYSIS, "panels": [{**PANEL, "curves": [{**CURVE, "y": [10**400]}]}]}, "y[0] must be a number"),
    ],
)
def test_damaged_analyses_are_named_and_nothing_is_written(tmp_path, capsys, content, message):
    folder = make_run(tmp_path / "a", 1, 0.5)
    Run(folder).write_report("map", content)
    assert main(["compare", str(folder), "--metrics", "all", "--out", str(tmp_path / "report")]) == 2
    told = capsys.readouterr().err
    assert message in told
    assert "map.json" in told
    assert not (tmp_path / "report").exists()


def test_a_graph_with_an_edge_of_three_nodes_is_named(tmp_path, capsys):
    run = Run(make_run(tmp_path / "a", 1, 0.5))
    graph = {"edges": [[0, 1], [1, 2, 3]], "start": 0, "goal": 2, "truth": [0], "predicted": []}
    report = run.report("evaluation")
    run.write_report("evaluation", {**report, "samples": [{**report["samples"][0], "graph": graph}]})
    assert main(["compare", str(run.folder), "--out", str(tmp_path / "report")]) == 2
    assert "edges[1] of the graph of sample 0 must be two nodes" in capsys.readouterr().err
    assert not (tmp_path / "report").exists()


def test_metrics_beyond_all_numbers_are_named(tmp_path, capsys):
    folder = with_metrics(tmp_path / "a", 1, loss=10**400)
    assert main(["compare", str(folder), "--out", str(tmp_path / "report")]) == 2
    assert "metrics.loss must be a number" in capsys.readouterr().err


def by_loss(folder, seed, objective="next_token", tokens=0, threshold=None):
    run = Run(make_run(folder, seed, 0.5, objective))
    path = folder / "metrics.jsonl"
    path.write_text(path.read_text().replace('"seconds"', f'"tokens": {tokens}, "seconds"'))
    headline = {"metric": "loss", "higher_is_better": False, "solved_at": threshold}
    run.write_report("evaluation", {**run.report("evaluation"), "headline": headline})
    return folder


def test_runs_of_no_tokens_have_no_share_of_them(tmp_path):
    found = compare([by_loss(tmp_path / "a", 1), by_loss(tmp_path / "b", 1, "next_latent")])
    header, rows = found.matches_table()
    assert [row[header.index("of its tokens")] for row in rows] == ["-", "-"]
    assert "Losses are those of evaluations during training, not" in found.matches_notes()[0]


def test_notes_speak_of_the_headline(tmp_path):
    folders = [by_loss(tmp_path / f"a{seed}", seed, threshold=0.6) for seed in (1, 2)]
    notes = " ".join(compare(folders).notes())
    assert "solved: runs with loss of at most 0.6, with Wilson's 95% interval of their share." in notes
    assert compare(folders).table()[1][0][2] == "2/2 [0.34, 1.00]"
    assert "p (Welch)" not in notes, "there is no other group"
    assert "solved: runs with loss of at most 0.6." in compare(folders[:1]).notes()
    assert compare(folders[:1]).table()[1][0][2] == "1/1"
    folders.append(by_loss(tmp_path / "b", 1, "next_latent", threshold=0.6))
    assert "p (Welch): of loss, two-sided, against the first group." in " ".join(compare(folders).notes())


def test_metrics_of_analyses_by_step_are_shown_and_those_of_the_evaluation_are_not(tmp_path):
    folder = with_metrics(tmp_path / "a", 1, step_1_kl=0.5, position_3=0.5)
    main_of = {"step_1_greedy": 0.25, "step_8_greedy": 0.75}
    Run(folder).write_report("rollout-drift", {**ANALYSIS, "metrics": main_of, "main": list(main_of)})
    found = compare([folder], metrics="all")
    assert found.shown_metrics() == ["path_accuracy", "loss", "step_1_greedy", "step_8_greedy"]
    assert compare([folder]).shown_metrics() == ["path_accuracy", "loss"]


def test_notes_are_no_markup(tmp_path):
    folder, data = make_run(tmp_path / "a", 1, 0.5), "/data/<img src=x>|.txt"
    content = {"checkpoint": 10, "headline": {"metric": "loss"}, "file": data, "num": 2, "metrics": {"loss": 1.0}}
    Run(folder).write_report(evaluation_of(Path(data)), content)
    found = compare([folder], metrics="all")
    assert data in found.as_text(10_000)
    assert "<img" not in found.as_markdown()
    assert "&lt;img src=x&gt;\\|.txt" in found.as_markdown()


def test_seeds_left_out_are_told(tmp_path):
    folder = make_run(tmp_path / "a", 1, 0.5)
    found = compare([folder], seeds_left_out={"runs/x": [2, 3], "runs/y": []})
    assert "Left out of runs/x, without an evaluation yet: seeds 2, 3." in found.notes()
    assert json.loads(found.as_json())["left_out"] == {"runs/x": [2, 3]}
    assert json.loads(compare([folder]).as_json())["left_out"] == {}
