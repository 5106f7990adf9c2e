"""Who started this process, and what a command does that is started again."""

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys

import pytest
from doubles import SMALL_RUN

from statewise.cli import main
from statewise.config.recipes import recipe_text
from statewise.experiments.launch import Listener, train, train_or_resume
from statewise.model.recipes import read_recipe
from statewise.run import Run
from statewise.runtime import launchers as processes
from statewise.runtime.durable import lock

ALLOCATION = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_JOB_NAME": "train", "SLURM_PROCID": "0"}
STEP = {
    **ALLOCATION,
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NODELIST": "n[03-04]",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
}
TORCHRUN = {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "RANK": "2", "LOCAL_RANK": "0"}
TINY = [
    *SMALL_RUN,
    "--task.held_out_graphs=10",
    "--trainer.steps=6",
    "--trainer.warmup_steps=1",
    "--trainer.evaluate_num=5",
    "--trainer.precision=fp32",
]


@pytest.fixture(autouse=True)
def outside(monkeypatch):
    for name in [name for name in os.environ if name.startswith(("SLURM_", "TORCHELASTIC_", "LOCAL_RANK"))]:
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("environment", "by", "rank"),
    [
        ({}, None, 0),
        ({"LOCAL_RANK": "1"}, None, 1),  # started by the run itself
        (ALLOCATION, None, 0),  # the script of sbatch, or a shell of salloc
        ({**STEP, "SLURM_STEP_NUM_TASKS": "1", "LOCAL_RANK": "1"}, None, 1),  # our own child within a step of one task
        ({**STEP, "SLURM_JOB_NAME": "bash"}, None, 0),
        (STEP, processes.Started("srun", 4, 2), 3),
        (TORCHRUN, processes.Started("torchrun", 4, 2), 2),
        ({**STEP, **TORCHRUN}, processes.Started("torchrun", 4, 2), 2),  # srun torchrun
    ],
)
def test_launchers_are_known_by_what_only_their_tasks_have(monkeypatch, environment, by, rank):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert processes.started() == by
    assert processes.rank() == rank


@pytest.mark.parametrize(
    ("environment", "variable"),
    [
        ({**TORCHRUN, "WORLD_SIZE": "x"}, "WORLD_SIZE must be a number of at least 1, not 'x'"),
        ({**TORCHRUN, "LOCAL_WORLD_SIZE": "0"}, "LOCAL_WORLD_SIZE must be a number of at least 1, not '0'"),
        ({"TORCHELASTIC_RUN_ID": "x"}, "WORLD_SIZE must be a number of at least 1, not ''"),
        ({**TORCHRUN, "RANK": "9" * 5000}, "RANK must be a number of at least 0"),
        ({**STEP, "SLURM_STEP_NUM_TASKS": "-1"}, "SLURM_STEP_NUM_TASKS must be a number of at least 1, not '-1'"),
        ({"LOCAL_RANK": "first"}, "LOCAL_RANK must be a number of at least 0, not 'first'"),
    ],
)
def test_a_launchers_wrong_variable_is_named(monkeypatch, capsys, environment, variable):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert main(["train", "path-star-small", "--out", "never"]) == 2
    assert f"statewise: the environment variable {variable}" in capsys.readouterr().err


def test_the_tasks_of_a_step_find_each_other(monkeypatch):
    from statewise.training.srun import JobStep

    for name, value in STEP.items():
        monkeypatch.setenv(name, value)
    step = JobStep()
    assert (step.world_size(), step.global_rank(), step.local_rank(), step.node_rank()) == (4, 3, 1, 1)
    assert step.main_address == "n03"
    assert step.main_port == 15007
    monkeypatch.setenv("MASTER_PORT", "1234")
    assert step.main_port == 1234


