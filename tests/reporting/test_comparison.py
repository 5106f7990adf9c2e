"""The finding of a comparison in one sentence."""

import json
from dataclasses import replace

import pytest
from doubles import make_run
from scipy import stats

from statewise.data_types import Headline
from statewise.reporting.grouping import compare
from statewise.reporting.report import write_report
from statewise.run import Run


def group(tmp_path, name, values, objective="next_token"):
    return [make_run(tmp_path / f"{name}{seed}", seed, value, objective) for seed, value in enumerate(values, 1)]


def test_it_says_which_group_is_best_beside_the_first_and_how_sure_that_is(tmp_path):
    a, b = group(tmp_path, "a", [0.32, 0.34, 0.33]), group(tmp_path, "b", [0.99, 1.0, 0.98], "next_latent")
    c = group(tmp_path, "c", [0.5], "belief_state")
    p = f"{stats.ttest_ind([0.32, 0.34, 0.33], [0.99, 1.0, 0.98], equal_var=False).pvalue:.2e}"
    beside = "0.9900 (2 of 3 runs solved); next-token has 0.3300 (0 of 3 runs solved)"
    assert compare([*a, *b]).finding() == (
        f"next-latent has the higher path accuracy, {beside} (p = {p}); chance is 0.5000."
    )
    assert compare([*a, *b, *c]).finding() == (
        f"next-latent has the highest path accuracy, {beside} (p = {p}, not adjusted for the number of groups); "
        "chance is 0.5000."
    )
    assert "next-latent has the higher" in compare([*b, *a]).finding(), "the first one beside the next best"
    assert "(one seed, so no test)" in compare([*a, *c]).finding()
    assert compare(c).finding() == "belief-state has a path accuracy of 0.5000 (not solved); chance is 0.5000."


def test_a_difference_that_may_be_chance_is_called_none(tmp_path):
    a, b = group(tmp_path, "a", [0.3, 0.5]), group(tmp_path, "b", [0.35, 0.5], "next_latent")
    said = compare([*a, *b]).finding()
    assert said.startswith("No difference in path accuracy is shown between next-latent, 0.4250")
    same = compare([*group(tmp_path, "c", [0.5]), *group(tmp_path, "d", [0.5], "next_latent")]).finding()
    assert same.startswith("No difference")


def test_it_stands_on_top_of_the_page_the_table_and_the_terminal(tmp_path):
    found = compare(group(tmp_path, "a", [0.3, 0.5]))
    said = found.finding()
    page = write_report(found, tmp_path / "report")[-1].read_text()
    assert page.index(f'<p class="finding">{said}</p>') < page.index("<h2>Results</h2>")
    assert (tmp_path / "report" / "table.md").read_text().startswith(said)
    assert found.as_text(1000).startswith(said)
    assert json.loads(found.as_json())["finding"] == said


def test_a_metric_that_does_not_compare_has_no_finding(tmp_path):
    found = compare([*group(tmp_path, "a", [0.3]), *group(tmp_path, "b", [0.5], "next_latent")])
    assert replace(found, comparable=False).finding() == ""
    lower = replace(found, headline=Headline("loss", False))
    assert lower.finding().startswith("No difference in loss is shown"), "it has no chance, and no run solves it"


@pytest.mark.parametrize(("accuracy", "right"), [(0.34, 4), (1.0, 12)])
def test_a_dozen_graphs_are_drawn_with_how_many_are_right(tmp_path, accuracy, right):
    pytest.importorskip("plotly")
    (folder,) = group(tmp_path, "a", [accuracy])
    graph = {"edges": [[0, 1], [1, 2], [0, 3]], "start": 0, "goal": 2, "truth": [0, 1, 2], "predicted": [0, 1, 2]}
    sample = {"prompt": "p", "truth": "0,1,2", "predicted": "0,1,2", "graph": graph}
    samples = [{**sample, "predicted": "0,1,2" if place < right else "0,3"} for place in range(12)]
    Run(folder).write_report("evaluation", {**Run(folder).report("evaluation"), "num": 5000, "samples": samples})
    page = write_report(compare([folder]), tmp_path / "report")[-1].read_text()
    assert page.count("<figure><svg") == 12
    assert f"next-token, seed 1: {right} of these 12 right; path accuracy on all 5,000: {accuracy:.4f}</h3>" in page
