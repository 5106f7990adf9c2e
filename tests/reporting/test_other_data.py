"""Corpora and benchmarks that runs were evaluated on, in a comparison."""

import json
import math
import re
from pathlib import Path

import pytest
from doubles import make_run

from statewise.reporting.grouping import compare
from statewise.reporting.other_data import labels
from statewise.reporting.panels import set_panels
from statewise.run import Run, evaluation_of, evaluation_on


def evaluated(folder, file, checkpoint=10, num=20, name=None, **metrics):
    content = {
        "checkpoint": checkpoint,
        "headline": {"metric": "loss"},
        "file": file,
        "num": num,
        "metrics": {"perplexity": 1.0, **metrics},
    }
    Run(folder).write_report(name or evaluation_of(Path(file)), content)


def benchmarked(folder, version="0.4", limit=None, checkpoint=10, average=None, **accuracies):
    benchmarks = {
        name: {"version": 1, "shots": 0, "num": 50, "main": "acc", "metrics": {"acc": value, "acc_stderr": None}}
        for name, value in accuracies.items()
    }
    content = {"checkpoint": checkpoint, "lm_eval": version, "limit": limit, "benchmarks": benchmarks}
    if average is not None:
        content["average"] = {"accuracy": average, "of": {}}
    name = "-".join(["lm-eval", "+".join(accuracies), *([] if limit is None else [f"first-{limit}"])])
    Run(folder).write_report(name, content)


@pytest.fixture
def folders(tmp_path):
    """Two seeds of next_token, one of next_latent, on two corpora of one name each."""
    made = [make_run(tmp_path / f"a{seed}", seed, 0.5) for seed in (1, 2)]
    made.append(make_run(tmp_path / "b1", 1, 0.9, "next_latent"))
    for place, folder in enumerate(made):
        evaluated(folder, "/data/books/corpus", loss=3.0 + place, loss_per_word=4.0 + place)
        evaluated(folder, "/data/wiki/corpus", loss=2.0 + place, loss_per_word=8.0 + place)
    return made


def test_corpora_of_one_name_are_told_apart_and_averaged(folders):
    found = compare(folders, metrics="all")
    first, second = (
        {name: summary.mean for name, summary in group.metrics.items() if ":" in name} for group in found.groups
    )
    assert first == {
        "books/corpus:loss": 3.5,
        "books/corpus:loss_per_word": 4.5,
        "wiki/corpus:loss": 2.5,
        "wiki/corpus:loss_per_word": 8.5,
        "corpora:loss": 3.0,
        "corpora:loss_per_word": 6.5,
    }
    assert second["corpora:loss_per_word"] == pytest.approx((6 + 10) / 2)
    assert found.groups[0].metrics["corpora:loss"].values == {1: 2.5, 2: 3.5}
    assert found.groups[0].metrics["corpora:loss"].interval is not None
    text = " ".join(found.as_text(200).split())
    assert "corpora:loss_per_word" in text
    assert "From /data/books/corpus (examples 20): loss, loss_per_word." in text
    assert ":" not in "".join(compare(folders).groups[0].metrics)
    chosen = compare(folders, metrics="corpora:loss_per_word")
    assert chosen.shown_metrics() == ["path_accuracy", "corpora:loss_per_word"]


def test_an_average_is_of_what_all_corpora_have(folders):
    for folder in folders:
        evaluated(folder, "/data/other.txt", loss=1.0)
    found = compare(folders, metrics="all").groups[0].metrics
    assert found["corpora:loss"].mean == pytest.approx((3.5 + 2.5 + 1.0) / 3)
    assert "corpora:loss_per_word" not in found
    assert found["other.txt:loss"].mean == 1.0


def test_a_single_corpus_has_no_average(tmp_path):
    folder = make_run(tmp_path / "a", 1, 0.5)
    evaluated(folder, "/data/other.txt", loss=1.0)
    found = compare([folder], metrics="all").groups[0].metrics
    assert [name for name in found if ":" in name] == ["other.txt:loss"]