@pytest.mark.parametrize(
    ("environment", "flags", "message"),
    [
        ({}, ["--trainer.nodes", "2"], "start the processes on 2 machines by torchrun or srun"),
        (TORCHRUN, ["--trainer.devices", "8"], "torchrun started, 2 on each of 2 machines: leave both out"),
        (TORCHRUN, ["--trainer.batch_size", "6"], "for 4 processes: choose a multiple of 4"),
        ({**STEP, "SLURM_STEP_NUM_TASKS": "3"}, [], "not the same number on each of 2 machines"),
    ],
)
def test_wrong_numbers_of_processes_are_refused(tmp_path, monkeypatch, capsys, environment, flags, message):
    for name, value in {**environment, "RANK": "0", "SLURM_PROCID": "0"}.items():
        monkeypatch.setenv(name, value)
    assert main(["train", "path-star-small", *TINY, *flags, "--out", str(tmp_path / "run")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_command_that_is_given_again_continues_its_run(tmp_path):
    def recipe(*flags):
        return read_recipe(recipe_text("path-star-small"), [*TINY, *flags])

    def preempted(step):
        if step == 2:
            os.kill(os.getpid(), signal.SIGUSR1)
            os.kill(os.getpid(), signal.SIGTERM)  # schedulers send several

    folder = tmp_path / "run"
    outcome = train_or_resume(recipe(), folder, listener=Listener(step=preempted))
    assert (outcome.reason, outcome.signal, outcome.step) == ("signal", signal.SIGTERM, 3)
    with pytest.raises(ValueError, match=r"trainer\.clip is 1\.0 there and 2\.0 here.*Choose another `out`"):
        train_or_resume(recipe("--trainer.clip=2"), folder)
    fields = json.loads((folder / "config.json").read_text())
    assert fields["trainer"].pop("optimizer") == "adamw"  # as if the run were of a version without this field
    (folder / "config.json").write_text(json.dumps(fields))
    begun = []
    again = train_or_resume(recipe(), folder, listener=Listener(begin=lambda run, recipe, step: begun.append(step)))
    assert (again.reason, begun) == ("steps", [3])
    assert train_or_resume(recipe("--trainer.shard=full"), folder) is None
    train(recipe(), tmp_path / "whole")
    assert [record.get("loss") for record in Run(folder).metrics()] == [
        record.get("loss") for record in Run(tmp_path / "whole").metrics()
    ]


def _saved(state):
    import io

    import torch

    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS])
def test_where_there_are_no_locks_a_file_names_the_process(tmp_path, monkeypatch, number):
    def none(*arguments):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", none)
    path = tmp_path / ".lock"
    with lock(path, "in use"), pytest.raises(BlockingIOError, match="in use"), lock(path, "in use"):
        pass
    with lock(path, "in use"):
        pass
    if number == errno.ENOLCK:
        gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True)
        holder = tmp_path / ".lock-holder"
        holder.write_text(f"{os.uname().nodename} {gone.stdout.strip()}")
        with lock(path, "in use"):
            assert holder.read_text().split()[1] == str(os.getpid())
        holder.write_text("elsewhere 12")
        with (
            pytest.raises(BlockingIOError, match=r"in use: .*names process 12 on elsewhere; delete that file"),
            lock(path, "in use"),
        ):
            pass


def test_only_the_first_process_speaks_until_they_train_together(capsys, monkeypatch):
    for name, value in {**TORCHRUN, "RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    assert main(["train", "--resume", "nowhere"]) == 2
    assert capsys.readouterr() == ("", "")
    import torch

    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    assert main(["train", "--resume", "nowhere"]) == 2
    assert capsys.readouterr().err.startswith("statewise, process 1: nowhere is not a run directory")


def test_a_process_that_the_run_has_started_speaks(capsys, monkeypatch):
    """The first one has passed the same checks before it started this one, so it will not say it."""
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert main(["train", "--resume", "nowhere"]) == 2
    assert capsys.readouterr().err.startswith("statewise, process 1: nowhere is not a run directory")


def test_resuming_changes_processes_only(capsys):
    assert main(["train", "--resume", "nowhere", "--trainer.steps", "3"]) == 2
    assert "continues a run unchanged" in capsys.readouterr().err
