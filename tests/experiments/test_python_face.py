"""Groups of seeds, suites, comparisons and reports from Python, without the command line."""

import json

import pytest
from doubles import make_run

import statewise
from statewise.cli import main
from statewise.experiments.jobs import write_state

SMALL = {
    "backbone": {"layers": 1, "width": 8, "heads": 2},
    "task": {"held_out_graphs": 4},
    "steps": 2,
    "batch_size": 8,
    "evaluate_every": 2,
    "warmup_steps": 0,
}

SUITE = """
recipes: {stars: {base: path-star-small, task: {held_out_graphs: 4}, trainer: {steps: 2, batch_size: 8}}}
objectives: {next_token: {}}
backbones: {gpt: {layers: 1, width: 8, heads: 2}}
seeds: 1-2
"""


@pytest.fixture
def jobs(monkeypatch):
    """Commands of jobs that would run; seed 2 fails, as its command does not exist."""
    ran = []

    def run_jobs(jobs, at_once, *, started, looked_at, ended):
        for job in jobs:
            started(job)
            ran.append((job.name, at_once, [command[3] for command in job.commands.values()]))
            code = int(job.name.endswith("2"))
            write_state(job.log, [], "code 1: full" if code else "")
            ended(job, code)

    monkeypatch.setattr("statewise.experiments.seeds.run_jobs", run_jobs)
    monkeypatch.setattr("statewise.experiments.suite.run_jobs", run_jobs)
    return ran


def test_seeds_are_trained_and_continued(tmp_path, jobs, capsys):
    out = tmp_path / "group"
    outcome = statewise.seeds("path-star-small", out, seeds=[1, 2], jobs=2, **SMALL)
    assert (outcome.folder, outcome.failed, outcome.signal, outcome.exit_code) == (out, ["2"], None, 1)
    assert jobs == [("1", 2, ["train"]), ("2", 2, ["train"])]
    assert json.loads((out / "seeds.json").read_text()) == {"seeds": [1, 2]}
    with pytest.raises(FileExistsError):
        statewise.seeds("path-star-small", out, seeds="1-2", **SMALL)
    assert capsys.readouterr().out == "", "nothing is printed without progress"
    assert statewise.seeds("path-star-small", out, seeds="1-2", resume=True, progress=True, **SMALL).failed == ["2"]
    assert "seed   2 | failed with code 1: full" in capsys.readouterr().out
    with pytest.raises(ValueError, match="other seeds"):
        statewise.seeds("path-star-small", out, seeds="1-3", resume=True, **SMALL)
    with pytest.raises(ValueError, match="overwrite or resume"):
        statewise.seeds("path-star-small", out, resume=True, overwrite=True, **SMALL)
    with pytest.raises(ValueError, match=r"^seeds 1-: give a range"):
        statewise.seeds("path-star-small", tmp_path / "other", seeds="1-", **SMALL)
    assert [(one.name, one.state) for one in statewise.status(out)] == [("seed-1", "not started"), ("seed-2", "failed")]


def test_a_suite_is_trained_and_reported(tmp_path, jobs, capsys):
    file, out = tmp_path / "mine.yaml", tmp_path / "out"
    file.write_text(SUITE)
    outcome = statewise.suite(file, out)
    assert outcome.runs.failed == ["stars/next_token-gpt seed 2"]
    assert [run.state for run in outcome.report.runs] == ["not started", "failed"]
    assert [path.name for path in outcome.files] == ["table.md", "results.json", "index.html"]
    assert len(statewise.suite(file, out, seeds="1", report_only=True).chosen.runs) == 1
    assert len(jobs) == 2
    assert capsys.readouterr().out == ""


def test_runs_are_compared(tmp_path):
    runs = [
        make_run(tmp_path / f"{name}-1", 1, value, name) for name, value in (("next_token", 0.3), ("next_latent", 0.9))
    ]
    comparison = statewise.compare(runs)
    assert comparison.finding().startswith("next-latent has the higher path accuracy")
    assert comparison.files == []
    written = statewise.compare([str(run) for run in runs], tmp_path / "report", better=runs[1]).files
    assert all(path.is_file() for path in written)
    with pytest.raises(ValueError, match="at least one run"):
        statewise.compare([])


def test_findings_of_python_and_of_the_command_are_the_same(tmp_path, capsys):
    run = statewise.train("path-star-small", out=tmp_path / "run", **SMALL).folder
    assert main(["analyze", str(run), "effective-rank", "--sequences", "4", "--out", str(tmp_path / "command")]) == 0
    model = statewise.load(run)
    found = model.analyze("effective-rank", sequences=4)
    names = [path.name for path in found.save(tmp_path / "python")]
    assert sorted(names) == sorted(path.name for path in (tmp_path / "command").iterdir())
    for name in names:
        assert (tmp_path / "command" / name).read_bytes() == (tmp_path / "python" / name).read_bytes()
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("6,4|8,1|7,8|0,5|7,0|7,6/7,4=\n")
    words = ["embed", str(run), str(prompts), "--prompts", "--out"]
    assert main([*words, str(tmp_path / "a.npy")]) == 0
    model.embed(prompts, prompts=True).save(tmp_path / "b.npy")
    for end in (".npy", ".index.npy"):
        assert (tmp_path / f"a{end}").read_bytes() == (tmp_path / f"b{end}").read_bytes()
    facts = [json.loads((tmp_path / f"{name}.npy.json").read_text()) for name in "ab"]
    assert {key for key in facts[0] if facts[0][key] != facts[1].get(key)} == {"index"}
    untrained = statewise.build("path-star-small", **SMALL).analyze("effective-rank", sequences=4)
    assert "checkpoint" not in json.loads(untrained.save(tmp_path / "new")[0].read_text())