def test_what_only_some_runs_were_evaluated_on_is_named(folders):
    evaluated(folders[0], "/data/other.txt", loss=1.0)
    found = compare(folders, metrics="all")
    assert "other.txt:loss" not in found.groups[0].metrics
    assert "Not shown, since only some runs have it: /data/other.txt." in found.notes()


def test_what_only_some_runs_were_analysed_by_is_named(folders):
    content = {"checkpoint": 10, "settings": {}, "metrics": {"rank": 3.0}, "main": ["rank"], "panels": []}
    Run(folders[0]).write_report("effective-rank", content)
    assert "Not shown, since only some runs have it: analyze effective-rank." in compare(folders, metrics="all").notes()


def test_other_checkpoints_and_other_ways_of_asking_do_not_count(folders):
    for folder in folders:
        evaluated(folder, "/data/old.txt", checkpoint=5, loss=1.0)
        plain = evaluation_of(Path("/data/part.txt"))
        evaluated(folder, "/data/part.txt", name=f"{plain}-first-3", num=3, loss=1.0)
    found = compare(folders, metrics="all")
    assert not [name for name in found.groups[0].metrics if "old" in name or "part" in name]


def test_benchmarks_show_their_main_metric(folders):
    for place, folder in enumerate(folders):
        benchmarked(folder, arc_easy=0.3 + place / 10, piqa=0.5, average=0.4)
        benchmarked(folder, limit=7, arc_easy=0.9)
    found = compare(folders, metrics="all")
    metrics = found.groups[0].metrics
    assert metrics["arc_easy:acc"].mean == pytest.approx(0.35)
    assert metrics["arc_easy:acc of the first 7"].mean == 0.9
    assert metrics["benchmarks:accuracy"].mean == 0.4
    assert not [name for name in metrics if "stderr" in name]
    assert any(note.startswith("From arc_easy, piqa (lm_eval 0.4, documents of arc_easy 50") for note in found.notes())


def on_set(folder, value, option="length", name=None, num=20, **metrics):
    content = {
        "checkpoint": 10,
        "headline": {"metric": "path_accuracy"},
        "set": {"option": option, "value": value},
        "num": num,
        "metrics": {"loss": 1.0, "path_accuracy": 0.5, **metrics},
    }
    Run(folder).write_report(name or evaluation_on(option, value), content)


def test_other_held_out_sets_have_columns_and_a_curve_by_number(folders):
    for place, folder in enumerate(folders):
        on_set(folder, "8,16", path_accuracy_length_16=0.25, path_accuracy_length_8=0.5 + place / 8)
        on_set(folder, "64", path_accuracy=place / 4)
        on_set(folder, "8,32", name="evaluation-length-8,32-first-3", path_accuracy_length_32=0.9)
    found = compare(folders, metrics="all")
    metrics = found.groups[0].metrics
    assert (metrics["path_accuracy_length_8"].mean, metrics["path_accuracy_length_64"].mean) == (0.5625, 0.125)
    assert "path_accuracy_length_32" not in metrics
    assert any(note.startswith("From --length 8,16 (examples 20): path_accuracy_length_8, ") for note in found.notes())
    (panel,) = set_panels(found)
    assert (panel.x_title, panel.title, panel.shares, panel.log_x) == ("length", "path accuracy by length", True, False)
    means = {curve.group: (curve.x, curve.y) for curve in panel.curves if curve.role == "line"}
    assert list(means.values()) == [([8.0, 16.0], [0.5625, 0.25]), ([8.0, 16.0], [0.75, 0.25])]
    chosen = compare(folders, metrics="path_accuracy_length_64")
    assert "path_accuracy_length_8" not in chosen.groups[0].metrics
    assert set_panels(chosen) == []
    on_set(folders[1], "64", num=30)
    with pytest.raises(ValueError, match=r"evaluated on --length 64 with different settings \(examples 20 and 30"):
        compare(folders, metrics="all")


