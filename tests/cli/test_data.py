"""`statewise data` as a user calls it, and the way from text to a score."""

import json

import pytest
from command_line import called
from doubles import SMALL_RUN, small_stories

from statewise.cli import main
from statewise.run import Run, evaluation_of
from statewise.tasks.corpus.folder import Corpus

pytestmark = pytest.mark.usefixtures("forked")


@pytest.fixture
def text(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "books").mkdir()
    path = tmp_path / "books" / "a.txt"
    path.write_text(small_stories(60))
    return path


def test_from_text_to_a_score(text, tmp_path, capsys, monkeypatch):
    code, out, err = called(
        capsys,
        "data",
        "text",
        "books",
        "--tokenizer",
        "bpe:280",
        "--out",
        "corpus",
        "--held-out",
        "0.2",
        "--shard-tokens",
        "500",
    )
    assert code == 0, err
    corpus = Corpus(tmp_path / "corpus")
    assert corpus.training.documents + corpus.held_out.documents == 60
    assert f"{len(corpus.training):,} tokens of {corpus.training.documents} documents to train on" in out
    assert out.endswith("wrote corpus\n")
    assert "training a tokenizer of 280 tokens" in err
    assert "encoding: " in err
    assert called(capsys, "data", "check", "corpus")[1] == (
        f"corpus: {len(corpus.training.shards) + len(corpus.held_out.shards)} shards, all as they were written\n"
    )

    (tmp_path / "text.yaml").write_text("{task: {name: text, context: 32}, backbone: gpt, objective: next_token}")
    words = ["train", "--config", "text.yaml", "--task.path", "corpus", *SMALL_RUN, "--trainer.steps=4"]
    code, out, err = called(capsys, *words, "--out", "run")
    assert code == 0, err
    assert f"corpus: {len(corpus.training):,} tokens of" in out
    run = Run(tmp_path / "run")
    assert run.task_files()["tokenizer.json"] == (tmp_path / "corpus" / "tokenizer.json").read_bytes()
    metrics = run.report("evaluation")["metrics"]
    assert set(metrics) == {
        "loss",
        "perplexity",
        "token_accuracy",
        "loss_per_word",
        "perplexity_per_word",
        "loss_per_byte",
        "bits_per_byte",
    }
    assert metrics["loss"] < metrics["loss_per_word"]

    whole = json.loads(called(capsys, "evaluate", "run", "--data", text, "--json")[1])
    assert whole["num"] > run.report("evaluation")["num"]
    assert run.report(evaluation_of(text))["file"] == str(text)
    assert "documents to train on" in called(capsys, "evaluate", "run")[2]
    monkeypatch.chdir(corpus.folder)
    code, out, err = called(capsys, "evaluate", tmp_path / "run", "--data", ".")
    assert code == 0
    assert "documents to train on" not in err  # which is said of the run's own data
    assert "decoding" not in out
    assert run.report(evaluation_of(corpus.folder))["file"] == str(corpus.folder)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "a.txt").write_text("Another text.\n")
    kept = run.report(evaluation_of(text))
    assert called(capsys, "evaluate", "run", "--data", "more/a.txt", "--num", "1")[0] == 0
    assert called(capsys, "evaluate", "run", "--data", "more/a.txt")[0] == 0
    assert run.report(evaluation_of(tmp_path / "more" / "a.txt"))["num"] == 1
    assert run.report(f"{evaluation_of(tmp_path / 'more' / 'a.txt')}-first-1")["num"] == 1
    assert run.report(evaluation_of(text)) == kept
    assert called(capsys, "data", "text", "books", "--tokenizer", "bpe:270", "--out", "other")[0] == 0
    code, _, err = called(capsys, "evaluate", "run", "--data", "other")
    assert code == 2
    assert "other: this corpus was encoded with another tokenizer than the run's" in err
    assert called(capsys, "generate", "run", "--prompt", "Once", "--limit", "3")[0] == 0
    assert called(capsys, "analyze", "run", "effective-rank")[0] == 0
    few = ["--steps", "5", "--hidden", "4", "--offsets", "1-3"]
    assert called(capsys, "analyze", "run", "future-probe", *few)[0] == 0

    path = tmp_path / "corpus" / "held-out-00000.npy"
    content = bytearray(path.read_bytes())
    content[150] ^= 1
    path.write_bytes(content)
    for words in (["data", "check", "corpus"], ["evaluate", "run"]):
        code, _, err = called(capsys, *words)
        assert code == 2
        assert "held-out-00000.npy: damaged in tokens 0 to 65,536: its checksum does not match" in err


