"""statewise suite, with runs in this process in place of processes."""

import json
import re
from pathlib import Path

import pytest

from statewise.cli import main
from statewise.config.suites import Cell, read_suite, suite_names
from statewise.experiments import suite
from statewise.experiments.jobs import last_line, read_state, threads_of_jobs, write_state
from statewise.experiments.seeds import seeds_of
from statewise.model.recipes import read_recipe
from statewise.run import Run, shortened
from statewise.runtime.durable import lock
from statewise.runtime.messages import counted

pytestmark = pytest.mark.usefixtures("forked")

SUITE = """
about: Two tasks & <two> objectives.
recipes:
  stars:
    base: path-star-small
    task: {held_out_graphs: 40}
    trainer: {steps: 4, batch_size: 8, evaluate_every: 2, warmup_steps: 1}
  bits:
    base: parity
    task: {length: 12, longest: 24, held_out_sequences: 40}
    trainer: {steps: 4, batch_size: 8, evaluate_every: 2, warmup_steps: 1}
objectives:
  next_token: {}
  far: {name: next_latent, horizon: 2}
backbones:
  gpt: {layers: 1, width: 16, heads: 2}
  lstm: {name: recurrent, cell: lstm, width: 16}
without:
  - {recipes: [stars], backbones: [lstm]}
  - {objectives: [far], backbones: [lstm]}
settings:
  - {recipes: [bits], backbones: [gpt], backbone: {init: fan_in}, trainer: {optimizer: muon, steps: 5}}
  - {objectives: [far], trainer: {steps: 4}}
seeds: 1-2
then:
  bits: ["evaluate --length 12,24"]
metrics:
  accuracy_length_24: accuracy at 24 bits
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(SUITE)
    return path


@pytest.fixture
def in_process(monkeypatch):
    """Runs jobs here; those whose names contain one of the given texts fail. Returns those texts and what ran."""
    failing, ran = [], []

    def run_jobs(jobs, at_once, *, started, looked_at, ended):
        for job in jobs:
            write_state(job.log, job.done, "")
            started(job)
            code = 0
            for name, command in job.commands.items():
                ran.append(" ".join(command[3:]))
                if any(text in job.name for text in failing):
                    job.log.write_text("first line\nthe disk is full\n")
                    code = 1
                else:
                    code = main(command[3:])
                if code:
                    write_state(job.log, read_state(job.log)[0], f"code {code}: {last_line(job.log)}")
                    break
                write_state(job.log, [*read_state(job.log)[0], name], "")
            ended(job, code)

    monkeypatch.setattr(suite, "run_jobs", run_jobs)
    return failing, ran


def test_a_suite_is_trained_shown_and_continued(file, tmp_path, in_process, capsys):
    failing, ran = in_process
    out = tmp_path / "out"
    failing.append("stars/far-gpt seed 2")
    command = ["suite", str(file), "--out", str(out), "--jobs", "2"]
    assert main(command) == 1
    assert "failed with code 1: the disk is full" in capsys.readouterr().out
    assert sum(words.startswith("train") for words in ran) == 10
    assert ran.index(next(words for words in ran if "seed-2" in words)) >= 5, "one seed of all comes first"
    results = json.loads((out / "results.json").read_text())["runs"]
    assert len(results) == 10
    bad = [run for run in results if run["state"] == "failed"]
    assert [(run["objective"], run["seed"], run["message"]) for run in bad] == [("far", 2, "code 1: the disk is full")]
    table = (out / "table.md").read_text()
    assert "| stars | gpt | far | 1/2 | 1 | path_accuracy |" in table
    assert "the disk is full" in table
    row = "| bits | lstm | next_token | 2/2 | 0 | accuracy |"
    lines = [line for line in table.splitlines() if line.startswith(row)]
    assert len(lines) == 1
    assert " ±" in lines[0]
    assert lines[0].count("±") == 2, "the metric of `evaluate --length` has an interval, too"
    page = (out / "index.html").read_text()
    assert "Two tasks &amp; &lt;two&gt; objectives." in page
    of_stars = [run["metrics"]["path_accuracy"] for run in results if run["recipe"] == "stars" and run["metrics"]]
    assert len(of_stars) == 3
    dots = 6 + 6 + (3 if len({*of_stars}) > 1 else 0)
    assert page.count("<circle") == dots, "a dot for each run on bits, twice, and on stars, where not all are equal"
    assert "the disk is full" in page

    failing.clear()
    before = len(ran)
    assert main(command) == 0
    assert len(ran) == before + 1, "nothing else is left"
    assert all(run["state"] == "finished" for run in json.loads((out / "results.json").read_text())["runs"])
    assert main(["suite", str(file), "--out", str(out), "--table", "--seeds", "1-3"]) == 0
    assert "5 runs not started" in capsys.readouterr().out
    assert (
        main(
            [
                "compare",
                str(out / "bits" / "next_token-gpt"),
                str(out / "bits" / "far-gpt"),
                "--out",
                str(tmp_path / "report"),
            ]
        )
        == 0
    )


def test_a_trained_run_whose_further_command_failed_has_its_figures(file, tmp_path, in_process):
    """All its figures were missing because one analysis did not fit."""
    file.write_text(SUITE.replace("evaluate --length 12,24", "analyze future-probe --offsets 500"))  # too far
    out = tmp_path / "out"
    command = ["suite", str(file), "--out", str(out), "--only", "bits/next_token-gpt", "--seeds", "1"]
    assert main(command) == 1
    (run,) = json.loads((out / "results.json").read_text())["runs"]
    assert (run["state"], run["headline"]["metric"]) == ("failed", "accuracy")
    assert "accuracy" in run["metrics"]
    assert run["message"].startswith("code 2")
    row = next(line for line in (out / "table.md").read_text().splitlines() if line.startswith("| bits | gpt |"))
    assert row.startswith("| bits | gpt | next_token | 1/1 | 1 | accuracy |")


def test_a_run_that_was_stopped_is_resumed_and_further_commands_follow(file, tmp_path, in_process):
    _, ran = in_process
    out = tmp_path / "out"
    command = ["suite", str(file), "--out", str(out), "--only", "bits/next_token-gpt", "--seeds", "1"]
    assert main(command) == 0
    folder = out / "bits" / "next_token-gpt" / "seed-1"
    assert Run(folder).report("evaluation-length-12,24")["set"] == {"option": "length", "value": "12,24"}
    for longest in (23, 24):  # too long for the name of a file, and alike in the beginning
        lengths = ",".join(f"{length:09}" for length in range(12, longest + 1))
        assert main(["evaluate", str(folder), "--length", lengths]) == 0
        (report,) = (name for name in Run(folder).reports() if shortened(lengths) in name)
        assert len(report) < 150
    assert len(Run(folder).reports()) == 4, "each with a report of its own"
    assert main(["evaluate", str(folder), "--length", "24, 12,12"]) == 0
    assert len(Run(folder).reports()) == 4, "the same set, however it is written"
    records = folder / "metrics.jsonl"
    records.write_text("".join(line for line in records.read_text().splitlines(True) if '"end"' not in line))
    (out / "bits" / "next_token-gpt" / "seed-1.state.json").unlink()
    ran.clear()
    assert main(command) == 0
    assert [words.split()[0] for words in ran] == ["train", "evaluate"]
    assert "--resume" in ran[0]


def test_commands_that_were_added_run_on_finished_runs(file, tmp_path, in_process):
    _, ran = in_process
    out = tmp_path / "out"
    command = ["suite", str(file), "--out", str(out), "--only", "bits/next_token-gpt", "--seeds", "1"]
    assert main(command) == 0
    folder = out / "bits" / "next_token-gpt" / "seed-1"
    for commands, expected in (
        ('"evaluate --num 3", "evaluate --length 12,24"', "evaluate {} --num 3"),
        ('"evaluate --num 5"', "evaluate {} --num 5"),
    ):
        ran.clear()
        file.write_text(SUITE.replace('"evaluate --length 12,24"', commands))
        assert main(command) == 0
        assert ran == [expected.format(folder)]
    ran.clear()
    assert main(command) == 0
    assert ran == []


def test_the_files_have_all_runs_whatever_is_chosen(file, tmp_path, in_process, capsys):
    out = tmp_path / "out"
    command = ["suite", str(file), "--out", str(out)]
    assert main([*command, "--only", "stars/next_token-gpt", "--seeds", "1"]) == 0
    assert "accuracy_length_24" not in capsys.readouterr().out  # only bits have it, which are left out
    assert main([*command, "--only", "bits/next_token-gpt", "--seeds", "2,7"]) == 0
    expected = [("stars", "next_token", 1), ("bits", "next_token", 2), ("bits", "next_token", 7)]
    for chosen, printed in (
        ([], "3 runs finished."),
        (["--only", "bits"], "2 runs finished."),
        (["--only", "bits", "stars"], "3 runs finished."),
        (["--only", "bits", "--only", "stars"], "3 runs finished."),
        (["--only", "bits"], "accuracy_length_24: accuracy at 24 bits."),
        (["--seeds", "7"], "1 run finished, "),
    ):
        capsys.readouterr()
        found = json.loads((out / "results.json").read_text())["runs"]
        assert [(run["recipe"], run["objective"], run["seed"]) for run in found] == expected
        assert "| bits | gpt | next_token | 2/2 |" in (out / "table.md").read_text()
        assert "stars" in (out / "index.html").read_text()
        assert main([*command, *chosen, "--table"]) == 0
        assert printed in capsys.readouterr().out
    assert main([*command, "--only", "stars/far", "bits/far", "--table"]) == 2
    assert f"{out} holds no run of {file} with stars/far or bits/far in its name" in capsys.readouterr().err


def test_two_commands_do_not_train_in_one_folder(file, tmp_path, in_process, capsys):
    _, ran = in_process
    out = tmp_path / "out"
    command = ["suite", str(file), "--out", str(out), "--only", "bits/next_token-lstm", "--seeds", "1"]
    out.mkdir()
    with lock(out / suite.LOCK, "taken"):
        assert main(command) == 2
        assert f"{out} is in use by another `statewise suite`" in capsys.readouterr().err
        assert ran == []
    assert main(command) == 0
    with lock(out / suite.LOCK, "taken"):
        assert main([*command, "--table"]) == 0


def test_what_is_trained_is_what_the_suite_says(file):
    cells = {cell.name: cell for cell in read_suite(SUITE, "mine").cells}
    assert list(cells) == [
        "stars/next_token-gpt",
        "stars/far-gpt",
        "bits/next_token-gpt",
        "bits/next_token-lstm",
        "bits/far-gpt",
    ]
    recipe = read_recipe(cells["bits/far-gpt"].text).as_dict()
    assert recipe["backbone"]["name"] == "gpt"
    assert (recipe["backbone"]["layers"], recipe["backbone"]["width"]) == (1, 16)
    assert (recipe["objective"]["name"], recipe["objective"]["horizon"]) == ("next_latent", 2)
    assert (recipe["task"]["length"], recipe["task"]["ask"], recipe["trainer"]["steps"]) == (12, "query", 4)


def test_a_dry_run_counts_and_times(file, capsys):
    assert main(["suite", str(file), "--dry-run", "--seeds", "1-3", "--only", "stars"]) == 0
    shown = capsys.readouterr().out
    assert "6 runs: 2 combinations; 0 runs finished" in shown
    assert "stars/far-gpt: 3 x 4 steps" in shown
    assert f"6 runs left, 1 at a time with {counted(threads_of_jobs(1), 'thread')} each: at most 0:" in shown


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("s3/", {"s3/multi_token-gpt"}),
        ("gpt", {"mess3/next_token-gpt", "s3/multi_token-gpt", "mess3/joint_multi_token-gpt"}),
        ("-lstm", {"mess3/multi_token-lstm"}),
        ("multi_token", {"s3/multi_token-gpt", "mess3/multi_token-lstm"}),
        ("mess3/multi_token-lstm", {"mess3/multi_token-lstm"}),
        ("ess3", set()),
        ("", {"mess3/next_token-gpt", "s3/multi_token-gpt", "mess3/joint_multi_token-gpt", "mess3/multi_token-lstm"}),
        (".*", set()),
    ],
)
def test_a_text_of_only_stands_where_a_word_begins(text, names):
    all_names = ["mess3/next_token-gpt", "s3/multi_token-gpt", "mess3/joint_multi_token-gpt", "mess3/multi_token-lstm"]
    cells = [Cell(*name.replace("/", "-").split("-"), {}, []) for name in all_names]
    assert {cell.name for cell in cells if suite._has_word(text, cell)} == names


def test_the_suites_of_the_package_fit_together():
    assert "belief" in suite_names()
    for name in suite_names():
        chosen = suite.Chosen.of(name)
        names = [cell.name for cell in chosen.cells]
        assert len(set(names)) == len(names)
        assert [*chosen.recipes()] == names


def test_settings_change_the_combinations_that_they_name_the_later_ones_last():
    cells = {cell.name: cell.fields for cell in read_suite(SUITE, "mine").cells}
    assert {name: fields["trainer"].get("optimizer") for name, fields in cells.items()} == {
        "stars/next_token-gpt": None,
        "stars/far-gpt": None,
        "bits/next_token-gpt": "muon",
        "bits/far-gpt": "muon",
        "bits/next_token-lstm": None,
    }
    assert cells["bits/far-gpt"]["backbone"] == {"name": "gpt", "layers": 1, "width": 16, "heads": 2, "init": "fan_in"}
    assert {name: fields["trainer"]["steps"] for name, fields in cells.items()} == {
        "stars/next_token-gpt": 4,
        "stars/far-gpt": 4,
        "bits/next_token-gpt": 5,
        "bits/far-gpt": 4,
        "bits/next_token-lstm": 4,
    }


def test_settings_have_commands_of_their_own_after_those_of_the_recipe():
    more = (
        "  - {objectives: [far], then: [analyze rollout-drift, analyze effective-rank]}\n  - {then: [evaluate]}\nseeds"
    )
    cells = {cell.name: cell for cell in read_suite(SUITE.replace("seeds", more, 1), "mine").cells}
    of_bits, of_far = [["evaluate", "--length", "12,24"]], [["analyze", "rollout-drift"], ["analyze", "effective-rank"]]
    assert {name: cell.then for name, cell in cells.items()} == {
        "stars/next_token-gpt": [["evaluate"]],
        "stars/far-gpt": [*of_far, ["evaluate"]],
        "bits/next_token-gpt": [*of_bits, ["evaluate"]],
        "bits/far-gpt": [*of_bits, *of_far, ["evaluate"]],
        "bits/next_token-lstm": [*of_bits, ["evaluate"]],
    }
    assert all("then" not in cell.fields for cell in cells.values())


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("{objectives: [far], trainer: {steps: 4}}", "{then: [rm]}", "must begin with analyze or evaluate"),
        ("{objectives: [far], trainer: {steps: 4}}", "{then: evaluate}", "settings: then must be a list"),
        ("{objectives: [far], trainer: {steps: 4}}", "{then: [analyze future-prob]}", "did you mean future-probe"),
        ("{objectives: [far], trainer: {steps: 4}}", "{then: [evaluate --decoder beam]}", "omit --decoder"),
        ('bits: ["evaluate', 'bits: ["evaluate --decoder bem", "evaluate', "did you mean beam"),
        ("seeds: 1-2", "seed: 1", "unknown key 'seed'"),
        ("about:", "- about:", "mine.yaml"),
        ("base: parity", "base: pairty", "unknown recipe 'pairty'"),
        ("horizon: 2", "horizn: 2", "bits/far-gpt|stars/far-gpt"),
        ("recipes: [stars]", "recipes: [star]", "without: unknown recipe 'star'"),
        ("recipes: [stars]", "recipe: [stars]", "without: unknown key 'recipe'"),
        ("- {recipes: [stars], backbones: [lstm]}", "- {}", "combination 1 of without is empty"),
        ("- {recipes: [stars], backbones: [lstm]}", "- {recipes: [stars, bits]}", "leaves out every combination"),
        ("{recipes: [bits], backbones: [gpt], b", "{recipes: [bit], b", "settings: unknown recipe 'bit'"),
        ("{recipes: [bits], backbones: [gpt], b", "{recipes: bits, b", "settings: recipes must be a list"),
        ("{objectives: [far], trainer: {steps: 4}}", "{trainr: {steps: 4}}", "did you mean trainer"),
        ("{objectives: [far], trainer: {steps: 4}}", "{trainer: 4}", "settings: trainer must be a mapping"),
        ("{objectives: [far], trainer: {steps: 4}}", "far", "settings[1] must be"),
        ("optimizer: muon", "optimizer: muo", "bits/next_token-gpt"),
        ("metrics:\n  accuracy_length_24: accuracy at 24 bits", "metrics: [r2]", "metrics must be an object with keys"),
        ("accuracy at 24 bits", "[24]", "metrics.accuracy_length_24 must be text, not"),
        ('bits: ["evaluate', 'bits: ["rm', "must begin with analyze or evaluate"),
        ('bits: ["evaluate', 'bit: ["evaluate', "then: unknown recipe 'bit'"),
        ('bits: ["evaluate', 'bits: ["analyze future-prob", "evaluate', "did you mean future-probe"),
        ('bits: ["evaluate', 'bits: ["analyze future-probe --hiden 3", "evaluate', "hiden"),
        ('bits: ["evaluate', 'bits: ["analyze", "evaluate', "ANALYSIS"),
        ('bits: ["evaluate', 'bits: ["evaluate --help", "evaluate', "asks for help"),
        ('bits: ["evaluate', 'bits: ["evaluate --lenght 3", "evaluate', "did you mean --length"),
        ('bits: ["evaluate', 'bits: ["evaluate --length 1000", "evaluate', "1000"),
        ('bits: ["evaluate', 'bits: ["evaluate --num 0", "evaluate', "--num must be at least 1"),
        ('bits: ["evaluate', 'bits: ["evaluate --checkpoint first", "evaluate', "must be last, best or a step"),
        ('bits: ["evaluate', 'bits: ["analyze future-probe --device cdua", "evaluate', "no device 'cdua'"),
        ('bits: ["evaluate', 'bits: ["evaluate --data no.txt", "evaluate', "--data no.txt: no such file or folder"),
        ('bits: ["evaluate', 'bits: ["analyze future-probe --out x", "evaluate', "omit --out"),
        ('bits: ["evaluate', 'bits: ["evaluate --losses x", "evaluate', "omit --losses"),
        ("  far: {name", "  ../far: {name", "is not a name"),
        ("far: {name: next_latent, horizon: 2}", "far: 3", "objectives.far must be a mapping"),
        ("far: {name: next_latent, horizon: 2}", "far: {name: multi_token}\n  last: {name: multi_tokn}", "multi_tok"),
        (
            "horizon: 2}\nbackbones:",
            "horizon: 2}\n  Far-gpt: {name: next_token}\nbackbones:\n  gpt-gpt: {name: gpt}",
            "(stars, far, gpt-gpt) and (stars, Far-gpt, gpt) would share the folder stars/Far-gpt-gpt",
        ),
        ("  stars:\n", "  Table.md: parity\n  stars:\n", "Table.md is the name of a file of the suite"),
        ('  bits: ["evaluate', '  true: ["evaluate', "must be keyed by text, not by true: put the key in quotes"),
        ("- {recipes: [stars], backbones: [lstm]}", "- {1: [stars]}", "without[0] must be keyed by text, not by 1"),
        ("recipes: [bits], backbones: [gpt], b", "1: [bits], b", "settings: unknown key '1'"),
        ("backbone: {init", "backbone: {on", "bits/next_token-gpt"),
        ("    base: parity", "    base: parity\n    seed: 7", "recipes.bits: remove seed: the suite"),
        ("name: recurrent, cell: lstm", "name: two_stream", "bits/next_token-lstm: backbone.window 64"),
    ],
)
def test_suites_that_make_no_sense_are_refused(tmp_path, capsys, old, new, message):
    assert old in SUITE
    path = tmp_path / "mine.yaml"
    path.write_text(SUITE.replace(old, new))
    assert main(["suite", str(path), "--out", str(tmp_path / "out")]) == 2
    told = capsys.readouterr().err
    assert any(one in told for one in message.split("|")), told
    assert all(told.count(name) < 2 for name in ("bits/next_token-gpt:", "far-gpt:", "bits/next_token-lstm:"))
    assert "Traceback" not in told
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("evaluate --length 12,24", "analyze belief-geometry", "bits/next_token-gpt: .* such tasks are hmm and pomdp"),
        ("evaluate --length 12,24", "analyze rollout-drift", "bits/next_token-gpt: .* needs a model"),
        (
            "evaluate --length 12,24",
            "analyze map",
            "bits/next_token-gpt: a map needs a task of taxi rides: such a task",
        ),
        ("evaluate --length 12,24", "analyze gradient-ratio", "bits/next_token-lstm: gradient-ratio needs a model"),
        ("evaluate --length 12,24", "evaluate --fills .", "bits/next_token-gpt: --fills . is a folder"),
        (
            "{objectives: [far], trainer: {steps: 4}}",
            "{objectives: [next_token], then: [analyze belief-dynamics]}",
            "stars/next_token-gpt: .* beliefs are known exactly",
        ),
    ],
)
def test_commands_that_cannot_work_are_refused_before_anything_is_trained(tmp_path, capsys, old, new, message):
    path = tmp_path / "mine.yaml"
    path.write_text(SUITE.replace(old, new))
    assert main(["suite", str(path), "--out", str(tmp_path / "out")]) == 2
    assert re.search(message, capsys.readouterr().err)
    assert not (tmp_path / "out").exists()
    path.write_text(
        SUITE.replace("{objectives: [far], trainer: {steps: 4}}", "{objectives: [far], then: [analyze rollout-drift]}")
    )
    assert main(["suite", str(path), "--dry-run", "--only", "bits/far"]) == 0


def test_nothing_else_is_written_into(file, tmp_path, in_process, capsys):
    out = tmp_path / "out"
    out.mkdir()
    (out / "letter.txt").write_text("dear")
    command = ["suite", str(file), "--out", str(out), "--only", "bits/next_token-gpt", "--seeds", "1"]
    assert main(command) == 2
    assert "holds no suite" in capsys.readouterr().err
    (out / "letter.txt").unlink()
    assert main(command) == 0
    file.write_text(SUITE.replace("batch_size: 8", "batch_size: 4"))
    assert main(command) == 2
    assert "bits/next_token-gpt has runs of another recipe than" in capsys.readouterr().err
    assert main([*command, "--table"]) == 2, "their figures are not of this recipe"
    assert "has runs of another recipe" in capsys.readouterr().err
    file.write_text(SUITE.replace("bits", "others"))
    for more in ([], ["--table"]):
        assert main(["suite", str(file), "--out", str(out), "--only", "others/next_token-gpt", *more]) == 2
        assert "holds runs of bits/next_token-gpt, which" in capsys.readouterr().err
    file.write_text(SUITE)
    for words, message in (
        (["suite"], "SUITE"),
        (["suite", "belif", "--out", "x"], "unknown suite 'belif'"),
        (["suite", "belief"], "--out is missing"),
        (["suite", str(file), "--out", "x", "--only", "bits", "zzz"], "--only zzz: no run of"),
        (["suite", str(file), "--out", "x", "--only", ""], "--only '': no run of"),
        (["suite", str(file), "--out", "x", "--seeds", ""], "seeds"),
        (["suite", str(file), "--out", str(tmp_path / "x"), "--table"], "holds no suite"),
        (["suite", str(file), "--out", str(file)], "is a file"),
    ):
        assert main(words) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize("names", [["suite.yaml", "index.html"], ["suite.yaml", "results.json"], ["suite.yaml"]])
def test_files_of_the_user_are_no_suite(file, tmp_path, capsys, names):
    out = tmp_path / "site"
    out.mkdir()
    for name in names:
        (out / name).write_text("{}")
    for words in ([], ["--table"]):
        assert main(["suite", str(file), "--out", str(out), *words]) == 2
        assert "holds no suite" in capsys.readouterr().err
    (out / "suite.yaml").write_bytes(file.read_bytes())  # the very suite, beside files that a report would replace
    assert main(["suite", str(file), "--out", str(out)]) == 2
    assert all((out / name).read_text() == "{}" for name in names[1:])
    assert (out / "suite.yaml").read_bytes() == file.read_bytes()


def test_a_suite_goes_on_without_its_reports(file, tmp_path, in_process, capsys):
    """As after a crash between two of them; the folder was then refused."""
    _, ran = in_process
    out = tmp_path / "out"
    command = ["suite", str(file), "--out", str(out), "--only", "bits/next_token-gpt", "--seeds", "1"]
    assert main(command) == 0
    before = len(ran)
    for name, content in (("results.json", None), ("results.json", '{"title": "Su'), ("index.html", "")):
        (out / name).unlink() if content is None else (out / name).write_text(content)
        assert main([*command, "--table"]) == 0
        assert main(command) == 0
        assert len(json.loads((out / "results.json").read_text())["runs"]) == 1
    assert len(ran) == before
    assert main(["suite", str(out / "suite.yaml"), "--out", str(out), "--table"]) == 0, "the copy is a suite, too"
    assert (out / "suite.yaml").read_bytes().count(suite.MARK) == 1


@pytest.mark.parametrize("place", ["seed-1/reports/evaluation.json", "seed-1/metrics.jsonl", "seed-1.state.json"])
def test_one_damaged_run_does_not_hide_the_others(file, tmp_path, in_process, capsys, place):
    _, ran = in_process
    out = tmp_path / "out"
    command = ["suite", str(file), "--out", str(out), "--only", "bits/next_token-gpt"]
    assert main([*command, "--seeds", "1-2"]) == 0
    damaged = out / "bits" / "next_token-gpt" / place
    content = damaged.read_text()
    damaged.write_text("" if place.endswith("state.json") else "{\n" + content)
    before = len(ran)
    main([*command, "--seeds", "1-3"])
    assert any("--seed 3" in words for words in ran[before:]), "the next seed is trained"
    told = capsys.readouterr()
    assert "Traceback" not in told.err
    first, second, third = json.loads((out / "results.json").read_text())["runs"]
    assert first["state"] == "failed"
    assert damaged.name in first["message"]
    assert [second["state"], third["state"]] == ["finished"] * 2
    assert main([*command, "--table"]) == 0


def test_a_seed_stands_once_in_a_group(tmp_path):
    (tmp_path / "seeds.json").write_text('{"seeds": [1, 1]}')
    with pytest.raises(ValueError, match="a seed occurs twice"):
        seeds_of(tmp_path)


CELL = b"{recipes: {a: {base: %s}}, objectives: {next_token: {}}, backbones: {gpt: {}}, seeds: %s}"


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("binary.yaml", b"recipes:\xda\xff", "binary.yaml: not YAML: unacceptable character"),
        ("missing.yaml", None, "missing.yaml: No such file or directory"),
        ("seeds.yaml", CELL % (b"path-star-small", b"0-"), "seeds.yaml: seeds 0-: give a range"),
        ("long.yaml", CELL % (b"path-star-small", b"1-" + b"9" * 5000), "give a range like 1-5"),
        ("based.yaml", CELL % (b"path-star-smal", b"1"), "based.yaml: recipes.a: base: unknown recipe"),
    ],
)
def test_a_suites_file_is_named(name, content, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    if content is not None:
        (tmp_path / name).write_bytes(content)
    assert main(["suite", name, "--dry-run"]) == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_answers_of_another_decoder_have_names_of_their_own(tmp_path, capsys):
    path = tmp_path / "mine.yaml"
    only = SUITE.replace("seeds: 1-2", "seeds: 1").replace(
        "metrics:", "metrics:\n  path_accuracy_decoder_beam: by beam search"
    )
    path.write_text(only.replace("then:", "then:\n  stars: [evaluate --decoder beam --beams 2]"))
    assert main(["suite", str(path), "--only", "stars/next_token", "--out", str(tmp_path / "out")]) == 0
    assert "by beam search" in (tmp_path / "out" / "table.md").read_text()
    report = (
        tmp_path / "out" / "stars" / "next_token-gpt" / "seed-1" / "reports" / "evaluation-decoder-beam-beams-2.json"
    )
    content = json.loads(report.read_text())
    (run,) = json.loads((tmp_path / "out" / "results.json").read_text())["runs"]
    assert run["metrics"]["path_accuracy_decoder_beam"] == content["metrics"]["path_accuracy"]
    report.write_text(json.dumps({**content, "decoder": 3}))
    assert main(["suite", str(path), "--out", str(tmp_path / "out"), "--table"]) == 0
    (run,) = json.loads((tmp_path / "out" / "results.json").read_text())["runs"]
    assert run["message"].startswith(f"{report}: decoder must be an object")


def test_the_suite_of_the_paper_makes_its_pictures_from_saved_runs_too(tmp_path, in_process, capsys):
    _, ran = in_process
    out, again = tmp_path / "out", tmp_path / "again"
    one_each = [
        *("star/next_latent-gpt", "mess3/next_latent-gpt", "ferry/next_token-lstm", "blocksworld/next_token-stick"),
        "rides/next_latent-gpt",
    ]
    assert main(["suite", "paper", "--smoke", "--only", *one_each, "--out", str(out)]) == 0
    pictures = {path.name for path in (out / "pictures").iterdir()}
    names = ["1-star-graphs", "2-beliefs", "3-dynamics", "4-strips", "5-drafts", "6-speed"]
    assert {f"{name}{end}" for name in names for end in (".png", ".md")} <= pictures
    assert {"1-star-graphs-star.png", "2-beliefs-mess3.png", "3-dynamics-mess3-drawings.png"} <= pictures
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in (out / "pictures").glob("*.png"))
    strips = (out / "pictures" / "4-strips.md").read_text()
    assert "equivalent: 1 if the extracted STRIPS model" in strips
    assert "| ferry | lstm | next_token | 1/1 |" in strips
    assert "| star |" not in strips

    before = len(ran)
    theirs = out / "ferry" / "next_token-lstm" / "seed-1"
    before_saved = {path: path.read_bytes() for path in theirs.rglob("*") if path.is_file()}
    only = ["ferry/next_token-lstm", "ferry/next_token-stick"]
    saved = ["suite", "paper", "--smoke", "--only", *only, "--out", str(again), "--saved", str(out)]
    capsys.readouterr()
    assert main(saved) == 0
    run = again / "ferry" / "next_token-lstm" / "seed-1"
    assert (run / "checkpoints").resolve() == theirs / "checkpoints"
    assert (run / "reports" / "evaluation.json").read_bytes() == (theirs / "reports" / "evaluation.json").read_bytes()
    assert {path: path.read_bytes() for path in theirs.rglob("*") if path.is_file()} == before_saved
    trained = [words for words in ran[before:] if words.startswith("train")]
    assert len(trained) == 1, "all but the saved one"
    assert main([*saved[:2], *saved[3:]]) == 2
    assert "another recipe" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("pictures: {a: {recipes: [star], metrics: [r2]}}", "pictures.a: unknown recipe 'star'"),
        ("pictures: {a: {recipes: [stars]}}", "pictures.a shows nothing"),
        ("pictures: {../a: {recipes: [stars], metrics: [r2]}}", "'../a' is not a name"),
        ("pictures: {a: {recipes: 4}}", "pictures.a.recipes"),
        ("pictures: {a: [stars]}", "pictures.a"),
        ("smoke: [{trainer: 3}]", "smoke: trainer must be a mapping"),
        ("smoke: [{recipes: [star]}]", "smoke: unknown recipe 'star'"),
    ],
)
def test_malformed_pictures_and_smoke_rows_are_refused(rows, message, file, capsys):
    file.write_text(f"{SUITE}{rows}\n")
    assert main(["suite", str(file), "--out", str(file.parent / "out")]) == 2
    assert message in capsys.readouterr().err


def test_a_suite_without_smoke_rows_has_no_small_form(file, capsys):
    assert main(["suite", str(file), "--smoke", "--dry-run"]) == 2
    assert "has no small form" in capsys.readouterr().err


def test_the_suite_of_drafts_runs_on_a_corpus(tmp_path, in_process, monkeypatch):
    suites = Path(__file__).parents[2] / "benchmarks" / "suites"
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(f"The {word} sat on the mat. " * 8 for word in ["cat", "dog", "owl"]))
    monkeypatch.chdir(tmp_path)
    assert main(["data", "text", "text.txt", "--tokenizer", "bpe:260", "--held-out", "0.4", "--out", "corpus"]) == 0
    words = ["--smoke", "--only", "text/horizon-4-small", "text/next_token-small", "--out", "out"]
    assert main(["suite", str(suites / "drafts.yaml"), *words]) == 0
    table = (tmp_path / "out" / "pictures" / "drafts.md").read_text()
    assert "| text | small | horizon-4 | 1/1 | 0 | loss |" in table
    assert (tmp_path / "out" / "pictures" / "drafts.png").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--saved", "no-folder", "--out", "out"], "no-folder is no folder"),
        (["--saved", "mine.yaml", "--out", "out"], "mine.yaml is no folder"),
        (["--saved", ".", "--table", "--out", "out"], "--table trains and links nothing"),
    ],
)
def test_saved_names_a_folder_of_runs(words, message, file, monkeypatch, capsys):
    monkeypatch.chdir(file.parent)
    assert main(["suite", str(file), *words]) == 2
    assert message in capsys.readouterr().err


def test_damaged_saved_runs_are_not_linked(file, tmp_path, in_process):
    _, ran = in_process
    saved = tmp_path / "saved"
    for name, content in (("a", "{"), ("b", "[]"), ("c", '{"seed": 1}'), ("d", '{"seed": NaN, "task": {"name": 4}}')):
        (saved / name).mkdir(parents=True)
        (saved / name / "config.json").write_text(content)
    words = ["--only", "bits/next_token-lstm", "--seeds", "1", "--saved", str(saved), "--out", str(tmp_path / "out")]
    assert main(["suite", str(file), *words]) == 0
    assert sum(line.startswith("train") for line in ran) == 1
