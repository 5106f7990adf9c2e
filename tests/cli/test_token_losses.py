"""evaluate --losses: the nats of every token."""

import errno
import json

import numpy as np
import pytest
import torch
from command_line import called, refused, two_steps
from doubles import small_corpus

from statewise.cli import main
from statewise.model.model import load_model


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return two_steps(tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """A run on packed text, in which states are carried across chunks."""
    folder = tmp_path_factory.mktemp("text")
    corpus = small_corpus(folder, 40)
    flags = (
        f"--task.path={corpus.folder} --task.context=20 --backbone=belief_slots --backbone.chunk=8 --backbone.width=16 "
        "--backbone.heads=2 --backbone.layers=1 --trainer.steps=2 --trainer.tokens=null --trainer.warmup_steps=0 "
        "--trainer.warmup_tokens=null --trainer.batch_size=4 --trainer.precision=fp32 --trainer.threads=1"
    ).split()
    assert main(["train", "text-small", *flags, "--out", str(folder / "run")]) == 0
    return folder / "run"


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_they_are_minus_log_probabilities_and_add_up_to_the_loss(capsys, run, tmp_path):
    out = tmp_path / "losses.jsonl"
    code, said, _ = called(capsys, "evaluate", run, "--num", 7, "--losses", out, "--json")
    assert code == 0
    records = read(out)
    model = load_model(run)
    examples = model.task.held_out(7)
    assert [record["sequence"] for record in records] == list(range(7))
    with torch.no_grad(), model.asking():
        for row, record in enumerate(records):
            length, prompt = int(examples.lengths[row]), int(examples.prompt_lengths[row])
            tokens = examples.tokens[row, :length]
            assert record["tokens"] == [model.task.vocab.symbols[token] for token in tokens]
            assert record["nats_by_token"][:prompt] == [None] * prompt
            _, logits = model.predictor().start(torch.from_numpy(tokens[None, :prompt]))
            first = -logits[0].double().log_softmax(-1)[tokens[prompt]].item()
            assert record["nats_by_token"][prompt] == pytest.approx(first, abs=0.02)  # bf16
            own = [nats for nats in record["nats_by_token"] if nats is not None]
            assert record["scored"] == len(own) == length - prompt
            assert record["nats"] == pytest.approx(sum(own))
    mean = sum(record["nats"] for record in records) / sum(record["scored"] for record in records)
    assert mean == pytest.approx(json.loads(said)["metrics"]["loss"])


def test_of_rows_with_several_documents_each_token_says_whose_it_is(capsys, text, tmp_path):
    out = tmp_path / "losses.jsonl"
    code, said, _ = called(capsys, "evaluate", text, "--protocol", "fresh", "--losses", out)
    assert code == 0
    assert f"wrote {out}: the nats of every token" in said
    records = read(out)
    model = load_model(text)
    examples = model.task.held_out(None)
    assert len(records) == len(examples)
    several = 0
    for row, record in enumerate(records):
        tokens = examples.tokens[row, : examples.lengths[row]]
        assert "".join(record["tokens"]) == model.task.decode(tokens)
        opens = np.flatnonzero(np.diff(record["documents"], prepend=0))
        assert all(record["nats_by_token"][place] is None for place in opens)
        assert record["scored"] == len(tokens) - len(opens)
        several += len(opens) > 1
    assert several


def test_a_file_that_is_there_is_replaced_when_asked(capsys, run, tmp_path):
    out = tmp_path / "losses.jsonl"
    out.write_text("mine")
    assert "exists: choose another --losses, or give --overwrite" in refused(capsys, "evaluate", run, "--losses", out)
    assert out.read_text() == "mine"
    assert called(capsys, "evaluate", run, "--num", 3, "--losses", out, "--overwrite")[0] == 0
    assert len(read(out)) == 3


def test_a_full_disk_leaves_the_report(capsys, monkeypatch, run, tmp_path):
    def full(path):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    report = run / "reports" / "evaluation-first-5.json"
    monkeypatch.setattr("statewise.cli.evaluate.replacing", full)
    code, said, errors = called(capsys, "evaluate", run, "--num", 5, "--losses", tmp_path / "losses.jsonl")
    assert code != 0
    assert "No space left on device" in errors
    assert json.loads(report.read_text())["num"] == 5
    assert f"wrote {report}" in said
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--losses", "none/x.jsonl"], "there is no folder none"),
        (["--losses", ""], "--losses is empty: give the path of a file"),
        (["--losses", "."], "is a folder: --losses names a file"),
        (["--losses", "x", "--fills", "y"], "omit --fills"),
        (["--losses", "x", "--comprehensive"], "omit --comprehensive"),
        (["--losses", "x", "--protocol", "same-chunk"], "gives no likelihood"),
        (["--losses", "x"], "give --protocol carried or fresh"),
        (["--overwrite"], "--overwrite is for the file of --losses"),
    ],
)
def test_mistakes(capsys, monkeypatch, tmp_path, text, words, message):
    monkeypatch.chdir(tmp_path)
    assert message in refused(capsys, "evaluate", text, *words)
    assert not list(tmp_path.iterdir())
