"""The table and page of a suite: which reports they read, what is best, and values that came to nothing."""

import dataclasses
import json
import math
import re

import pytest
from doubles import make_run

from statewise.reporting.suite import SuiteReport, SuiteRun
from statewise.run import Run


def read(folder, objective="o", seed=1, wanted=()):
    return SuiteRun.read(("r", objective, "b"), seed, folder, True, "", dict(wanted))


def evaluated(folder, metric="path_accuracy", higher=True, **metrics):
    """A run whose evaluation has these metrics, and one as its headline."""
    run = Run(make_run(folder, 1, 0.5))
    headline = {"metric": metric, "higher_is_better": higher, "solved_at": None}
    run.write_report("evaluation", {**run.report("evaluation"), "headline": headline, "metrics": metrics})
    return folder


def section(report):
    """The page's cells by objective, and what stands above them."""
    found = report._tables("r")[0]
    return {objective: cells[0] for objective, cells in found["rows"]}, found["what"]


@pytest.mark.parametrize(("higher", "best", "words"), [(True, "high", "higher is"), (False, "low", "lower is")])
def test_the_best_is_the_best_by_the_headlines_direction(tmp_path, higher, best, words):
    runs = [
        read(evaluated(tmp_path / f"{name}{seed}", "score", higher, score=value + seed / 1000), name, seed)
        for name, value in (("low", 0.25), ("middle", 0.5), ("high", 0.75))
        for seed in (1, 2)
    ]
    report = SuiteReport("t", "", runs, {})
    cells, what = section(report)
    assert [name for name, cell in cells.items() if cell["best"]] == [best]
    (finding,) = report.findings().values()
    assert finding.startswith(f"{best} has the {'highest' if higher else 'lowest'} score")
    page = report.as_html()
    assert page.index(finding[:20]) < page.index("<table")
    assert words in what
    assert "bold" in what
    first = [cell["dots"].split('cx="')[1].split('"')[0] for cell in cells.values()]
    assert first == ["6.0", "59.9", "113.8"]


@pytest.mark.parametrize(
    ("groups", "bold"),
    [
        ({"a": [0.9, 0.91, 0.92], "b": [0.89, 0.9, 0.92], "c": [0.1, 0.11, 0.12]}, "ab"),
        ({"a": [0.9, 0.91, 0.92], "b": [0.89, 0.9, 0.92]}, ""),  # all alike
        ({"a": [0.9], "b": [0.1], "c": [0.1, 0.2]}, ""),  # nothing is told of one seed
        ({"a": [0.9, 0.91], "b": [0.5, 0.52], "c": [0.1]}, "a"),  # nor of one seed among others
        ({"a": [1.0, 1.0], "b": [0.5, 0.5], "c": [1.0, 1.0]}, "ac"),  # they do not vary
        ({"a": [1.0, 1.0], "b": [0.2, 0.9], "c": [0.5, 0.5]}, "ab"),
    ],
)
def test_bold_are_the_best_and_what_is_not_told_apart_from_it(tmp_path, groups, bold):
    runs = [
        read(evaluated(tmp_path / f"{name}{seed}", "score", True, score=value), name, seed)
        for name, values in groups.items()
        for seed, value in enumerate(values)
    ]
    cells, what = section(SuiteReport("t", "", runs, {}))
    assert "".join(name for name, cell in cells.items() if cell["best"]) == bold
    assert ("bold" in what) == bool(bold)


def test_only_runs_on_the_same_data_are_ranked(tmp_path):
    """Of a GPT the first token counts, too, after <bos>: its loss is another."""
    losses = {"a": [0.50, 0.51], "b": [0.90, 0.91], "c": [0.10, 0.11], "d": [0.40, 0.41]}
    runs = [
        read(evaluated(tmp_path / f"{name}{seed}", "loss", False, loss=value), name, seed)
        for name, values in losses.items()
        for seed, value in enumerate(values)
    ]
    assert len({run.data for run in runs}) == 1
    runs = [dataclasses.replace(run, data="others") if run.objective in "cd" else run for run in runs]
    cells, what = section(SuiteReport("t", "", runs, {}))
    assert [name for name, cell in cells.items() if cell["best"]] == ["a", "c"]
    said = "bold: the best mean, and each that does not differ from it significantly, of the backbones on the same data"
    assert said in what


