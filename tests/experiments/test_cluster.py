"""--on slurm: submitit's own executors, and programs that stand for those of Slurm."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import slurm_commands
import yaml
from doubles import SMALL_RUN

from statewise.cli import main, train
from statewise.config.recipes import recipe_text
from statewise.config.suites import Cell
from statewise.experiments import cluster, seeds, suite
from statewise.experiments.jobs import Job, read_state, show_nothing, write_state
from statewise.model.recipes import read_recipe
from statewise.reporting.members import repeat
from statewise.run import Run
from statewise.runtime.messages import to_install

submitit = pytest.importorskip("submitit")

FLAGS = [
    *SMALL_RUN,
    "--task.held_out_graphs=10",
    "--trainer.steps=6",
    "--trainer.warmup_steps=1",
    "--trainer.evaluate_num=5",
    "--trainer.precision=fp32",
    "--trainer.log_every=1",
]


@pytest.fixture(autouse=True)
def outside(monkeypatch):
    for name in [name for name in os.environ if name.startswith(("SLURM_", "SUBMITIT_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(cluster, "POLL_SECONDS", 0.2)
    monkeypatch.setattr(cluster, "LAGGING_SECONDS", 0.0)


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """The state of the programs that stand for Slurm's."""
    slurm_commands.install(tmp_path / "bin")
    state = tmp_path / "state"
    state.mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_DOUBLE", str(state))
    return state


def python(code):
    return [sys.executable, "-c", code]


def test_a_job_stores_how_far_it_came(tmp_path):
    jobs = [
        Job("fine", {"one": python("print('one')"), "two": python("print('two')")}, tmp_path / "fine.log"),
        Job(
            "half",
            {"one": python("print('one')"), "full": python("raise SystemExit('full')")},
            tmp_path / "half.log",
            ["zero"],
        ),
    ]
    handles = cluster.submit(jobs, cluster.SlurmOptions(), tmp_path / "submitted", cluster="debug")
    assert [handle.result() for handle in handles] == [0, 1]
    assert (tmp_path / "fine.log").read_text() == "one\ntwo\n"
    assert read_state(tmp_path / "fine.log") == (["one", "two"], "")
    assert read_state(tmp_path / "half.log") == (["zero", "one"], "code 1: full")
    assert cluster.number(tmp_path / "fine.log") == handles[0].job_id
    assert (tmp_path / "submitted").stat().st_mode & 0o077 == 0


def test_a_job_that_is_preempted_lets_its_command_save(tmp_path):
    code = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.3), print('saved', flush=True), sys.exit(143)))\n"
        "print('ready', flush=True)\ntime.sleep(60)"
    )
    log = tmp_path / "it.log"
    each = {"before": python("print('before')"), "wait": python(code), "no": python("print('no')")}
    commands = cluster.Commands(Job("it", each, log))
    again = []

    def warn(number, frame):
        again.append(commands.checkpoint())

    before = signal.signal(signal.SIGUSR2, warn)
    watcher = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"import os, signal, time\nfrom pathlib import Path\nlog = Path({str(log)!r})\n"
            "while not log.exists() or 'ready' not in log.read_text(): time.sleep(0.05)\n"
            f"os.kill({os.getpid()}, signal.SIGUSR2)",
        ]
    )
    try:
        assert commands() == 143
    finally:
        signal.signal(signal.SIGUSR2, before)
        watcher.kill()
        watcher.wait()
    assert log.read_text() == "before\nready\nsaved\n"
    assert read_state(log) == (["before"], "")
    assert again[0].function.job == commands.job


def test_what_is_asked_of_slurm(tmp_path, slurm):
    options = cluster.SlurmOptions("gpu", 120, 2, 8, 32, 3, "mine", "high", "a100", detach=True)
    jobs = [Job(str(n), {"pass": python("pass")}, tmp_path / f"{n}.log") for n in range(4)]
    told = []
    told_of = {"started": lambda job: told.append(job.name), "looked_at": print, "ended": print}
    assert cluster.run_jobs(jobs, options, tmp_path / "submitted", **told_of) is None
    assert told == ["0", "1", "2", "3"]
    script = (slurm / "script").read_text().splitlines()
    for line in (
        "--partition=gpu",
        "--time=120",
        "--gpus-per-node=2",
        "--cpus-per-task=8",
        "--mem=32GB",
        "--array=0-3%3",
        "--account=mine",
        "--qos=high",
        "--constraint=a100",
        "--requeue",
        "--signal=USR2@120",
        "--job-name=statewise",
    ):
        assert f"#SBATCH {line}" in script
    ended = []
    told_of["ended"] = lambda job, code: ended.append((job.name, code))
    waiting = cluster.SlurmOptions("gpu")
    assert cluster.run_jobs(jobs, waiting, tmp_path / "submitted", **told_of) is None
    assert sorted(ended) == [(str(n), 0) for n in range(4)]