def test_what_cannot_be_trained_on_costs_no_run_and_leaves_none(text, tmp_path, capsys):
    """Neither a run that was to be overwritten, nor the name of one that is to be made; as one run, and with seeds."""
    made = ["data", "text", "books", "--out"]
    assert called(capsys, *made, "corpus", "--tokenizer", "bpe:280", "--held-out", "0.2")[0] == 0
    assert called(capsys, *made, "judged", "--tokenizer", "corpus/tokenizer.json", "--held-out", "1")[0] == 0
    assert called(capsys, *made, "flipped", "--tokenizer", "corpus/tokenizer.json", "--held-out", "0.2")[0] == 0
    path = tmp_path / "flipped" / "training-00000.npy"
    content = bytearray(path.read_bytes())
    content[150] ^= 1
    path.write_bytes(content)
    (tmp_path / "text.yaml").write_text("{task: {name: text, context: 32}, backbone: gpt, objective: next_token}")
    words = ["train", "--config", "text.yaml", *SMALL_RUN, "--trainer.steps=2"]
    assert called(capsys, *words, "--task.path", "corpus", "--out", "run")[0] == 0
    assert called(capsys, *words, "--task.path", "corpus", "--out", "runs", "--seeds", "1")[0] == 0
    kept = {
        path: path.read_bytes()
        for folder in ("run", "runs")
        for path in (tmp_path / folder).rglob("*.*")
        if path.is_file()
    }
    for corpus, message in (("judged", "none is left to train on"), ("flipped", "checksum does not match")):
        for out in (
            ["--out", "new"],
            ["--out", "run", "--overwrite"],
            ["--out", "runs", "--overwrite", "--seeds", "1"],
        ):
            code, _, err = called(capsys, *words, "--task.path", corpus, *out)
            assert code == 2
            assert message in err
    assert not (tmp_path / "new").exists()
    assert {path: path.read_bytes() for path in kept} == kept
    assert called(capsys, *words, "--task.path", "corpus", "--out", "run", "--overwrite")[0] == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["text", "--tokenizer", "bpe:270", "--out", "c"], "give files or folders, or --hub NAME"),
        (["text", "books", "--hub", "x", "--tokenizer", "bpe:270", "--out", "c"], "--hub NAME, not both"),
        (["text", "books", "--tokenizer", "bpe:270"], "--out"),
        (["text", "nowhere", "--tokenizer", "bpe:270", "--out", "c"], "nowhere: no such file or folder"),
        (["text", "books", "--tokenizer", "bpe", "--out", "c"], "unknown tokenizer 'bpe'"),
        (["text", "books", "--tokenizer", "bpe:270", "--out", "books"], "books exists: choose another --out"),
        (
            ["text", "books", "--tokenizer", "bpe:270", "--out", "books", "--overwrite"],
            "a.txt, which is not part of a corpus",
        ),
        (["text", "books", "--tokenizer", "bpe:270", "--out", "c", "--document", "line"], "did you mean --documents"),
        (["check", "books"], "books: not a corpus: it has no index.json"),
        (["chekc"], "unknown data command 'chekc': did you mean check?"),
    ],
)
@pytest.mark.usefixtures("text")
def test_what_is_wrong_is_said_in_a_line(capsys, words, message):
    code, _, err = called(capsys, "data", *words)
    assert code == 2
    assert message in err
    assert err.startswith("statewise: ") or "\nstatewise: " in err


def test_help(capsys):
    assert "check" in called(capsys, "data", "--help")[1]
    for verb in ("text", "check"):
        with pytest.raises(SystemExit):
            main(["data", verb, "--help"])
    assert "--held-out" in capsys.readouterr().out