def test_a_value_that_came_to_nothing_spoils_no_other(tmp_path):
    values = {"a": math.nan, "b": 0.5, "c": 0.25, "d": math.inf}
    runs = [read(evaluated(tmp_path / name, "loss", False, loss=value), name) for name, value in values.items()]
    for name, value in (("a", 0.1), ("b", 0.49), ("c", 0.26)):
        runs.append(read(evaluated(tmp_path / f"{name}2", "loss", False, loss=value), name, seed=2))
    report = SuiteReport("t", "", runs, {})
    cells, what = section(report)
    assert [name for name, cell in cells.items() if cell["best"]] == ["c"]
    assert "from 0.1000 (left) to 0.5000 (right)" in what
    assert "nan" not in "".join(cell["dots"] for cell in cells.values())
    assert [cells[name]["text"] for name in "ad"] == ["-", "-"]
    written = json.loads(report.as_json(), parse_constant=pytest.fail)
    assert written["runs"][0]["metrics"]["loss"] is None
    assert "nan" not in report.as_markdown()
    alone, what = section(SuiteReport("t", "", runs[:1], {}))
    assert (alone["a"]["best"], what) == (False, "loss, lower is better")


def test_the_page_shows_every_metric_that_the_suite_names(tmp_path):
    runs = [
        read(evaluated(tmp_path / name, "loss", False, loss=value, r2=1 - value), name)
        for name, value in (("a", 0.25), ("b", 0.5))
    ]
    report = SuiteReport("t", "", runs, {"r2": "of the <belief>", "excess": ""})
    headline, r2 = report._tables("r")
    assert (headline["what"].split(",")[0], r2["what"].split(";")[0]) == ("loss", "r2: of the <belief>")
    assert [cells[0]["text"] for _, cells in r2["rows"]] == ["0.7500", "0.5000"]
    assert not any(cells[0]["best"] for _, cells in r2["rows"]), "nothing says which direction is better"
    page = report.as_html()
    assert page.count("<thead>") == 3, "two metrics and the runs"
    assert "r2: of the &lt;belief&gt;;" in page
    assert report.notes()[-2:] == ["r2: of the <belief>.", "No run has excess."]
    assert report.table()[0][-2:] == ["r2", "minutes"]


def test_metrics_are_those_of_the_evaluated_checkpoint(tmp_path):
    run = Run(evaluated(tmp_path / "a", path_accuracy=0.5))
    run.write_report("probe", {"checkpoint": 10, "metrics": {"r2": 0.75, "none": None, "path_accuracy": 0.1}})
    run.write_report("probe-checkpoint-2", {"checkpoint": 2, "metrics": {"of_two": 0.5, "r2": 0.1}})
    run.write_report("old", {"checkpoint": 5, "metrics": {"of_five": 0.5}})
    wanted = dict.fromkeys(("probe", "probe-checkpoint-2", "old", "never made"))
    assert read(run.folder, wanted=wanted).metrics == {"path_accuracy": 0.5, "r2": 0.75}


def test_metrics_are_those_of_the_suites_own_commands(tmp_path):
    """A user's evaluation of one example stood in the table because its name came first."""
    run = Run(evaluated(tmp_path / "a", path_accuracy=0.5))
    run.write_report("a-first-1", {"checkpoint": 10, "metrics": {"r2": 0.0}})
    run.write_report("first", {"checkpoint": 10, "metrics": {"r2": 0.75}})
    run.write_report("second", {"checkpoint": 10, "metrics": {"r2": 0.25, "excess": 0.1}})
    assert read(run.folder, wanted={"first": None, "second": None}).metrics == {
        "path_accuracy": 0.5,
        "r2": 0.75,
        "excess": 0.1,
    }
    run.write_report("probe", {"checkpoint": 10, "settings": {"words": 2, "pair": [1, 2]}, "metrics": {"r2": 0.9}})
    assert "r2" not in read(run.folder, wanted={"probe": {"words": 10, "pair": (1, 2)}}).metrics
    assert read(run.folder, wanted={"probe": {"words": 2, "pair": (1, 2)}}).metrics["r2"] == 0.9