def test_what_a_quick_job_has_stored_stays(tmp_path, slurm, monkeypatch):
    def submit(jobs, options, folder):
        for job in jobs:
            job.log.parent.mkdir(parents=True, exist_ok=True)
            write_state(job.log, ["train"], "code 1: full")
        return [SimpleNamespace(job_id=f"100_{place}") for place, _ in enumerate(jobs)]

    monkeypatch.setattr(cluster, "submit", submit)
    options = cluster.SlurmOptions(detach=True)
    outcome = seeds._run_all(tmp_path / "seeds", {1: python("pass")}, {}, 1, options, show_nothing)
    assert (outcome.in_cluster, outcome.exit_code) == (True, 0)
    assert read_state(tmp_path / "seeds" / "seed-1.log") == (["train"], "code 1: full")
    one = suite.Planned(Cell("parity", "next_token", "gpt", {}, []), 1, tmp_path / "suite")
    suite._run_all([one], 1, options, tmp_path, show_nothing)
    assert read_state(one.log) == (["train"], "code 1: full")


def test_a_job_that_is_gone_without_a_word_has_failed(tmp_path, slurm):
    job = Job("it", {"kill": python("import os, signal; os.kill(os.getppid(), signal.SIGKILL)")}, tmp_path / "it.log")
    ended = []
    cluster.run_jobs(
        [job],
        cluster.SlurmOptions(),
        tmp_path / "submitted",
        started=print,
        looked_at=lambda job: None,
        ended=lambda job, code: ended.append(code),
    )
    assert ended == [1]
    assert "ended before its command" in read_state(job.log)[1]


