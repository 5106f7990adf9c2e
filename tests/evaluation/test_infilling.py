"""Middles: filled by models of both encodings, looked over by a referee, from the command line and from the library."""

import itertools
import json
import math
from string import ascii_lowercase

import numpy as np
import pytest
import torch
from command_line import called
from doubles import MarkovPredictor, small_stories

from statewise.cli import main
from statewise.decoding import make_decoder
from statewise.evaluation.infilling import Filled, fill_gaps, likeliest_before, referee
from statewise.model.model import load_model
from statewise.run import Run, report_of
from statewise.tasks.path_star import PathStar, PathStarConfig

TINY = [
    "--task.vocabulary=300",
    "--task.prompt_length=6",
    "--task.goal_length=8",
    "--backbone.width=16",
    "--backbone.heads=2",
    "--backbone.layers=1",
    "--trainer.batch_size=4",
    "--trainer.steps=3",
    "--trainer.warmup_steps=1",
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("infilling")
    (folder / "stories.txt").write_text(small_stories(60))
    made = {}
    for name, flags in {
        "bst": ["--objective=belief_state", "--objective.experts=2", "--task.context=64"],
        "closing": ["--objective=belief_state", "--objective.experts=2", "--objective.min_gap=1", "--task.context=64"],
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
        ("bst", ["greedy", "--reverse"]),
        ("bst", ["goal_search", "--rollouts", "3", "--reverse"]),
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
    report = Run(runs["plain"]).report(report_of("fills", out))
    assert (report["metrics"], report["file"]) == (metrics, str(out))


@pytest.mark.parametrize(
    ("name", "decoder", "more"),
    [
        ("closing", "goal_search", []),
        ("closing", "greedy", []),
        ("closing", "greedy", ["--reverse"]),
        ("fim", "beam", []),
    ],
)
def test_fills_of_free_length_end_by_themselves(runs, tmp_path, capsys, name, decoder, more):
    out = tmp_path / "filled.jsonl"
    few = {"goal_search": ["--rollouts", "3"], "beam": ["--beams", "3"], "greedy": []}[decoder]
    words = ["fill", runs[name], "--free-length", "--num", 3, "--out", out, "--decoder", decoder, *few, *more]
    code, printed, err = called(capsys, *words, "--limit", 4)
    assert code == 0, err
    _, *lines = [json.loads(line) for line in out.read_text().splitlines()]
    task = load_model(runs[name]).task
    ended = [line["ended_by"] for line in lines]
    assert f"{ended.count('model')} of them were ended by the model" in printed
    for line, by in zip(lines, ended, strict=True):
        assert "<|endoftext|>" not in line["completion"]
        assert len(task.encode(line["completion"])) <= 12  # bytes that are no text cost three tokens
        assert by in ("model", "length")
    code, printed, err = called(capsys, "evaluate", runs["plain"], "--fills", out, "--json")
    assert (code, json.loads(printed)["metrics"]["goal_nats"] < 0) == (0, True)
    code, _, err = called(capsys, *words)  # another limit
    assert (code, "limit was 4" in err) == (2, True)


def log_probability(model, prompt, middle, goal):
    """Of the goal after the others: token by token."""
    total, read = 0.0, np.concatenate([model.task.encode(prompt), model.task.encode(middle)])
    with model.asking() as predictor:
        cursor, logits = predictor.start(torch.tensor(read)[None])
        for token in model.task.encode(goal):
            total += float(logits[0].double().log_softmax(-1)[token])
            logits = predictor.extend(cursor, torch.tensor([[token]]))[:, -1]
    return total


def test_another_model_ranks_the_candidates(runs, tmp_path, capsys):
    out, model, other = tmp_path / "filled.jsonl", load_model(runs["fim"]), load_model(runs["plain"])
    words = ["fill", runs["fim"], "--num", 3, "--out", out, "--decoder", "beam", "--beams", 4, "--ranked-by"]
    code, _, err = called(capsys, *words, runs["plain"])
    assert code == 0, err
    _, *lines = [json.loads(line) for line in out.read_text().splitlines()]
    others = 0
    for line in lines:
        length = len(model.task.encode(line["original"]))
        found = model.search(line["prompt"], "beam", goal=line["goal"], limit=length, beams=4)
        texts = [model.task.decode(one.tokens) for one in found]
        gained = {text: log_probability(other, line["prompt"], text, line["goal"]) for text in texts}
        assert gained[line["completion"]] == pytest.approx(max(gained.values()), abs=1e-3)
        others += line["completion"] != texts[0]
    assert others  # the beam's own order would have chosen otherwise
    code, _, err = called(capsys, *words, runs["closing"])
    assert (code, "started with other settings" in err) == (2, True)
    code, _, err = called(capsys, *words[:-1])
    assert (code, "is not set" in err) == (2, True)
    out.unlink()
    for more, message in (
        ([runs["fim"]], "task.encoding plain"),
        ([runs["plain"], "--unconditional"], "--unconditional leaves no ending"),
        ([runs["plain"], "--decoder", "greedy"], "ranks nothing"),
        ([tmp_path / "nothing"], "nothing"),
        ([""], "not a run directory"),
    ):
        given = [word for word in words if word not in ("--beams", 4)] if "greedy" in more else words
        code, _, err = called(capsys, *given, *more)
        assert (code, message in err) == (2, True), err
    assert not out.exists()
    with model.asking() as predictor, pytest.raises(ValueError, match="goal_search or beam"):
        list(fill_gaps(predictor, model.task, make_decoder("greedy"), model.task.goals(1), choose=lambda *given: 0))
    with (
        model.asking() as predictor,
        pytest.raises(ValueError, match="model that ranks cannot read the sequences: unknown symbol 'O'"),
    ):
        likeliest_before(predictor, PathStar(PathStarConfig()), "Once", ["1"], "0")


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        ["--objective=belief_state", "--objective.head=mlp", "--objective.head_width=64", "--objective.min_gap=1"],
        ["--task.encoding=fill_in_the_middle"],
    ],
    ids=["min_gap 1", "fill_in_the_middle"],
)
def test_a_trained_model_ends_its_fills_where_the_goal_follows(tmp_path, capsys, flags):
    """Pieces of the alphabet: the goal says which letter is the last one missing."""
    letters = ascii_lowercase
    told = [" ".join(letters[(first + at) % 26] for at in range(n)) for first in range(26) for n in range(10, 20)]
    order = np.random.default_rng(0).permutation(len(told))
    (tmp_path / "s.txt").write_text("".join(f"{told[place]}.\n<|endoftext|>\n" for place in order))
    task = [f"--task.path={tmp_path / 's.txt'}", "--task.vocabulary=280", "--task.context=64", "--task.prompt_length=4"]
    model = ["--task.goal_length=4", "--backbone.width=48", "--backbone.heads=4", "--backbone.layers=2"]
    trainer = [
        "--trainer.steps=300",
        "--trainer.batch_size=32",
        "--trainer.learning_rate=3e-3",
        "--trainer.evaluate_every=1000",
        "--trainer.precision=fp32",
    ]
    assert main(["train", "stories-small", *task, *model, *trainer, *flags, "--out", str(tmp_path / "run")]) == 0
    out = tmp_path / "filled.jsonl"
    words = ["fill", tmp_path / "run", "--free-length", "--num", 20, "--decoder", "greedy", "--out", out]
    assert called(capsys, *words)[0] == 0
    _, *lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert len({len(line["original"]) for line in lines}) > 5  # no single length would do
    assert sum(line["ended_by"] == "model" for line in lines) >= 18
    assert sum(line["completion"] == line["original"] for line in lines) >= 16