def test_seeds_on_different_data_have_no_mean(tmp_path):
    runs = [read(evaluated(tmp_path / str(seed), path_accuracy=0.5), seed=seed) for seed in (1, 2)]
    assert SuiteReport("t", "", runs, {}).table()[1][0][6] == "0.5000 ±0.0000"
    report = SuiteReport("t", "", [runs[0], dataclasses.replace(runs[1], data="another")], {})
    assert report.table()[1][0][6] == "data differ"
    assert section(report)[0]["o"]["text"] == "data differ"
    assert "r/o-b: the data of seed 2 differ from those of seed 1" in report.notes()[-1]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("probe", {"checkpoint": 10, "metrics": {"r2": "high"}}, "probe.json: metrics.r2 must be a number"),
        ("probe", {"checkpoint": 10, "metrics": [1]}, "probe.json: metrics must be an object"),
        ("evaluation", {"metrics": {}}, "evaluation.json: metrics.path_accuracy, the headline metric, is missing"),
        ("evaluation", {"metrics": {"path_accuracy": "high"}}, "evaluation.json: metrics.path_accuracy must be"),
    ],
)
def test_damaged_reports_are_named(tmp_path, name, content, message):
    run = Run(evaluated(tmp_path / "a", path_accuracy=0.5))
    run.write_report(name, {**(run.report(name) or {}), **content})
    with pytest.raises(ValueError, match=message):
        read(run.folder, wanted={"probe": None})


def test_the_table_of_runs_names_states_and_folders_shortly(tmp_path):
    runs = [
        SuiteRun.failed(("r", "o", "b"), 1, tmp_path / "r" / "o-b" / "seed-1", "it diverged"),
        read(evaluated(tmp_path / "r" / "p-b" / "seed-2", path_accuracy=0.5), "p", 2),
    ]
    report = SuiteReport("t", "", runs, {})
    header, rows = report.runs_table()
    assert header[4:6] == ["state", "message"]
    assert [row[4:6] for row in rows] == [["failed", "it diverged"], ["finished", ""]]
    assert [row[-1] for row in rows] == ["o-b/seed-1", "p-b/seed-2"]
    page = report.as_html()
    for text in (page, report.as_markdown()):
        assert f"Folders of runs are in {tmp_path / 'r'}." in text
    assert page.count('class="failed"') == 2, "the row, and the count above"
    assert [*re.findall(r'<th class="number">(\w+)', page)] == ["seed", "value", "minutes"]
    mixed = [runs[0], dataclasses.replace(runs[1], folder="elsewhere")]
    assert [row[-1] for row in SuiteReport("t", "", mixed, {}).runs_table()[1]] == [run.folder for run in mixed]
    assert SuiteReport("t", "", [], {}).runs_table()[1] == []


def test_there_are_no_dots_of_equal_values(tmp_path):
    runs = [read(evaluated(tmp_path / f"{seed}", path_accuracy=0.5), seed=seed) for seed in (1, 2)]
    cells, what = section(SuiteReport("t", "", runs, {}))
    assert "dots" not in what
    assert cells["o"]["dots"] == ""


def test_words_of_users_are_no_markup(tmp_path):
    runs = [read(evaluated(tmp_path / "a", path_accuracy=0.5))]
    text = SuiteReport("<b>|title", "<script>\n| about", runs, {}).as_markdown()
    assert text.startswith("# &lt;b&gt;\\|title\n\n&lt;script&gt; \\| about\n\n")