def test_sets_that_are_no_numbers_have_no_curve(folders):
    for folder in folders:
        on_set(folder, "a,b", "test", path_accuracy_test_a=0.5, path_accuracy_test_b=0.25)
    found = compare(folders, metrics="all")
    assert found.groups[0].metrics["path_accuracy_test_b"].mean == 0.25
    assert set_panels(found) == []


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda content: content.update(set="long"), "set must be an object"),
        (lambda content: content["set"].pop("value"), "set.value is missing"),
        (lambda content: content["metrics"].pop("path_accuracy"), "metrics.path_accuracy, the headline metric, is mis"),
        (lambda content: content["metrics"].update(path_accuracy_length_8="a"), "path_accuracy_length_8 must be a num"),
    ],
)
def test_a_damaged_report_of_a_set_is_named(folders, harm, message):
    on_set(folders[0], "8,16", path_accuracy_length_8=0.5)
    path = Run(folders[0]).reports_folder / "evaluation-length-8,16.json"
    content = json.loads(path.read_text())
    harm(content)
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=f"{re.escape(str(path))}.*{re.escape(message)}"):
        compare(folders, metrics="all")


def test_different_settings_are_refused(folders):
    evaluated(folders[1], "/data/wiki/corpus", num=30, loss=1.0, loss_per_word=1.0)
    with pytest.raises(
        ValueError, match=r"evaluated on /data/wiki/corpus with different settings \(examples 20 and 30"
    ):
        compare(folders, metrics="all")
    compare(folders, metrics="loss")  # which needs none of them
    evaluated(folders[1], "/data/wiki/corpus", loss=1.0, loss_per_word=1.0)
    for folder in folders:
        benchmarked(folder, version="0.4" if folder == folders[0] else "0.5", sciq=0.5)
    with pytest.raises(ValueError, match=r"evaluated on sciq with different settings \(lm_eval 0.4 and 0.5"):
        compare(folders, metrics="all")


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda content: content.pop("metrics"), "metrics is missing"),
        (lambda content: content.update(num="many"), "num must be a whole number"),
        (lambda content: content["metrics"].update(loss="low"), "metrics.loss must be a number"),
    ],
)
def test_a_damaged_report_is_named(folders, harm, message):
    name = evaluation_of(Path("/data/books/corpus"))
    content = Run(folders[1]).report(name)
    harm(content)
    Run(folders[1]).write_report(name, content)
    with pytest.raises(ValueError, match=message) as raised:
        compare(folders, metrics="all")
    assert str(folders[1] / "reports" / name) in str(raised.value)


def test_a_benchmark_without_its_main_metric_is_named(folders):
    benchmarked(folders[0], sciq=0.5)
    report = Run(folders[0]).report("lm-eval-sciq")
    report["benchmarks"]["sciq"]["main"] = "acc_norm"
    Run(folders[0]).write_report("lm-eval-sciq", report)
    with pytest.raises(ValueError, match=r"metrics\.acc_norm of sciq, its main metric, is missing"):
        compare(folders, metrics="all")


def test_what_came_to_nothing_stays_so(tmp_path):
    folder = make_run(tmp_path / "a", 1, 0.5)
    evaluated(folder, "/data/other.txt", loss=math.nan)
    assert math.isnan(compare([folder], metrics="all").groups[0].metrics["other.txt:loss"].mean)


def test_labels_are_the_shortest_ends_that_differ():
    assert labels(["/a/b/c.txt", "/a/d.txt"]) == ["c.txt", "d.txt"]
    assert labels(["/a/b/c", "/a/d/c", "/e/d/c"]) == ["b/c", "a/d/c", "e/d/c"]
    assert labels(["/c", "/a/c"]) == ["//c", "a/c"]


def test_reports_are_named_by_the_whole_path():
    names = [evaluation_of(Path(path)) for path in ("/a/c.txt", "/b/c.txt", "/a/d.txt", "/b-c.txt", "/")]
    assert len(set(names)) == len(names)
    assert names[0].startswith("evaluation-c.txt-")
    assert evaluation_of(Path("/a/c.txt")) == names[0]
    assert len(evaluation_of(Path("/" + "x" * 255))) < 150