@pytest.mark.slow
def test_seeds_on_a_cluster_are_preempted_and_come_to_the_same_end(tmp_path, slurm, capsys):
    steps = [
        "--trainer.steps=400",
        "--trainer.threads=1",
        "--trainer.evaluate_every=0",
        "--trainer.stop_when_solved=false",
    ]
    words = ["train", "path-star-small", *FLAGS, *steps, "--seeds", "1-2"]
    out = tmp_path / "cluster"
    assert main([*words, "--on", "slurm", "--slurm.time", "30", "--detach", "--out", str(out)]) == 0
    assert f"statewise status {out}" in capsys.readouterr().err
    run = Run(out / "seed-1")
    deadline = time.monotonic() + 120
    while not run.metrics():
        assert time.monotonic() < deadline, (out / "seed-1.log").read_text()
        time.sleep(0.1)
    assert main(["status", str(out), "--json"]) == 0
    states = {row["name"]: row["state"] for row in json.loads(capsys.readouterr().out)["runs"]}
    assert states["seed-1"] == "running"
    slurm_commands.interrupt(slurm, "100_0")
    assert main(["train", "--resume", str(out), "--on", "slurm"]) == 0
    assert "seed   1 | " in capsys.readouterr().out
    assert "from step" in (out / "seed-1.log").read_text()
    assert main([*words, "--jobs", "1", "--out", str(tmp_path / "here")]) == 0
    for seed in ("seed-1", "seed-2"):
        one, two = (
            Run(folder / seed).find_checkpoint("last").weights.read_bytes() for folder in (out, tmp_path / "here")
        )
        assert one == two
    assert main(["status", str(out)]) == 0
    assert "2 runs: 2 done" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--slurm.gpus", "1"], "--slurm.gpus is for --on slurm"),
        (["--detach"], "--detach is for --on slurm"),
        (["--on", "slurm", "--jobs", "2"], "--slurm.array limits the jobs"),
        (["--on", "slurm"], "there is no sbatch here"),
        (["--on", "slurm", "--slurm.time", "0"], "--slurm.time must be at least 1"),
        (["--on", "slurm", "--wait", "--detach"], "not allowed with"),
    ],
)
def test_options_that_make_no_sense_are_refused(tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.setenv("PATH", str(tmp_path))
    out = tmp_path / "out"
    assert main(["train", "path-star-small", "--seeds", "1-2", "--out", str(out), *words]) == 2
    assert message in capsys.readouterr().err
    assert not out.exists()


def test_several_runs_are_not_started_by_tasks(tmp_path, monkeypatch, capsys):
    for name, value in {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0"}.items():
        monkeypatch.setenv(name, value)
    assert main(["train", "path-star-small", "--seeds", "1-2", "--out", str(tmp_path / "out")]) == 2
    assert "run the command without srun" in capsys.readouterr().err


def test_without_submitit_it_says_what_to_install(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "submitit", None)
    assert main(["train", "path-star-small", "--seeds", "1-2", "--on", "slurm", "--out", str(tmp_path / "o")]) == 2
    assert to_install("cluster") in capsys.readouterr().err


def test_the_examples_for_other_launchers_are_whole():
    folder = Path(__file__).parents[2] / "docs" / "clusters"
    sky = yaml.safe_load((folder / "skypilot.yaml").read_text())
    service, job = yaml.safe_load_all((folder / "kubernetes.yaml").read_text())
    pod = job["spec"]["template"]["spec"]
    assert service["metadata"]["name"] == pod["subdomain"] == job["metadata"]["name"]
    assert {mount["name"] for mount in pod["containers"][0]["volumeMounts"]} == {one["name"] for one in pod["volumes"]}
    for text, nodes in ((sky["run"], "$SKYPILOT_NUM_NODES"), (pod["containers"][0]["args"][0], "2")):
        words = shlex.split(text)
        assert words[words.index("--nnodes") + 1] == nodes
        command = words[words.index("statewise") + 1 :]
        assert command[:1] == ["train"]
        options, flags = train._parser().split(command[1:])
        assert options.resume_if_there
        assert read_recipe(recipe_text(options.recipe), flags).trainer.shard == "full"
    assert sky["num_nodes"] == job["spec"]["parallelism"] == job["spec"]["completions"]


def test_status_says_how_far_runs_are(tmp_path, capsys, monkeypatch):
    out = tmp_path / "runs"
    assert main(["train", "path-star-small", *FLAGS, "--trainer.threads=1", "--out", str(out / "seed-1")]) == 0
    for seed in (2, 3):
        shutil.copytree(out / "seed-1", out / f"seed-{seed}")
        (out / f"seed-{seed}" / "reports" / "evaluation.json").unlink()
        Run(out / f"seed-{seed}").forget_after(3)
        (out / f"seed-{seed}" / "checkpoints").rename(tmp_path / f"old-{seed}")  # so that it would begin again
    (out / "seeds.json").write_text(json.dumps({"seeds": [1, 2, 3, 4, 5]}))
    write_state(out / "seed-5.log", [], "code 1: the disk is full")
    capsys.readouterr()
    with Run(out / "seed-2").lock():
        assert main(["status", str(out), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert main(["status", str(out)]) == 0
    assert [(row["name"], row["state"], row["step"]) for row in found["runs"]] == [
        ("seed-1", "done", 6),
        ("seed-2", "running", 3),
        ("seed-3", "stopped", 0),
        ("seed-4", "not started", 0),
        ("seed-5", "failed", 0),
    ]
    half = found["runs"][1]
    assert half["left"] == pytest.approx(half["seconds"])  # three of six steps
    whole = [row["seconds"] + row["left"] for row in found["runs"] if row["left"] is not None]
    left = [row["left"] if row["left"] is not None else sum(whole) / 3 for row in found["runs"]]
    assert found["left"] == pytest.approx(sum(left))  # of one run at a time
    shown = capsys.readouterr().out
    assert "5 runs: 1 done, 1 running, 1 failed, 1 stopped, 1 not started; about " in shown
    assert "the disk is full" in shown
    write_state(out / "seed-1.log", [], "code 1: the disk is full")  # and then continued by itself
    assert main(["status", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"][0]["state"] == "done"
    write_state(out / "seed-1.log", ["train"], "code 2: a later command of a suite")
    assert main(["status", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"][0]["state"] == "failed"
    write_state(out / "seed-1.log", ["train"], "")
    monkeypatch.chdir(out / "seed-1")
    assert main(["status", "."]) == 0
    assert "seed-1" in capsys.readouterr().out
    assert repeat(Path(".")) == f"statewise train --config {out / 'seed-1'} --out {out / 'seed-1-again'}"
    assert main(["status", str(out / "seed-1")]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert (shown[0].split()[:3], shown[2].split()[:3]) == (["run", "state", "step"], ["seed-1", "done", "6/6"])
    assert shown[-1] == "1 run: 1 done"
    assert main(["status", str(tmp_path / "nothing")]) == 2
    assert "holds no run" in capsys.readouterr().err


def test_status_of_a_folder_of_runs(tmp_path, capsys):
    for name in ("one", "two"):
        assert main(["train", "path-star-small", *FLAGS, "--trainer.threads=1", "--out", str(tmp_path / name)]) == 0
    capsys.readouterr()
    assert main(["status", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["runs"]
    assert [(row["name"], row["state"]) for row in found] == [("one", "done"), ("two", "done")]
    assert main(["status", str(tmp_path / "one"), str(tmp_path / "two")]) == 2
    assert f"'{tmp_path / 'two'}' is one argument too many" in capsys.readouterr().err
