"""The commands score and lm-eval."""

import json
import sys

import pytest
from command_line import called
from doubles import SMALL_RUN, small_corpus, small_stories

from statewise.cli import counter, main
from statewise.run import Run, report_of
from statewise.runtime.messages import to_install

pytest.importorskip("tokenizers")

QUESTIONS = [
    {"context": "a cat saw the", "choices": ["blue boat,", "dogs", "3"], "answer": 1},
    {"context": "and it sank. a cat", "choices": ["saw", "and"], "answer": 0},
]
TINY = [*SMALL_RUN, "--trainer.steps=2", "--task.context=16"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    corpus = small_corpus(folder)
    recipe = folder / "recipe.yaml"
    recipe.write_text("{task: text, backbone: gpt, objective: next_token}")
    words = ["train", "--config", str(recipe), f"--task.path={corpus.folder}", *TINY]
    assert main([*words, "--out", str(folder / "run")]) == 0
    return folder / "run"


@pytest.fixture(scope="module")
def questions(tmp_path_factory):
    path = tmp_path_factory.mktemp("questions") / "asked.jsonl"
    path.write_text("".join(f"{json.dumps(question)}\n" for question in QUESTIONS))
    return path


def test_score_prints_a_table_and_keeps_a_report(run, questions, capsys, monkeypatch):
    monkeypatch.setattr(counter, "LINE_SECONDS", 0.0)
    code, out, err = called(capsys, "score", run, questions)
    assert code == 0
    assert "accuracy_per_byte" in out
    assert "chance: 0.4167" in out
    assert "5/5 windows of text" in err
    assert "of 2 questions are longer than the context" in err
    kept = Run(run).report(report_of("score", questions))
    assert (kept["kind"], kept["num"], len(kept["items"])) == ("choices", 2, 2)
    code, out, _ = called(capsys, "score", run, questions, "--json", "--num", "1", "--checkpoint", "last")
    assert code == 0
    assert json.loads(out)["num"] == 1
    assert len(Run(run).report(f"{report_of('score', questions)}-checkpoint-last-first-1")["items"]) == 1
    monkeypatch.chdir(questions.parent)
    before = Run(run).reports()
    assert called(capsys, "score", run, questions.name)[0] == 0
    assert Run(run).reports() == before
    other = questions.parent / "other" / questions.name
    other.parent.mkdir()
    other.write_text(questions.read_text().splitlines()[0] + "\n")
    assert called(capsys, "score", run, other)[0] == 0
    assert Run(run).report(report_of("score", other))["num"] == 1
    assert Run(run).report(report_of("score", questions)) == kept


def test_a_perplexity_that_is_infinite_is_null_in_json(run, tmp_path, capsys, monkeypatch):
    path = tmp_path / "last.jsonl"
    path.write_text('{"text": "a cat saw the"}\n')
    monkeypatch.setattr("statewise.evaluation.zero_shot.questions.perplexity", lambda loss: float("inf"))
    code, out, err = called(capsys, "score", run, path, "--json")
    assert code == 0, err
    assert json.loads(out, parse_constant=pytest.fail)["metrics"]["perplexity"] is None


def test_score_names_the_line_that_is_wrong(run, tmp_path, capsys):
    path = tmp_path / "bad.jsonl"
    path.write_text('{"text": "a cat"}\n{"text": "cat"}\n')
    code, out, err = called(capsys, "score", run, path)
    assert (code, out) == (2, "")
    assert err.startswith(f"statewise: {path}:2: ")
    assert called(capsys, "score", run, path, "--batch", "0")[0] == 2


def test_a_run_without_text_has_no_likelihood_of_any(tmp_path, questions, capsys):
    flags = ["--trainer.steps=1", "--task.held_out_graphs=20"]
    assert main(["train", "path-star-small", *SMALL_RUN, *flags, "--out", str(tmp_path / "run")]) == 0
    code, _, err = called(capsys, "score", tmp_path / "run", questions)
    assert code == 2
    assert "such tasks are stories and text" in err


@pytest.mark.parametrize(("encoding", "code"), [("plain", 0), ("fill_in_the_middle", 2)])
def test_stories_are_asked_only_if_they_are_told_onwards(tmp_path, questions, capsys, encoding, code):
    (tmp_path / "stories.txt").write_text(small_stories(60))
    flags = ["--task.vocabulary=300", "--task.context=64", "--trainer.steps=1", f"--task.encoding={encoding}"]
    words = ["train", "stories-small", f"--task.path={tmp_path / 'stories.txt'}", *SMALL_RUN, *flags]
    assert main([*words, "--out", str(tmp_path / "run")]) == 0
    found, _, err = called(capsys, "score", tmp_path / "run", questions)
    assert found == code, err
    if code:
        assert "reads the end of a text first" in err


def test_lm_eval_without_its_extra_says_which(run, monkeypatch, capsys):
    for name in [name for name in sys.modules if name.partition(".")[0] == "lm_eval"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    code, _, err = called(capsys, "lm-eval", run, "--tasks", "mine")
    assert code == 2
    assert err == f"statewise: lm-eval needs the extra `eval`: {to_install('eval')}\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [(["--limit", "0"], "--limit must be at least 1"), (["--out", "/no/where.json"], "there is no folder /no")],
)
def test_lm_eval_refuses_before_it_works(run, words, message, capsys):
    code, _, err = called(capsys, "lm-eval", run, "--tasks", "mine", *words)
    assert code == 2
    assert message in err


def test_lm_eval_prints_a_table_and_keeps_a_report(run, tmp_path, capsys):
    pytest.importorskip("lm_eval")
    rows = {"mine": QUESTIONS, "whole": [{"text": "a cat saw the dogs"}, {"text": "and it sank."}]}
    kinds = {
        "mine": {
            "output_type": "multiple_choice",
            "doc_to_text": "{{context}}",
            "doc_to_choice": "{{choices}}",
            "doc_to_target": "{{answer}}",
            "metric_list": [{"metric": "acc", "aggregation": "mean"}],
        },
        "whole": {
            "output_type": "loglikelihood_rolling",
            "doc_to_text": "",
            "doc_to_target": "{{text}}",
            "metric_list": [{"metric": "bits_per_byte"}],
        },
    }
    for name, records in rows.items():
        data = tmp_path / f"{name}.jsonl"
        data.write_text("".join(f"{json.dumps(record)}\n" for record in records))
        options = {"data_files": {"test": str(data)}, "cache_dir": str(tmp_path / "cache")}
        fields = {"task": name, "dataset_path": "json", "test_split": "test", "dataset_kwargs": options, **kinds[name]}
        (tmp_path / f"{name}.yaml").write_text(json.dumps(fields))  # JSON is YAML
    words = ["lm-eval", run, "--tasks", "mine,whole", "--include-path", tmp_path]
    code, out, err = called(capsys, *words)
    assert code == 0, err
    assert "mine" in out
    assert "bits_per_byte" in out
    assert "whole: 2 whole texts, with and without their first token" in out
    assert "have a context that was cut" in err
    kept = Run(run).report("lm-eval-mine+whole")
    assert kept["benchmarks"]["mine"]["num"] == 2
    code, out, _ = called(capsys, *words, "--json", "--limit", "1", "--out", tmp_path / "kept.json")
    assert code == 0
    assert json.loads(out) == json.loads((tmp_path / "kept.json").read_text())
    assert json.loads(out) == Run(run).report("lm-eval-mine+whole-first-1")
    code, _, err = called(capsys, *words[:3], "mien", *words[4:])
    assert code == 2
    assert "did you mean mine" in err
