"""Real processes, really killed."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest
import torch
from doubles import SMALL_RUN
from safetensors.torch import load_file

from statewise.cli import main
from statewise.run import Run

pytestmark = pytest.mark.usefixtures("forked")

STEPS = 500  # several seconds of training, so that a kill comes while it runs

FLAGS = [
    *SMALL_RUN,
    "--task.held_out_graphs=20",
    f"--trainer.steps={STEPS}",
    "--trainer.log_every=40",
    "--trainer.evaluate_every=200",
    "--trainer.evaluate_num=20",
    "--trainer.checkpoint_every=60",
    "--trainer.threads=1",
    "--trainer.stop_when_solved=false",
]


def command(*words):
    return [sys.executable, "-m", "statewise", "train", *words]


def start(*words):
    return subprocess.Popen(command(*words), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def run_to_end(*words):
    done = subprocess.run(command(*words), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def wait_for(condition, process, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition() and process.poll() != 0:
        assert process.poll() is None, process.communicate(timeout=60)[0]
        assert time.monotonic() < deadline
        time.sleep(0.01)


def last_step(folder):
    records = Run(folder).metrics()
    return records[-1]["step"] if records else 0


def final_state(folder):
    run = Run.open(folder)
    found = run.find_checkpoint("last")
    assert found.step == STEPS
    training = torch.load(found.training, weights_only=True)["optimizer"]["state"]
    tensors = {f"{i}/{name}": tensor for i, moments in training.items() for name, tensor in moments.items()}
    metrics = [
        {k: v for k, v in record.items() if k not in ("seconds", "tokens_per_second", "flops_per_second")}
        for record in run.metrics()
    ]
    return {**load_file(found.weights), **tensors}, metrics


@pytest.mark.parametrize(
    "extra",
    [
        pytest.param([], id="fresh"),
        pytest.param(
            ["--task.training_graphs", "333", "--objective", "next_latent"], id="epochs", marks=pytest.mark.slow
        ),
    ],
)
def test_killed_at_any_moment_it_goes_on_bit_for_bit(tmp_path, extra):
    flags = ["path-star-small", *FLAGS, *extra]
    assert main(["train", *flags, "--out", str(tmp_path / "whole")]) == 0
    cut = tmp_path / "cut"
    process = start(*flags, "--out", str(cut))
    wait_for((cut / "config.json").exists, process)
    kills, seen = 0, 0
    chance = random.Random(len(extra))
    while kills < 3:
        wait_for(lambda seen=seen: last_step(cut) > seen, process)  # it trains again: now any moment will do
        time.sleep(chance.uniform(0.0, 0.6))
        if process.poll() is not None:
            break
        process.kill()
        process.wait()
        kills += 1
        Run.open(cut).metrics()  # whatever the moment, the directory can be read
        if Run.open(cut).checkpoints():
            Run.open(cut).find_checkpoint("last")
        found = Run.open(cut).checkpoints()
        seen = found[-1].step if found else 0
        process = start("--resume", str(cut))
    assert kills >= 1
    process.wait()
    assert main(["train", "--resume", str(cut)]) == 0
    tensors, metrics = final_state(tmp_path / "whole")
    others, other_metrics = final_state(cut)
    assert metrics == other_metrics
    assert tensors.keys() == others.keys()
    for name, tensor in tensors.items():
        assert torch.equal(tensor, others[name]), name


@pytest.mark.parametrize(
    ("number", "code"), [pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow), (signal.SIGTERM, 143)]
)
def test_a_signal_saves_and_says_how_to_go_on(tmp_path, number, code):
    folder = tmp_path / "run"
    endless = ["--trainer.steps", "1000000", "--trainer.checkpoint_every", "1000000"]
    process = start("path-star-small", *FLAGS, *endless, "--out", str(folder))
    wait_for(lambda: (folder / "metrics.jsonl").exists() and Run(folder).metrics(), process)
    refused = subprocess.run(command("--resume", str(folder)), capture_output=True, text=True)
    assert refused.returncode == 2
    assert "in use by another process" in refused.stderr
    process.send_signal(number)
    output = process.communicate()[0]
    assert process.returncode == code, output
    assert f"statewise train --resume {folder}" in output
    step = Run.open(folder).find_checkpoint("last").step
    assert f"stopped at step {step}, saved" in output
    assert step > 0


LEFT = """
import atexit, sys
from pathlib import Path
from statewise.cli import main

def threads():
    return [name.read_text().strip() for name in Path("/proc/self/task").glob("*/comm")]

def say():  # the last thing that Python does: threads that still need it then may abort the process
    left = [name for name in threads() if "gloo" in name]
    print(f"left: {left}" if left else "no thread of a process group is left", file=sys.stderr)