def test_it_says_how_many_are_held_out_when_more_are_asked_for(runs, tmp_path, capsys):
    out = tmp_path / "filled.jsonl"
    held_out = len(load_model(runs["bst"]).task.goals(None))
    words = ["fill", runs["bst"], "--decoder", "greedy", "--out", out, "--num"]
    assert "held out" not in called(capsys, *words, held_out)[1]
    out.unlink()
    code, printed, _ = called(capsys, *words, held_out + 1)
    assert (code, len(out.read_text().splitlines())) == (0, 1 + held_out)
    assert f"{held_out} sequences; only {held_out} that can be filled are held out" in printed


@pytest.mark.parametrize(
    ("name", "decoder"), [("bst", "goal_search"), ("closing", "greedy"), ("fim", "beam"), ("plain", "greedy")]
)
def test_unconditional_fills_know_the_beginning_alone(runs, tmp_path, capsys, name, decoder):
    out = tmp_path / "filled.jsonl"
    few = {"goal_search": ["--rollouts", "3"], "beam": ["--beams", "3"], "greedy": []}[decoder]
    words = ["fill", runs[name], "--unconditional", "--limit", 9, "--num", 2, "--out", out, "--decoder", decoder]
    code, printed, err = called(capsys, *words, *few)
    assert code == 0, err
    assert "ended by the model" in printed
    model = load_model(runs[name])
    _, *lines = [json.loads(line) for line in out.read_text().splitlines()]
    for line, (prompt, middle, goal) in zip(lines, model.task.goals(2), strict=True):
        assert (line["prompt"], line["goal"]) == (model.task.decode(prompt), "")
        assert line["original"] == model.task.decode(np.concatenate([middle, goal]))
        if decoder == "greedy":
            (one,) = model.generate([line["prompt"]], limit=9)
            kept = one.tokens[one.tokens != model.task.end]
            assert line["completion"] == model.task.decode(kept)
            assert line["ended_by"] == ("model" if len(kept) < len(one.tokens) else "length")
    code, printed, err = called(capsys, "evaluate", runs["plain"], "--fills", out, "--json")
    assert code == 0, err
    metrics = json.loads(printed)["metrics"]
    assert metrics["middle_nats"] < 0
    assert not {"goal_nats", "join_nats", "exact_joins", "original_goal_nats"} & set(metrics)
    with open(out, "a") as file:
        file.write(json.dumps({**lines[0], "goal": "And so on."}) + "\n")
    code, _, err = called(capsys, "evaluate", runs["plain"], "--fills", out)
    assert (code, "score them separately" in err) == (2, True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--free-length"], "train belief_state with --objective.min_gap 1"),
        (["--limit", 4], "--limit needs --free-length"),
        (["--free-length", "--unconditional"], "omit --free-length"),
        (["--reverse", "--unconditional"], "omit either"),
    ],
)
def test_lengths_that_make_no_sense_are_refused(runs, tmp_path, capsys, words, message):
    code, _, err = called(capsys, "fill", runs["bst"], "--num", 2, "--out", tmp_path / "x.jsonl", *words)
    assert (code, message in err) == (2, True), err


