"""Middles: filled by models of both encodings, looked over by a referee, from the command line and from the library."""

import itertools
import json
import math

import numpy as np
import pytest
import torch
from doubles import MarkovPredictor, small_stories

from statewise.cli import main
from statewise.infilling import Filled, referee
from statewise.loading import load_model

TINY = [
    "--task.vocabulary=300", "--task.prompt_length=6", "--task.goal_length=8",
    "--backbone.width=16", "--backbone.heads=2", "--backbone.layers=1", "--trainer.batch_size=4", "--trainer.steps=3",
    "--trainer.warmup_steps=1",
]  # fmt: skip


def called(capsys, *words):
    code = main([str(word) for word in words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("infilling")
    (folder / "stories.txt").write_text(small_stories(60))
    made = {}
    for name, flags in {
        "bst": ["--objective=belief_state", "--objective.head_width=16", "--task.context=64"],
        "fim": ["--task.encoding=fill_in_the_middle", "--task.context=64"],
        "plain": ["--task.context=400"],  # untrained models write bytes that are no text: each costs three tokens
    }.items():
        made[name] = folder / name
        path = f"--task.path={folder / 'stories.txt'}"
        assert main(["train", "stories-small", path, *TINY, *flags, "--out", str(made[name])]) == 0
    return made


@pytest.mark.parametrize(
    ("name", "decoder"),
    [
        ("bst", ["goal_search", "--rollouts", "3"]),
        ("bst", ["greedy"]),
        ("fim", ["beam", "--beams", "3"]),
        ("fim", ["greedy"]),
    ],
)
def test_middles_are_filled_and_looked_over(runs, tmp_path, capsys, name, decoder):
    out = tmp_path / "filled.jsonl"
    code, printed, err = called(capsys, "fill", runs[name], "--num", 3, "--out", out, "--decoder", *decoder)
    assert code == 0, err
    task = load_model(runs[name]).task
    head, *lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert head["title"] == "statewise filling"
    assert "3 sequences" in printed
    for line, (prompt, middle, goal) in zip(lines, task.goals(3), strict=True):
        assert [line[key] for key in ("prompt", "original", "goal")] == [task.decode(t) for t in (prompt, middle, goal)]
    code, printed, err = called(capsys, "evaluate", runs["plain"], "--fills", out, "--json")
    assert code == 0, err
    metrics = json.loads(printed)["metrics"]
    assert metrics["goal_nats"] < 0
    assert 0 <= metrics["exact_joins"] <= 1
    assert json.loads((runs["plain"] / "reports" / "fills-filled.json").read_text())["metrics"] == metrics


def test_an_interrupted_filling_goes_on_and_changes_nothing(runs, tmp_path, capsys):
    whole, part = tmp_path / "whole.jsonl", tmp_path / "part.jsonl"
    words = ["fill", runs["bst"], "--num", 4, "--decoder", "greedy", "--out"]
    assert called(capsys, *words, whole)[0] == 0
    lines = whole.read_text().splitlines(keepends=True)
    part.write_text("".join(lines[:3]) + lines[3][:20])  # the last line was torn by a kill
    code, _, err = called(capsys, *words, part)
    assert code == 0
    assert err.splitlines()[0].startswith("3/4")
    assert part.read_text() == whole.read_text()


def test_what_does_not_fit_is_refused(runs, tmp_path, capsys):
    out = tmp_path / "filled.jsonl"
    out.write_text(json.dumps(vars(Filled("a", "b", "c", "d"))) + "\n")
    code, _, err = called(capsys, "fill", runs["bst"], "--num", 2, "--out", out)
    assert (code, "holds no filling" in err) == (2, True)
    code, _, err = called(capsys, "evaluate", runs["fim"], "--fills", out)
    assert (code, "cannot be a referee" in err) == (2, True)
    out.unlink()
    assert called(capsys, "fill", runs["bst"], "--num", 2, "--out", out)[0] == 0
    for words in (["bst", "--decoder", "sample"], ["fim"]):  # another decoder, another model: not to be mixed
        code, _, err = called(capsys, "fill", runs[words[0]], *words[1:], "--num", 3, "--out", out)
        assert (code, "started with other settings" in err) == (2, True)
    for bad in ("{}", json.dumps({**vars(Filled("a", "b", "c", "d")), "goal": ""}),
                json.dumps({**vars(Filled("a", "b", "c", "d")), "completion": 3})):  # fmt: skip
        out.write_text(bad + "\n")
        code, _, err = called(capsys, "evaluate", runs["plain"], "--fills", out)
        assert (code, "filled.jsonl:1" in err) == (2, True)
    out.write_text("{}\n")
    code, _, err = called(capsys, "evaluate", runs["plain"], "--fills", out)
    assert (code, "filled.jsonl:1" in err) == (2, True)
    code, _, err = called(capsys, "evaluate", runs["plain"], "--fills", out, "--num", 3)
    assert (code, "--num" in err) == (2, True)


def test_tasks_without_middles_say_so(tmp_path, capsys):
    flags = ["--task.held_out_graphs=20", *TINY[3:]]
    assert main(["train", "path-star-small", *flags, "--out", str(tmp_path / "run")]) == 0
    code, _, err = called(capsys, "fill", tmp_path / "run", "--out", tmp_path / "x.jsonl")
    assert (code, "stories" in err) == (2, True)
    assert not (tmp_path / "x.jsonl").exists()


class Letters:
    """Text of the letters a, b and c; a token a letter."""

    def encode(self, text):
        return np.array(["abc".index(letter) for letter in text], np.int64)

    def with_goal(self, prompt, goal):
        return prompt, goal


def test_the_referees_figures_are_what_they_are_called():
    table = torch.tensor([[0.1, 0.7, 0.2], [0.3, 0.3, 0.4], [0.25, 0.25, 0.5]])
    predictor = MarkovPredictor(table)
    found = [Filled("a", "bcbcbcb", "cc", "b"), Filled("ab", "c", "abab", "cc")]
    metrics = referee(predictor, Letters(), found)

    def nats(text):
        return [math.log(table["abc".index(one), "abc".index(two)]) for one, two in itertools.pairwise(text)]

    first, second = nats("abcbcbcbcc"), nats("abcabab")
    assert metrics["goal_nats"] == pytest.approx(np.mean([*first[7:], *second[2:]]), rel=1e-5)
    assert metrics["middle_nats"] == pytest.approx(np.mean([*first[:7], second[1]]), rel=1e-5)
    assert metrics["join_nats"] == pytest.approx(metrics["goal_nats"])
    assert metrics["exact_joins"] == 0.5  # c after b is the first choice, a after c is not
    assert metrics["repetition"] == 2 / 4  # bcbc and cbcb come twice among four runs; c alone has none
    assert metrics["length"] == 4
    assert metrics["original_length"] == 1.5
    with pytest.raises(ValueError, match="no filled"):
        referee(predictor, Letters(), [])
    with pytest.raises(ValueError, match="sequence 1 has 10 tokens"):
        referee(MarkovPredictor(table, context=9), Letters(), found)