atexit.register(say)
sys.exit(main(["train", *sys.argv[1:]]))
"""


@pytest.mark.parametrize(
    ("optimizer", "steps", "slack"),
    # Muon rounds gradients to bfloat16
    [("adamw", 30, 1e-5), pytest.param("muon", 12, 2e-3, marks=pytest.mark.slow)],
)
def test_two_processes_have_the_losses_of_one(tmp_path, optimizer, steps, slack):
    flags = [
        "path-star-small",
        *FLAGS,
        "--trainer.steps",
        str(steps),
        "--trainer.log_every",
        "1",
        "--objective",
        "next_latent",
        "--trainer.optimizer",
        optimizer,
        "--trainer.precision",
        "fp32",
        "--trainer.evaluate_every",
        "15",
        "--trainer.accumulate",
        "2",
    ]
    assert main(["train", *flags, "--out", str(tmp_path / "one")]) == 0
    script = tmp_path / "two.py"
    script.write_text(LEFT)
    words = [*flags, "--trainer.devices", "2", "--out", str(tmp_path / "two")]
    done = subprocess.run([sys.executable, str(script), *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    if os.path.isdir("/proc/self/task"):
        assert done.stderr.count("no thread of a process group is left") == 2, done.stderr
    one, two = Run.open(tmp_path / "one").metrics(), Run.open(tmp_path / "two").metrics()
    assert [record["kind"] for record in one] == [record["kind"] for record in two]
    compared = 0
    for left, right in zip(one, two):
        for name in ("loss", "next_token", "latent", "kl", "gradient_norm"):
            if name in left:
                assert left[name] == pytest.approx(right[name], rel=slack, abs=slack), (name, left["step"])
                compared += 1
    assert compared >= 5 * steps


DISBANDED = """
import sys
from datetime import timedelta
import torch
from torch import distributed
from statewise.training.processes import disband

class Trainer:
    pass

folder, rank = sys.argv[1], int(sys.argv[2])
for number in range(25):
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store-{number}", rank=rank, world_size=2, timeout=timedelta(hours=1)
    )
    trainer = Trainer()
    trainer.itself, trainer.model = trainer, torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    del trainer
    distributed.all_gather_object([None, None], number)
    disband()
"""


def test_processes_part_without_waiting_for_each_other(tmp_path):
    """Let go by a cycle of the trainer, a process group waited for its threads, and they for Python's lock: it hung
    within twenty times that processes part, and now and then at the end of a run."""
    parting = [
        subprocess.Popen([sys.executable, "-c", DISBANDED, str(tmp_path), str(rank)], stderr=subprocess.PIPE, text=True)
        for rank in (0, 1)
    ]
    try:
        for process in parting:
            assert process.communicate(timeout=120)[1] == ""
            assert process.returncode == 0
    finally:
        for process in parting:
            process.kill()
            process.wait()


@pytest.mark.slow
def test_two_processes_stop_together_and_resume(tmp_path):
    folder = tmp_path / "run"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command("path-star-small", *FLAGS, "--trainer.devices", "2", "--out", str(folder)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    )
    wait_for(lambda: (folder / "metrics.jsonl").exists() and Run(folder).metrics(), process)
    process.send_signal(signal.SIGTERM)
    output = process.communicate(timeout=60)[0]
    assert process.returncode == 143, output
    run_to_end("--resume", str(folder))
    assert Run.open(folder).end()["reason"] == "steps"
    assert json.loads((folder / "config.json").read_text())["trainer"]["devices"] == 2


KILLED = """
import os, signal, sys
from statewise.cli import main
from statewise.training.trainer import Trainer

step = Trainer._step

def step_or_die(self, drawn):
    if self.fabric.global_rank == 1 and self.progress.step == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return step(self, drawn)

Trainer._step = step_or_die
sys.exit(main(["train", *sys.argv[1:]]))
"""


def test_a_process_whose_fellow_was_killed_says_so(tmp_path):
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    words = ["path-star-small", *FLAGS, "--trainer.devices", "2", "--out", str(tmp_path / "run")]
    done = subprocess.run([sys.executable, str(script), *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1, done.stderr
    assert "statewise: no connection to another process of this run; if that has ended" in done.stderr
    assert "Traceback" not in done.stderr


def test_of_two_processes_one_speaks_about_a_mistake(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "thesis.tex").write_text("years of work")
    done = subprocess.run(
        command("path-star-small", *FLAGS, "--trainer.devices", "2", "--out", str(folder)),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stderr.count("exists: choose another --out") == 1
    assert "Traceback" not in done.stderr