def test_generate_fills_a_gap_of_free_length(runs, capsys):
    model = load_model(runs["closing"])
    for words, options in (([], {}), (["--free-length"], {"free_length": True})):
        code, printed, err = called(
            capsys, "generate", runs["closing"], "--prompt", "Once Ann", "--goal", "was happy.", "--limit", 5, *words
        )
        assert code == 0, err
        (one,) = model.generate(["Once Ann"], goal="was happy.", limit=5, **options)
        assert printed == model.task.decode(one.tokens) + "\n"
    for words in ([], ["--free-length"]):
        code, printed, err = called(
            capsys,
            "generate",
            runs["closing"],
            "--prompt",
            "Once Ann",
            "--limit",
            5,
            "--goal",
            "was",
            "--reverse",
            *words,
        )
        assert code == 0, err
        options = {"free_length": bool(words), "reverse": True}
        (one,) = model.generate(["Once Ann"], goal="was", limit=5, **options)
        assert printed == model.task.decode(one.tokens) + "\n"
        first = model.search("Once Ann", "beam", goal="was", limit=5, beams=1, **options)[0]
        assert (first.tokens == one.tokens).all()
    code, _, err = called(capsys, "generate", runs["fim"], "--prompt", "Once Ann", "--reverse")
    assert (code, "such models, with default fields, have the objective belief_state" in err) == (2, True)
    code, _, err = called(capsys, "generate", runs["closing"], "--prompt", "Once", "--free-length")
    assert (code, "needs --goal" in err) == (2, True)
    for asked in (model.generate, lambda prompts, **options: model.search(prompts[0], "beam", **options)):
        with pytest.raises(ValueError, match="free_length needs a goal"):
            asked(["Once"], free_length=True)


