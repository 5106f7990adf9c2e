"""The command as a user calls it: one process a call where that matters, in process elsewhere."""

import dataclasses
import html
import json
import re
import shlex
import shutil
import subprocess
import sys

import pytest
import yaml
from command_line import called
from doubles import SMALL_RUN

from statewise import __version__
from statewise.cli import main
from statewise.config.recipes import recipe_text
from statewise.decoding import DECODERS
from statewise.experiments.launch import Listener, check
from statewise.model.recipes import read_recipe
from statewise.run import Run

pytestmark = pytest.mark.usefixtures("forked")

TINY = [
    *SMALL_RUN,
    "--task.held_out_graphs=40",
    "--trainer.steps=12",
    "--trainer.log_every=4",
    "--trainer.evaluate_every=6",
    "--trainer.evaluate_num=20",
]
GRAPH = "0,1|1,2|0,3|3,4|0,5|5,6/0,2="


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two objectives, two seeds each."""
    folder = tmp_path_factory.mktemp("runs")
    for objective in ("next_token", "next_latent"):
        for seed in (1, 2):
            words = ["train", "path-star-small", *TINY, "--objective", objective, "--seed", str(seed)]
            assert main([*words, "--out", str(folder / f"{objective}-{seed}")]) == 0
    return folder


def test_help_list_and_version_answer(capsys):
    for words in (["--help"], ["list"], ["--version"], ["train", "--help"]):
        done = subprocess.run([sys.executable, "-m", "statewise", *words], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout
    assert called(capsys, "--version")[1] == f"statewise {__version__}\n"


def test_list_names_everything(capsys):
    _, out, _ = called(capsys, "list")
    for name in ("path_star", "sequences", "next_token", "next_latent", "gpt", *DECODERS, "path-star-small"):
        assert f"  {name} " in out


@pytest.mark.parametrize("columns", [80, 100])
def test_lists_break_between_words_and_fit_the_terminal(columns, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "1000")
    _, wide, _ = called(capsys, "list")
    monkeypatch.setenv("COLUMNS", str(columns))
    _, narrow, _ = called(capsys, "list")
    assert narrow.split() == wide.split()
    lines = narrow.splitlines()
    assert len(lines) > len(wide.splitlines())
    assert all(len(line) <= columns for line in lines)


def test_print_config_is_a_recipe(capsys, tmp_path):
    _, out, _ = called(capsys, "train", "path-star-small", "--trainer.steps", "7", "--print_config")
    assert yaml.safe_load(out)["trainer"]["steps"] == 7
    (tmp_path / "my.yaml").write_text(out)
    _, again, _ = called(capsys, "train", "--config", tmp_path / "my.yaml", "--print_config")
    assert again == out


def test_evaluate_prints_and_keeps(capsys, runs):
    code, out, _ = called(capsys, "evaluate", runs / "next_token-1", "--num", "15")
    assert code == 0
    assert "path_accuracy" in out
    assert "15 examples, greedy decoding" in out
    code, out, _ = called(capsys, "evaluate", runs / "next_token-1", "--json")
    found = json.loads(out)
    assert found["num"] == 40
    assert found["metrics"] == Run(runs / "next_token-1").report("evaluation")["metrics"]
    assert set(found["metrics"]) >= {"path_accuracy", "branch_accuracy", "position_1", "loss", "perplexity"}


def test_what_deviates_does_not_replace_the_report(capsys, runs):
    folder = runs / "next_token-2"
    before = Run(folder).report("evaluation")
    assert called(capsys, "evaluate", folder, "--num", "3")[0] == 0
    assert called(capsys, "evaluate", folder, "--checkpoint", "last")[0] == 0
    assert Run(folder).report("evaluation") == before
    assert Run(folder).report("evaluation-first-3")["num"] == 3
    assert Run(folder).report("evaluation-checkpoint-last")["checkpoint"] == 12


def test_evaluate_decodes_as_asked(capsys, runs):
    folder = runs / "next_token-1"
    before = Run(folder).report("evaluation")
    greedy = json.loads(called(capsys, "evaluate", folder, "--num", "7", "--json")[1])
    one = json.loads(called(capsys, "evaluate", folder, "--num", "7", "--decoder", "beam", "--beams", "1", "--json")[1])
    assert one.pop("decoder") == {"name": "beam", "beams": 1}
    assert one == greedy
    code, out, _ = called(capsys, "evaluate", folder, "--num", "7", "--decoder=beam", "--beams", "5")
    assert code == 0
    assert "7 examples, beam decoding (beams 5)" in out
    drawn = [
        json.loads(
            called(capsys, "evaluate", folder, "--decoder", "sample", "--top-k", "4", "--seed", str(seed), "--json")[1]
        )["metrics"]
        for seed in (1, 1, 2)
    ]
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]
    reports = [Run(folder).report(f"evaluation-first-7-decoder-beam-beams-{beams}") for beams in (1, 5)]
    assert [report["num"] for report in reports] == [7, 7]
    default = DECODERS["beam"].Config().beams
    assert called(capsys, "evaluate", folder, "--num", "2", "--decoder", "beam", "--beams", default)[0] == 0
    assert Run(folder).report("evaluation-first-2-decoder-beam")["decoder"] == {"name": "beam"}
    assert Run(folder).report("evaluation-decoder-sample-top_k-4-seed-2")["metrics"] == drawn[2]
    assert Run(folder).report("evaluation") == before, "compare reads what greedy decoding gave"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--decoder", "bea"], "did you mean beam"),
        (["--decoder", "beam", "--beam", "3"], "did you mean beams"),
        (["--decoder", "beam", "--nmu", "3"], "nmu"),
        (["--nmu", "3"], "did you mean --num"),
        (["--decoder", "beam", "--beams", "0"], "beams must be"),
        (["--decoder", "beam", "--temperature", "1"], "--decoder sample or speculative has"),
        (["--beams", "3"], "unknown option '--beams'"),
        (["--decoder"], "expected one argument"),
        (["--decoder", ""], "decoder"),
        (["--decoder", "beam", "--beams"], "--beams is unknown, or lacks its value"),
        (["--decoder", "beam", "--fills", "fills.jsonl"], "--fills decodes nothing: omit --decoder"),
        (["--decoder", "beam", "--comprehensive"], "--comprehensive decodes nothing: omit --decoder"),
    ],
)
def test_decoders_that_do_not_fit_are_refused(capsys, runs, words, said):
    code, _, error = called(capsys, "evaluate", runs / "next_token-1", *words)
    assert code == 2
    assert said in error


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-out", "x"], "unknown option '-out': did you mean --out?"),
        (["-z", "x"], "unknown option '-z': options begin with two dashes"),
        (["--overwritee"], "unknown option '--overwritee': did you mean --overwrite?"),
        (["--print-config"], "unknown option '--print-config': did you mean --print_config?"),
        (["--sed", "3"], "unknown option '--sed': did you mean --seed"),
        (["--steps", "3"], "unknown option '--steps': did you mean --trainer.steps?"),
    ],
)
def test_a_slip_in_an_option_of_training_is_answered_with_what_was_meant(capsys, words, said):
    code, _, error = called(capsys, "train", "path-star-demo", "--print_config", *words)
    assert code == 2
    assert said in error


OWN_DECODER = """
from dataclasses import make_dataclass
from statewise.decoding.sample import Greedy

