"""The finding of a comparison in one sentence."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from doubles import make_run, rewrite_end, with_baselines
from scipy import stats

from statewise.data_types import Headline
from statewise.reporting.comparison import letter_of
from statewise.reporting.grouping import compare
from statewise.reporting.panels import training_panels
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
        "belief-state has 0.5000 (not solved); chance is 0.5000."
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
    (folder,) = group(tmp_path, "a", [accuracy])
    graph = {"edges": [[0, 1], [1, 2], [0, 3]], "start": 0, "goal": 2, "truth": [0, 1, 2], "predicted": [0, 1, 2]}
    sample = {"prompt": "p", "truth": "0,1,2", "predicted": "0,1,2", "graph": graph}
    samples = [{**sample, "predicted": "0,1,2" if place < right else "0,3"} for place in range(12)]
    Run(folder).write_report("evaluation", {**Run(folder).report("evaluation"), "num": 5000, "samples": samples})
    page = write_report(compare([folder]), tmp_path / "report")[-1].read_text()
    assert page.count("<figure><svg") == 12
    assert f"next-token, seed 1: {right} of these 12 right; path accuracy on all 5,000: {accuracy:.4f}</h3>" in page


def test_decoding_is_spoken_of_where_answers_were_decoded(tmp_path):
    folder = make_run(tmp_path / "a", 1, 0.5)
    assert compare([folder]).notes()[0].startswith("Answers are decoded greedily")
    run = Run(folder)
    run.write_report("evaluation", {**run.report("evaluation"), "samples": []})
    assert compare([folder]).notes()[0] == "All metrics are teacher-forced on held-out examples."


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