def test_a_model_that_reads_goals_first_ends_its_completions(runs):
    model, asked = load_model(runs["fim"]), {"goal": "was happy.", "limit": 30, "temperature": 1e6}
    found = model.generate(["Once Ann"] * 120, "sample", **asked)
    ended = [one for one in found if one.tokens[-1] == model.task.end]
    assert 0 < len(ended) < 120
    assert all(len(one.tokens) == 30 for one in found if one.tokens[-1] != model.task.end)
    again = model.generate(["Once Ann"] * 120, "sample", free_length=True, **asked)
    assert [one.tokens.tolist() for one in again] == [one.tokens.tolist() for one in found]


@pytest.mark.parametrize("decoder", [["greedy"], ["sample", "--temperature", 2]], ids=["greedy", "sample"])
def test_an_interrupted_filling_goes_on_and_changes_nothing(runs, tmp_path, capsys, decoder):
    whole, part = tmp_path / "whole.jsonl", tmp_path / "part.jsonl"
    words = ["fill", runs["bst"], "--num", 4, "--decoder", *decoder, "--out"]
    assert called(capsys, *words, whole)[0] == 0
    lines = whole.read_text().splitlines(keepends=True)
    part.write_text("".join(lines[:3]) + lines[3][:20])  # the last line was torn by a kill
    code, _, err = called(capsys, *words, part)
    assert code == 0
    assert err.splitlines()[0].startswith("3/4")
    assert part.read_text() == whole.read_text()


def test_a_file_without_results_can_be_begun_with_other_settings(runs, tmp_path, capsys):
    out = tmp_path / "filled.jsonl"
    words = ["fill", runs["bst"], "--num", 2, "--out", out]
    code, _, err = called(capsys, *words, "--free-length")
    assert (code, "--objective.min_gap 1" in err) == (2, True)
    assert called(capsys, *words)[0] == 0
    assert len(out.read_text().splitlines()) == 3
    code, _, err = called(capsys, *words, "--decoder", "sample")
    assert (code, "started with other settings" in err) == (2, True)


@pytest.mark.parametrize(
    ("decoder", "first", "then"),
    [
        (["goal_search", "--rollouts", 4], ["--batch", 4], ["--batch", 3]),
        (["speculative"], ["--drafter", "prompt_lookup"], ["--drafter", "prompt_lookup", "--ngram", 2, "--draft", 2]),
        (["speculative"], ["--drafter", "prompt_lookup"], ["--draft", 0]),
    ],
)
def test_a_filling_goes_on_with_other_options_of_speed(runs, tmp_path, capsys, decoder, first, then):
    words = ["fill", runs["bst"], "--decoder", *decoder, "--out"]
    assert called(capsys, *words, tmp_path / "whole.jsonl", "--num", 2, *first)[0] == 0
    for num, options in ((1, first), (2, then)):
        code, _, err = called(capsys, *words, tmp_path / "part.jsonl", "--num", num, *options)
        assert code == 0, err
    assert (tmp_path / "part.jsonl").read_text() == (tmp_path / "whole.jsonl").read_text()


