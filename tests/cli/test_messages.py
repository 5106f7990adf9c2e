"""Messages name the file at fault, what is wrong in it, and what to do."""

import json
import shutil

import pytest
from doubles import SMALL_RUN

from statewise.cli import main


def called(capsys, *words):
    code = main([str(word) for word in words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    flags = ["--task.held_out_graphs=40", "--trainer.steps=2", "--trainer.warmup_steps=0"]
    assert main(["train", "path-star-small", *SMALL_RUN, *flags, "--out", str(folder)]) == 0
    return folder


@pytest.fixture
def run(trained, tmp_path):
    """A copy, to be damaged."""
    return shutil.copytree(trained, tmp_path / "run")


def edit(run, **parts):
    """Changes values of config.json; a part is merged."""
    recipe = json.loads((run / "config.json").read_text())
    for part, value in parts.items():
        recipe[part] = {**recipe[part], **value} if isinstance(value, dict) else value
    (run / "config.json").write_text(json.dumps(recipe))


def refused(capsys, *words):
    """The sentence with which a command line is refused."""
    code, _, err = called(capsys, *words)
    assert code == 2, err
    assert err.startswith("statewise: ")
    assert len(err.splitlines()) == 1, err
    return err


READERS = [
    ["evaluate", "RUN"],
    ["generate", "RUN", "--prompt", "a"],
    ["analyze", "RUN", "effective-rank"],
    ["embed", "RUN", "graphs.txt", "--out", "OUT/e.npy"],
    ["score", "RUN", "OUT/questions.jsonl"],
    ["bench-decode", "RUN"],
    ["compare", "RUN", "--out", "OUT/report"],
    ["train", "--config", "RUN", "--out", "OUT/again"],
    ["fill", "RUN", "--out", "OUT/fills.jsonl"],
]
"""Commands that read a run's config.json."""


@pytest.mark.parametrize("words", READERS, ids=lambda words: words[0])
@pytest.mark.parametrize("part", ["task", "backbone", "objective"])
@pytest.mark.parametrize("name", [["path_star"], {"a": 1}, 5])
def test_a_name_that_is_no_text_is_refused(capsys, run, tmp_path, words, part, name):
    edit(run, **{part: {"name": name}})
    (tmp_path / "questions.jsonl").write_text('{"context": "a", "choices": ["b", "c"], "answer": 0}\n')
    said = refused(capsys, *(word.replace("RUN", str(run)).replace("OUT", str(tmp_path)) for word in words))
    assert f"{run / 'config.json'}: {part}.name must be text, not" in said


def test_a_name_that_is_no_text_is_refused_in_a_recipe_file(capsys, tmp_path):
    (tmp_path / "mine.yaml").write_text("task: {name: [path_star]}")
    said = refused(capsys, "train", "--config", tmp_path / "mine.yaml", "--out", tmp_path / "out")
    assert 'mine.yaml: task.name must be text, not ["path_star"]' in said
