"""evaluate says first what a model of a user's own sequences has learned."""

import contextlib
import html
import io
import json

import pytest
from command_line import called, two_steps
from doubles import SMALL_RUN

from statewise.cli import main
from statewise.evaluation.verdict import FEW
from statewise.reporting.grouping import compare
from statewise.reporting.report import write_report
from statewise.tasks import baselines
from statewise.tasks.own_files import inspection


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of four steps on cases of two letters, which alternate; and what training printed."""
    folder = tmp_path_factory.mktemp("own")
    words = [f"{'a b ' * count}{last}" for count in range(1, 9) for last in ("c", "d", "e", "f")]
    (folder / "letters.txt").write_text("\n".join(words) + "\n")
    flags = ["--trainer.steps=4", "--trainer.evaluate_every=1", "--task.held_out_share=0.4", "--trainer.warmup_steps=0"]
    flags += [f"--task.path={folder / 'letters.txt'}", "--trainer.learning_rate=1e-2", "--out", str(folder / "run")]
    with contextlib.redirect_stdout(io.StringIO()) as said:
        assert main(["train", "sequences-small", *SMALL_RUN, *flags]) == 0
    return folder / "run", said.getvalue()


@pytest.fixture(scope="module")
def run(trained):
    return trained[0]


def test_training_ends_with_the_verdict_of_evaluate(trained, capsys, tmp_path):
    run, printed = trained
    before = json.loads((run / "reports/evaluation.json").read_text())["verdict"]
    said = called(capsys, "evaluate", run)[1]
    assert printed.splitlines()[-2:] == said.splitlines()[1:3] == [before["sentence"], before["advice"]]
    after = json.loads((run / "reports/evaluation.json").read_text())["verdict"]
    assert after == before
    page = write_report(compare([run]), tmp_path / "report")[-1].read_text()
    assert f"{before['sentence']} {before['advice']}" in html.unescape(page)


def test_inspect_and_the_verdict_count_the_same_cases():
    assert inspection.FEWEST_CASES == FEW


def test_the_verdict_comes_first_and_is_in_the_report(run, capsys):
    code, said, _ = called(capsys, "evaluate", run)
    assert code == 0
    title, sentence, advice, *_ = said.splitlines()
    report = json.loads((run / "reports/evaluation.json").read_text())
    judged = report["verdict"]
    assert title.startswith(f"{run}, step ")
    assert (sentence, advice) == (judged["sentence"], judged["advice"])
    assert judged["learned"] in ("nothing", "less"), "four steps are few"
    assert "The loss still fell by" in advice
    assert "train 4 times as long, with --trainer.steps 16." in advice
    assert judged["loss"] == pytest.approx(report["metrics"]["loss"])
    losses = {one["baseline"]: one["nats"] for one in judged["comparisons"]}
    assert losses == {name: pytest.approx(one["loss"]) for name, one in report["baselines"].items() if "loss" in one}
    assert set(losses) == {"unigram", "bigram", "longest match", "variable order"}
    assert "loss is" not in said, "the verdict has the loss"

    printed = json.loads(called(capsys, "evaluate", run, "--json")[1])
    assert printed["verdict"] == judged
    few = json.loads(called(capsys, "evaluate", run, "--num", 3, "--json")[1])["verdict"]
    assert few["learned"] == "unknown"
    assert few["comparisons"][0]["low"] is None


def test_baselines_are_computed_once_a_run_and_set(run, capsys, monkeypatch):
    said = called(capsys, "evaluate", run)[1]
    computed, predictions = [], baselines.predictions
    monkeypatch.setattr(baselines, "predictions", lambda *words: (computed.append(1), predictions(*words))[1])
    assert called(capsys, "evaluate", run)[1] == said
    assert not computed
    called(capsys, "evaluate", run, "--num", 9)
    assert computed == [1]


def test_tasks_of_which_more_is_known_get_no_verdict(tmp_path, capsys):
    run = two_steps(tmp_path / "run")
    assert "verdict" not in json.loads(called(capsys, "evaluate", run, "--num", 4, "--json")[1])