def test_what_does_not_fit_is_refused(runs, tmp_path, capsys):
    out = tmp_path / "filled.jsonl"
    out.write_text(json.dumps(vars(Filled("a", "b", "c", "d"))) + "\n")
    code, _, err = called(capsys, "fill", runs["bst"], "--num", 2, "--out", out)
    assert (code, "is not a filling file" in err) == (2, True)
    code, _, err = called(capsys, "evaluate", runs["fim"], "--fills", out)
    assert (code, "cannot be a referee" in err) == (2, True)
    out.unlink()
    assert called(capsys, "fill", runs["bst"], "--num", 2, "--out", out)[0] == 0
    for words in (["bst", "--decoder", "sample"], ["fim"]):  # another decoder, another model: not to be mixed
        code, _, err = called(capsys, "fill", runs[words[0]], *words[1:], "--num", 3, "--out", out)
        assert (code, "started with other settings" in err) == (2, True)
    for bad in (
        "{}",
        json.dumps({**vars(Filled("a", "b", "c", "d")), "prompt": ""}),
        json.dumps({**vars(Filled("a", "b", "c", "d")), "ended_by": "chance"}),
        json.dumps({**vars(Filled("a", "b", "c", "d")), "more": "e"}),
        json.dumps({**vars(Filled("a", "b", "c", "d")), "completion": "half \ud83d"}),
        json.dumps({**vars(Filled("a", "b", "c", "d")), "completion": 3}),
    ):
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
    (tmp_path / "x.jsonl").write_text(json.dumps(vars(Filled("a", "b", "c", "d"))) + "\n")
    code, _, err = called(capsys, "evaluate", tmp_path / "run", "--fills", tmp_path / "x.jsonl")
    assert (code, "such tasks are stories and text" in err) == (2, True), err


class Letters:
    """Text of the letters a, b and c; a token a letter."""

    def encode(self, text):
        return np.array(["abc".index(letter) for letter in text], np.int64)

    def with_goal(self, prompt, goal):
        return prompt, goal


def test_the_referees_figures_are_what_they_are_called():
    table = torch.tensor([[0.1, 0.7, 0.2], [0.3, 0.3, 0.4], [0.25, 0.25, 0.5]])
    predictor = MarkovPredictor(table)
    found = [Filled("a", "bcbcbcb", "cc", "b"), Filled("ab", "c", "ababbac", "cc")]
    metrics = referee(predictor, Letters(), found).metrics

    def nats(text):
        return [math.log(table["abc".index(one), "abc".index(two)]) for one, two in itertools.pairwise(text)]

    first, second = nats("abcbcbcbcc"), nats("abcababbac")
    assert metrics["goal_nats"] == pytest.approx(np.mean([*first[7:], *second[2:]]), rel=1e-5)
    assert metrics["middle_nats"] == pytest.approx(np.mean([*first[:7], second[1]]), rel=1e-5)
    assert metrics["join_nats"] == pytest.approx(np.mean([*first[7:], *second[2:7]]), rel=1e-5)  # five of seven
    assert metrics["join_nats"] != pytest.approx(metrics["goal_nats"], rel=1e-2)
    assert metrics["exact_joins"] == 0.5  # c after b is the first choice, a after c is not
    assert metrics["repetition"] == 2 / 4  # bcbc and cbcb come twice among four runs; c alone has none
    assert metrics["length"] == 4
    assert metrics["original_length"] == 1.5
    with pytest.raises(ValueError, match="no filled"):
        referee(predictor, Letters(), [])
    with pytest.raises(ValueError, match="all 2 sequences"):
        referee(MarkovPredictor(table, context=9), Letters(), found)


def test_sequences_that_are_too_long_for_the_referee_are_left_out_and_counted(runs, tmp_path, capsys):
    predictor = MarkovPredictor(torch.full((3, 3), 1 / 3), context=6)
    short, filled_long, truly_long = (
        Filled("a", "b", "cc", "b"),
        Filled("a", "bbbb", "cc", "b"),
        Filled("a", "b", "cc", "bbbb"),
    )
    refereed = referee(predictor, Letters(), [filled_long, short, truly_long])
    assert refereed.left_out == [0, 2]
    assert refereed.metrics == referee(predictor, Letters(), [short]).metrics
    out = tmp_path / "filled.jsonl"
    assert called(capsys, "fill", runs["fim"], "--num", 2, "--out", out, "--decoder", "greedy")[0] == 0
    head, first, second = out.read_text().splitlines()
    long = json.dumps({**json.loads(first), "completion": "word " * 500})
    out.write_text("\n".join([head, long, second]) + "\n")
    code, printed, err = called(capsys, "evaluate", runs["plain"], "--fills", out)
    assert code == 0, err
    assert "1 sequence, scored by" in printed
    assert "left out: 1 of 2 sequences, too long for the referee (1)" in printed
    report = Run(runs["plain"]).report(report_of("fills", out))
    assert (report["num"], report["left_out"]) == (1, [1])
