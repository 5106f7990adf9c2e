"""evaluate says first what a model of a user's own sequences has learned."""

import json

import pytest
from command_line import called, two_steps
from doubles import SMALL_RUN

from statewise.cli import main
from statewise.tasks import baselines


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of four steps on cases of two letters, which alternate."""
    folder = tmp_path_factory.mktemp("own")
    words = [f"{'a b ' * count}{last}" for count in range(1, 9) for last in ("c", "d", "e", "f")]
    (folder / "letters.txt").write_text("\n".join(words) + "\n")
    flags = ["--trainer.steps=4", "--trainer.evaluate_every=1", "--task.held_out_share=0.4", "--trainer.warmup_steps=0"]
    flags += [f"--task.path={folder / 'letters.txt'}", "--trainer.learning_rate=1e-2", "--out", str(folder / "run")]
    assert main(["train", "sequences-small", *SMALL_RUN, *flags]) == 0
    return folder / "run"


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