class Mine(Greedy):
    Config = make_dataclass("Config", [("path", str, ""), ("num", int, 3), ("share", float, 0.5)])
"""


def test_decoders_of_your_own_decode_answers(capsys, runs, tmp_path, monkeypatch):
    (tmp_path / "own_decoder.py").write_text(OWN_DECODER)
    monkeypatch.syspath_prepend(tmp_path)
    folder = runs / "next_token-2"
    before = set(Run(folder).reports())
    words = ["--num", "2", "--decoder", "own_decoder:Mine", "--share", "0.25", "--path"]
    for path in ("../../x", "a\nb", "x" * 300):
        code, out, _ = called(capsys, "evaluate", folder, *words, path, "--json")
        assert code == 0
        found = json.loads(out)
        assert found["decoder"] == {"name": "own_decoder:Mine", "path": path, "share": 0.25}
        assert found["num"] == 2, "--num is the command's"
    new = set(Run(folder).reports()) - before
    assert len(new) == 3
    assert all(re.fullmatch(r"[\w.,+-]{1,200}", name) for name in new)


def test_a_decoder_of_a_task_without_decoded_answers_is_refused(capsys, tmp_path):
    small = ["--trainer.steps=1", "--trainer.batch_size=2", "--task.held_out_sequences=4"]
    assert called(capsys, "train", "hmm-rrxor", *small, "--out", tmp_path / "run")[0] == 0
    code, _, error = called(capsys, "evaluate", tmp_path / "run", "--decoder", "beam")
    assert code == 2
    assert "task hmm is scored without decoding, so a decoder changes nothing: omit --decoder" in error


def test_evaluate_on_a_file(capsys, runs, tmp_path):
    path = tmp_path / "graphs.txt"
    path.write_text(f"{GRAPH}0,1,2\n")
    code, out, _ = called(capsys, "evaluate", runs / "next_token-1", "--data", path, "--json")
    assert code == 0
    assert json.loads(out)["num"] == 1
    path.write_text(f"{GRAPH}0,1,2\n{GRAPH}0,1\n")
    code, _, err = called(capsys, "evaluate", runs / "next_token-1", "--data", path)
    assert code == 2
    assert f"{path}:2: " in err


def test_a_run_without_its_environment_is_refused(capsys, runs, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(runs / "next_token-1", folder)
    (folder / "reports" / "evaluation.json").unlink()  # as if training had not come to its end
    path = folder / "environment.json"
    for harm, said in [
        (path.unlink, f"{path} is missing: restore it"),
        (lambda: path.write_text("{}"), f"{path}: device is missing"),
    ]:
        harm()
        for words in (["train", "--resume", folder], ["evaluate", folder]):
            code, _, error = called(capsys, *words)
            assert code == 2
            assert error.startswith(f"statewise: {said}")


def test_generate(capsys, runs):
    code, out, _ = called(capsys, "generate", runs / "next_latent-1", "--prompt", GRAPH)
    assert code == 0
    assert out.strip()
    words = ("generate", runs / "next_latent-1", "--prompt", GRAPH, "--decoder", "sample", "--temperature", "0.8")
    first, second, other = (called(capsys, *words, "--seed", seed)[1] for seed in (3, 3, 4))
    assert first == second
    assert first != other
    _, out, _ = called(capsys, *words, "--json")
    assert json.loads(out)["log_probability"] < 0


@pytest.fixture(scope="module")
def belief(tmp_path_factory):
    """A run that can head for goals, of sequences that end."""
    folder = tmp_path_factory.mktemp("belief")
    (folder / "letters.txt").write_text("".join(f"{a} {b} {c} d e\n" for a in "abc" for b in "abc" for c in "abc"))
    words = [
        "train",
        "sequences-small",
        *SMALL_RUN,
        "--task.path",
        folder / "letters.txt",
        "--trainer.steps",
        "12",
        "--trainer.evaluate_every",
        "6",
        "--objective",
        "belief_state",
        "--objective.experts",
        "2",
        "--out",
        folder / "run",
    ]
    assert main([str(word) for word in words]) == 0
    return folder / "run"


def test_generate_searches_towards_a_goal(capsys, belief):
    words = ("generate", belief, "--prompt", "a", "--goal", "d e <end>", "--decoder", "goal_search", "--rollouts", "7")
    code, out, err = called(capsys, *words, "--candidates", "3")
    assert code == 0, err
    header, rule, *rows = out.splitlines()
    assert header.split() == ["score", "log-probability", "completion"]
    assert len(rows) == 3
    first = rule.rindex(" ") + 1  # of the last column, the same in every row
    assert [row[first - 1] for row in rows] == [" "] * 3
    assert [len(row[first:].split()) for row in rows] == [2, 2, 2]  # 6 tokens, of which 4 are given
    code, out, _ = called(capsys, *words, "--candidates", "3", "--json")
    found = json.loads(out)
    assert [one["completion"] for one in found] == [row[first:] for row in rows]
    scores = [one["score"] for one in found]
    assert scores == sorted(scores, reverse=True)
    assert all(one["log_probability"] < 0 and "<end>" not in one["completion"] for one in found)
    assert called(capsys, *words)[1] == found[0]["completion"] + "\n"  # without --candidates: the best
    assert len(json.loads(called(capsys, *words, "--candidates", "50", "--json")[1])) == 7  # no more were found


def test_generate_searches_without_a_goal(capsys, belief, runs):
    words = ("generate", belief, "--prompt", "a b", "--candidates", "4", "--json", "--limit", "3")
    beam = json.loads(called(capsys, *words, "--decoder", "beam", "--beams", "9")[1])
    assert len(beam) == 4
    assert [one["score"] for one in beam] == [one["log_probability"] for one in beam]
    first = {}
    for score in ("previous", "next"):
        found = json.loads(called(capsys, *words, "--decoder", "goal_search", "--score", score)[1])
        assert all(1 <= len(one["completion"].split()) <= 3 for one in found)
        first[score] = found[0]
    assert first["previous"]["score"] != first["next"]["score"]
    code, out, _ = called(capsys, "generate", runs / "next_token-1", "--prompt", GRAPH, "--decoder", "beam")
    assert code == 0
    assert out.strip()


def test_greedy_and_sample_head_for_goals_too(capsys, belief):
    for decoder in ("greedy", "sample"):
        words = ("generate", belief, "--prompt", "a", "--goal", "e <end>", "--decoder", decoder)
        code, out, err = called(capsys, *words)
        assert code == 0, err
        assert 1 <= len(out.split()) <= 3


def test_goals_that_cannot_be_headed_for_are_named(capsys, belief, runs):
    search = ("--decoder", "goal_search")
    for run, words, message in [
        (runs / "next_token-1", ("--prompt", GRAPH, "--goal", "2"), "such models, with default"),
        (runs / "next_token-1", ("--prompt", GRAPH, "--goal", "2", "--decoder", "beam"), "such models, with default"),
        (runs / "next_token-1", ("--prompt", GRAPH, *search), "such models, with default"),
        (belief, ("--prompt", "a", "--goal", "", *search), "omit --goal"),
        (belief, ("--prompt", "a", "--goal", "z", *search), "unknown symbol 'z'"),
        (belief, ("--prompt", "a", "--goal", "a b c d e", *search), "leaves no room in the context of 6"),
        (belief, ("--prompt", "a", *search, "--score", "goal"), "score goal needs a goal"),
        (belief, ("--prompt", "a", "--goal", "e", *search, "--score", "next"), "for a search without a goal"),
    ]:
        code, _, err = called(capsys, "generate", run, *words)
        assert code == 2
        assert message in err


def test_help_names_every_option_of_every_decoder(capsys):
    with pytest.raises(SystemExit):
        main(["generate", "--help"])
    shown = capsys.readouterr().out
    for name in DECODERS:
        for field in dataclasses.fields(DECODERS[name].Config):
            assert f"--{field.name}" in shown


def test_compare_groups_over_seeds(capsys, runs, tmp_path):
    folders = sorted(runs.glob("next_token-*")) + sorted(runs.glob("next_latent-*"))
    code, out, _ = called(capsys, "compare", *folders, "--out", tmp_path / "report")
    assert code == 0
    assert "next-latent" in out
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    assert [group["label"] for group in report["groups"]] == ["next-token", "next-latent"]
    assert [group["solved"] for group in report["groups"]] == [0, 0]
    page = (tmp_path / "report" / "report.html").read_text()
    assert "<svg viewBox" in page
    assert (tmp_path / "report" / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert "| next-latent | 2 |" in (tmp_path / "report" / "table.md").read_text()
    tests = ("--better", folders[-1], "--margin", "0.5")
    code, out, _ = called(capsys, "compare", *folders, "--out", tmp_path / "report", "--overwrite", *tests)
    assert code == 0
    assert "next-latent is better than next-token" in out
    assert "next-token equals, within 0.5, next-latent" in out


def test_seeds_without_an_evaluation_are_left_out_of_a_comparison(capsys, runs, tmp_path):
    group = tmp_path / "group"
    group.mkdir()
    (group / "seeds.json").write_text(json.dumps({"seeds": [1, 2, 3]}))
    report = ("compare", group, "--out", tmp_path / "report", "--json")
    code, _, err = called(capsys, *report)
    assert (code, err.count("no seed of")) == (2, 1)
    assert f"train --resume {group}" in err
    shutil.copytree(runs / "next_token-1", group / "seed-1")
    shutil.copytree(runs / "next_token-2", group / "seed-3")
    shutil.rmtree(group / "seed-3" / "reports")
    code, out, err = called(capsys, *report)
    assert code == 0
    assert len(json.loads(out)["groups"][0]["runs"]) == 1
    assert json.loads(out)["left_out"] == {str(group): [2, 3]}
    shown = " ".join(called(capsys, *report[:-1], "--overwrite")[1].split())  # wherever lines end
    assert shown.count("without an evaluation yet: seeds 2, 3.") == 1


def test_several_seeds_run_resume_and_compare_as_a_whole(capfd, tmp_path):
    folder = tmp_path / "nl"
    words = ["train", "path-star-small", *TINY, "--seeds", "1,3", "--jobs", "2", "--out", str(folder)]
    assert main(words) == 0
    assert main(words) == 2  # it exists
    assert "--resume" in capfd.readouterr().err
    assert main(["train", "--resume", str(folder)]) == 0
    assert "is complete" in capfd.readouterr().out
    import shutil

    shutil.rmtree(folder / "seed-3")  # as if it had not begun
    assert main(["train", "--resume", str(folder)]) == 0
    assert Run(folder / "seed-3").end()["reason"] == "steps"
    assert main(["compare", str(folder), "--out", str(tmp_path / "report")]) == 0
    every = [str(path) for path in sorted(folder.glob("seed-*"))]
    assert len(every) > 2, "logs, too"
    assert main(["compare", *every, "--out", str(tmp_path / "by-name")]) == 0
    logs = [path for path in every if path.endswith(".log")]
    capfd.readouterr()
    assert main(["compare", *logs, "--out", str(tmp_path / "of-logs")]) == 2
    assert f"{logs[0]} is a file beside a run" in capfd.readouterr().err
    assert (tmp_path / "by-name" / "table.md").read_text() == (tmp_path / "report" / "table.md").read_text()
    assert main([*words, "--trainer.steps", "7", "--overwrite"]) == 0
    assert [Run(folder / f"seed-{seed}").end()["step"] for seed in (1, 3)] == [7, 7]
    assert json.loads((tmp_path / "report" / "report.json").read_text())["groups"][0]["runs"][1].endswith("seed-3")


def test_names_of_files_do_not_steer_the_terminal(capsys):
    assert main(["compare", "runs/\x1b[31mred", "--out", "x"]) == 2
    told = capsys.readouterr().err
    assert "\x1b" not in told
    assert "\\x1b[31mred" in told


MISTAKES = [
    (["trian"], "unknown command 'trian': did you mean train"),
    (["train"], "name one recipe"),
    (["train", "path-star-smal", "--out", "x"], "did you mean path-star-small"),
    (["train", "path-star-small"], "--out is missing"),
    (["train", "path-star-small", "--out", "x", "--trainer.step", "3"], "did you mean --trainer.steps"),
    (["train", "path-star-small", "--out", "x", "--objective", "bst"], "choices: next_token, "),
    (["train", "path-star-small", "--out", "x", "--task.degree", "9"], "set task.nodes to 19 or more"),
    (["train", "path-star-small", "--out", "x", "--seeds", "5-1"], "give a range like 1-5"),
    (["train", "path-star-small", "--out", "x", "--seeds", "1", "--jobs", "0"], "--jobs must be at least 1"),
    (["train", "--config", "none.yaml", "--out", "x"], "none.yaml: No such file"),
    (["train", "sequences-small", "--out", "x"], "--task.path FILE"),
    (["train", "sequences-small", "--task.path", "none.txt", "--out", "x"], "none.txt: No such file"),
    (["train", "--resume", "nowhere"], "nowhere is not a run directory"),
    (["train", "--resume", "nowhere", "--trainer.steps", "5"], "continues a run unchanged"),
    (["train", "--resume", "nowhere", "--jobs", "2"], "--jobs is for the runs of --seeds: nowhere does not hold"),
    (["train", "--resume", "nowhere", "--on", "slurm"], "--on slurm is for the runs of --seeds: nowhere does not"),
    (["train", "--resume", "nowhere", "--slurm.gpus", "2"], "--slurm.gpus is for the runs of --seeds: nowhere does"),
    (
        ["train", "path-star-small", "--out", "x", "--jobs", "2"],
        "--jobs is for the runs of --seeds: give --seeds, such",
    ),
    (["train", "path-star-small", "--out", "x", "--on", "slurm"], "--on slurm is for the runs of --seeds"),
    (["train", "path-star-small", "--out", "x", "--slurm.time", "2"], "--slurm.time is for the runs of --seeds"),
    (["train", "path-star-small", "--out", "x", "--detach"], "--detach is for the runs of --seeds"),
    (["train", "path-star-small", "--out", "x", "--checkpoint", "5"], "--checkpoint is for --resume"),
    (["evaluate", "nowhere"], "nowhere is not a run directory"),
    (["evaluate", "nowhere", "--nun", "5"], "did you mean --num"),
    (["evaluate"], "required: RUN"),
    (["evaluate", "nowhere", "--fills", "x", "--protocol", "all"], "omit --protocol"),
    (["evaluate", "nowhere", "--fills", "x", "--warmup", "1"], "omit --warmup"),
    (["evaluate", "nowhere", "--fills", "x", "--comprehensive"], "omit --comprehensive"),
    (["generate", "nowhere", "--prompt", "1", "--decoder", "bean"], "unknown decoder 'bean': did you mean beam"),
    (["generate", "nowhere", "--prompt", "1", "--temperature", "2"], "has no field 'temperature'"),
    (["generate", "nowhere", "--prompt", "1", "--candidates", "3"], "greedy finds one completion and ranks nothing"),
    (["generate", "nowhere", "--prompt", "1", "--candidates", "0"], "--candidates must be at least 1, not 0"),
    (
        ["generate", "nowhere", "--prompt", "1", "--decoder", "beam", "--rollouts", "3"],
        "has no field 'rollouts': --decoder goal_search has",
    ),
    (["generate", "nowhere", "--prompt", "1", "--decoder", "goal_search", "--batch", "0"], "batch must be at least 1"),
    (["generate", "nowhere", "--decoder", "beam", "--beams", ""], "beams: expected a whole number, not ''"),
    (["generate", "nowhere", "--decoder", "speculative", "--draft", ""], "or one of ['auto'], not ''"),
    (["generate", "nowhere", "--prompt", "1", "--state", ""], "--state is empty: give the path of a file"),
    (["generate", "nowhere", "--prompt", "1", "--save-state", ""], "--save-state is empty: give the path of a file"),
    (["generate", "nowhere", "--prompt", "1", "--overwrite"], "--overwrite needs --save-state"),
    (["fill", "nowhere", "--out", ""], "--out is empty: give the path of a file"),
    (["compare", "nowhere", "--out", ""], "--out is empty: give the path of a folder"),
    (["compare", "nowhere", "--out", "x"], "nowhere is not a run directory"),
    (["train", "path-star-small", "--out", "x", "--seeds", "1-2", "--seed", "3"], "give --seed or --seeds"),
    (["train", "path-star-small", "--out", "x", "--seed", "-1"], "seed must be at least 0"),
    (["train", "path-star-small", "--out", "x", "--backbone.heads", "0"], "heads must be at least 1"),
    (["train", "path-star-small", "--out", "x", "--trainer.report_num", "0"], "report_num must be at least 1"),
    (["train", "--resume", "nowhere", "--print_config"], "continues a run unchanged"),
    (["generate", "nowhere", "--prompt", "1", "--decoder", "sample", "--temperature", "{"], "temperature"),
]


@pytest.mark.parametrize(("words", "message"), MISTAKES, ids=lambda value: " ".join(value)[:60])
def test_mistakes_get_a_sentence_and_code_2(capsys, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    code, out, err = called(capsys, *words)
    assert code == 2
    assert message in err
    assert "Traceback" not in out + err
    assert not list(tmp_path.iterdir())


def test_debug_shows_the_traceback(capsys):
    assert "Traceback" in called(capsys, "evaluate", "nowhere", "--debug")[2]


def test_prompts_that_do_not_fit_are_named(capsys, runs):
    for prompt, message in [
        ("", "the prompt is empty"),
        ("1,2|99,3/1,2=", "unknown symbol '99'"),
        ("|".join(["1,2"] * 20), "model's context is 24"),
    ]:
        code, _, err = called(capsys, "generate", runs / "next_token-1", "--prompt", prompt)
        assert code == 2
        assert message in err


def test_comparing_what_cannot_be_compared(capsys, runs, tmp_path):
    one = runs / "next_token-1"
    assert "given twice" in called(capsys, "compare", one, one, "--out", tmp_path / "r")[2]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("notes")
    code, _, err = called(capsys, "compare", one, "--out", tmp_path / "mine")
    assert code == 2
    assert "notes.txt" in err


def test_overwrite_replaces_a_run_and_nothing_else(capsys, tmp_path):
    words = ["train", "path-star-small", *TINY, "--trainer.steps", "2", "--out", tmp_path / "run"]
    assert called(capsys, *words)[0] == 0
    code, _, err = called(capsys, *words)
    assert code == 2
    assert "exists: choose another --out" in err
    assert called(capsys, *words, "--overwrite")[0] == 0


def test_an_event_log_from_end_to_end(capsys, tmp_path):
    rows = [
        (case + 100 * step, f"case {case}", event)
        for case in range(30)
        for step, event in enumerate(["open", *["look at"] * (case % 5), "wait", "close [/b]"])
    ]
    path, run = tmp_path / "log.csv", tmp_path / "run"
    path.write_text("time;case;event\n" + "".join(f"{t};{case};{event}\n" for t, case, event in sorted(rows)))
    words = [
        "train",
        "sequences-small",
        *SMALL_RUN,
        "--task.path",
        path,
        "--task.held_out_share",
        "0.6",
        "--task.column",
        "event",
        "--task.group",
        "case",
        "--task.order",
        "time",
        "--trainer.steps",
        "20",
        "--trainer.evaluate_every",
        "10",
    ]
    code, out, _ = called(capsys, *words, "--out", run)
    assert code == 0
    before, _, after = out.partition("step 10/20")
    assert f"{path}: CSV, column 'event', one sequence for each 'case', ordered by 'time'" in before
    assert f"30 sequences, {len(rows)} symbols, 4 of them different" in before
    assert "'look at' 60 (" in before
    assert "held out: " in before
    assert "\nbigram " in before
    assert "\nthis model " in after
    code, out, _ = called(capsys, "evaluate", run)
    assert re.search(r"^always <end> +- ", out, re.M)
    table = [line for line in out.splitlines()[1:-1] if "  " in line.strip()]  # sentences of the verdict are not cut
    assert len(table) > 5
    assert all(len(line) <= 80 for line in table)
    report = Run(run).report("evaluation")
    assert report["continuations"][0]["prompt"]
    assert report["hardest"][0]["nats_per_token"] >= report["easiest"][0]["nats_per_token"]
    assert json.loads(called(capsys, "evaluate", run, "--json")[1])["baselines"] == report["baselines"]
    code, out, _ = called(capsys, "compare", run, "--out", tmp_path / "report")
    assert re.search(r"^bigram +- ", out, re.M)
    page = html.unescape((tmp_path / "report" / "report.html").read_text())
    command = re.search(r"<code>statewise (train --config .*?)</code>", page)[1]
    assert called(capsys, *shlex.split(command))[0] == 0
    assert Run(tmp_path / "run-again").report("evaluation") == report  # training writes what `evaluate` writes


def test_a_file_that_looks_misread_is_warned_of_before_training(tmp_path):
    path, heard = tmp_path / "mine.txt", []
    path.write_text("".join(f"north,east,{n}\n" for n in range(9)))
    recipe = read_recipe(recipe_text("sequences-small"), [f"--task.path={path}"])
    check(recipe, Listener(note=heard.append, baselines=heard.append))
    (warning,) = [line for line in heard[:-1] if line.startswith("warning: ")]
    assert "set --task.separator ','" in warning
    assert heard[-1]["always <end>"]["token_accuracy"] == 1.0  # every line is one symbol and the end
    check(
        read_recipe(recipe_text("sequences-small"), [f"--task.path={path}", "--task.separator=,"]),
        Listener(note=heard.append),
    )
    assert sum(line.startswith("warning: ") for line in heard if isinstance(line, str)) == 1


def test_own_sequences_from_end_to_end(capsys, tmp_path):
    path = tmp_path / "mine.txt"
    path.write_text("".join(f"{a} plus {b}\tis {a + b}\n" for a in range(9) for b in range(9)))
    run = tmp_path / "run"
    words = [
        "train",
        "sequences-small",
        "--task.path",
        path,
        "--trainer.steps",
        "60",
        "--trainer.warmup_steps",
        "5",
        "--trainer.evaluate_every",
        "30",
        "--backbone.width",
        "32",
        "--backbone.layers",
        "1",
        "--out",
        run,
    ]
    assert called(capsys, *words)[0] == 0
    code, out, _ = called(capsys, "generate", run, "--prompt", "3 plus 4", "--limit", "1")
    assert code == 0
    assert out == " is\n"  # as it follows the prompt
    code, _, err = called(capsys, "generate", run, "--prompt", "3 minus 4")
    assert code == 2
    assert "unknown symbol 'minus'" in err
    path.unlink()  # the run does not need its data to answer
    assert called(capsys, "generate", run, "--prompt", "3 plus 4")[0] == 0
    code, _, err = called(capsys, "evaluate", run)
    assert code == 2
    assert "no longer exists" in err
