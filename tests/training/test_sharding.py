"""Sharded training on two processes of a CPU equals training on one. Run as a script, this file is those processes."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from statewise.config.recipes import recipe_text
from statewise.experiments.launch import Listener, resume, train
from statewise.model.model import load_model
from statewise.model.recipes import read_recipe
from statewise.objectives import OBJECTIVES
from statewise.run import Run
from statewise.training import sharding
from statewise.training.checkpoint import join_weights, load_training
from statewise.training.stored import read

FLAGS = [
    "--backbone.width=16",
    "--backbone.layers=2",
    "--trainer.batch_size=8",
    "--trainer.log_every=1",
    "--trainer.evaluate_every=2",
    "--trainer.evaluate_num=8",
    "--trainer.checkpoint_every=100",
    "--trainer.precision=fp32",
    "--trainer.steps=3",
    "--trainer.warmup_steps=1",
    "--trainer.threads=1",
]
GPT = ["--backbone.heads=2"]
TWO = ["--trainer.devices=2", "--trainer.shard=full"]


def recipe(*flags):
    """`flags` may begin with a recipe's name."""
    if flags and not flags[0].startswith("--"):
        return read_recipe(recipe_text(flags[0]), [*FLAGS, *flags[1:]])
    return read_recipe(recipe_text("path-star-small"), [*FLAGS, "--task.held_out_graphs=10", *flags])


def stop_at(step):
    """Saves and stops after the step that follows this one; of several processes, after the one behind that."""
    return Listener(step=lambda now: os.kill(os.getpid(), signal.SIGTERM) if now == step else None)


FAILING = {
    "part of a checkpoint": (1, "statewise.run.checkpoint.write_atomically"),
    "checkpoint": (0, "statewise.training.trainer.save"),
    "metrics": (0, "statewise.run.Run.log"),
    "data": (1, "statewise.experiments.launch.make_task"),
}
"""What fails in tests, the process in which it does, and the function."""


def work(orders):
    """What a process does: `orders` are (command, folder, flags, step at which it stops or None)."""
    for command, folder, flags, step in orders:
        listener = Listener() if step is None else stop_at(step)
        if command in FAILING:
            with_a_full_disk(*FAILING[command], flags, folder)
        elif command == "elsewhere":
            with pytest.raises(ValueError, match="processes on several machines need a folder on a disk that they"):
                train(recipe(*flags), folder + os.environ.get("LOCAL_RANK", "0"))
        elif command == "train":
            train(recipe(*flags), folder, listener=listener)
        else:
            resume(folder, flags=flags, listener=listener)


def with_a_full_disk(rank, name, flags, folder):
    """A function fails in one process: both raise its error."""

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    with pytest.MonkeyPatch.context() as patched:
        if int(os.environ.get("LOCAL_RANK", "0")) == rank:
            patched.setattr(name, full)
        with pytest.raises(OSError, match="No space left"):
            train(recipe(*flags), folder)


def on_two_processes(*orders, environment=None):
    import forked  # which those processes do not find

    words = [__file__, json.dumps(orders)]
    script = forked.python(*words) if hasattr(os, "pidfd_open") else [sys.executable, *words]
    done = subprocess.run(
        script, capture_output=True, text=True, timeout=300, env={**os.environ, **(environment or {})}
    )
    assert done.returncode == 0, done.stdout + done.stderr


def assert_close(folder, other, slack=1e-5):
    """Records, weights and optimiser state of two runs are equal up to rounding."""
    one, two = Run.open(Path(folder)), Run.open(Path(other))
    assert [record["kind"] for record in one.metrics()] == [record["kind"] for record in two.metrics()]
    assert any("gradient_norm" in record for record in one.metrics())
    for left, right in zip(one.metrics(), two.metrics()):
        numbers = {name for name, value in left.items() if isinstance(value, float) and "second" not in name}
        for name in numbers:
            assert left[name] == pytest.approx(right[name], rel=slack, abs=slack), (name, left["step"])
    states = []
    for run in (one, two):
        found = run.find_checkpoint("last")
        optimizer = load_training(found)["optimizer"]
        moments = {
            f"{name} {key}": read(value) for name, kept in optimizer["state"].items() for key, value in kept.items()
        }
        states.append((load_file(found.weights), moments))
        assert {name for group in optimizer["param_groups"] for name in group["params"]} == set(optimizer["state"])
    # AdamW divides gradients by their size, so that the rounding of tiny ones is seen in the weights.
    for place, room in enumerate((10 * slack, slack)):
        assert states[0][place].keys() == states[1][place].keys()
        for name, tensor in states[0][place].items():
            torch.testing.assert_close(tensor, states[1][place][name], rtol=room, atol=room, msg=name)


GOES_ON = ["--objective=next_latent", *GPT, "--trainer.steps=7", "--trainer.accumulate=2"]
SHARES = ["--objective=belief_state", *GPT, "--trainer.report_num=7", "--trainer.evaluate_num=5"]
CHUNKS = ["--backbone=belief_slots", *GPT, "--backbone.chunk=6", "--trainer.batch_size=4", "--trainer.accumulate=2"]


def with_rows(folder):
    """Flags of a task whose rows have one to four chunks."""
    rows = folder / "rows.txt"
    rows.write_text("".join(" ".join("abcdef"[i % 6] for i in range(n)) + "\n" for n in (3, 20, 4, 5, 3, 13, 4, 9) * 3))
    return ["sequences-small", f"--task.path={rows}", *CHUNKS]


def work_of_two(folder):
    """All that the tests below ask of two processes: to start them takes seconds."""
    folder.mkdir()
    train(recipe(*GOES_ON), folder / "goes on", listener=stop_at(2))
    failing = [*GPT, "--objective=next_token", "--trainer.devices=2"]
    rows = with_rows(folder)
    orders = [
        ("resume", "goes on", TWO, 4),
        ("part of a checkpoint", "part", [*SHARES, *TWO], None),
        ("train", "stopped", [*SHARES, *TWO, "--trainer.steps=6"], 2),
        ("train", "shares", [*SHARES, *TWO], None),
        *((command, command, failing, None) for command in ("data", "checkpoint", "metrics", "elsewhere")),
        ("train", "divided", [*rows, TWO[0]], None),
        ("train", "sharded", [*rows, *TWO], None),
    ]
    on_two_processes(*((command, str(folder / name), flags, step) for command, name, flags, step in orders))


@pytest.fixture(scope="module")
def two(made_once):
    return made_once("two processes", work_of_two)


def test_a_run_goes_on_with_another_number_of_processes(two, tmp_path):
    """One process, then two, sharded, then one again."""
    whole, cut = str(tmp_path / "whole"), str(tmp_path / "cut")
    train(recipe(*GOES_ON), whole)
    shutil.copytree(two / "goes on", cut)
    assert Run(Path(cut)).checkpoints()[-1].step == 6
    assert json.loads((Path(cut) / "config.json").read_text())["trainer"]["devices"] == 1
    with pytest.raises(ValueError, match=r"its own fields; only --trainer\.device, --trainer\.devices, "):
        resume(cut, flags=["--trainer.steps=3"])
    resume(cut)
    assert_close(whole, cut)


def test_processes_evaluate_and_save_their_shares(two, tmp_path):
    """Two encoders, and rows that neither process has as many of as the other."""
    cut = str(tmp_path / "cut")
    shutil.copytree(two / "stopped", cut)
    assert not list((two / "part" / "checkpoints").glob("*"))
    # Stopped: in parts, which any command reads. Ended: in one file.
    (stopped,) = (found for found in Run(Path(cut)).checkpoints() if found.step == 4)
    assert len(stopped.parts("weights")) == len(stopped.parts("moments")) == 2
    before = load_model(cut, "4", device="cpu").fingerprint()
    join_weights([stopped])
    assert load_model(cut, "4", device="cpu").fingerprint() == before
    run = Run(two / "shares")
    assert all(found.weights.exists() and len(found.parts("moments")) == 2 for found in run.checkpoints())
    alone = load_model(run.folder, device="cpu").evaluate(7)
    together = run.report("evaluation")
    assert together["num"] == alone.num == 7
    assert together["metrics"].keys() == alone.metrics.keys()
    for name, value in alone.metrics.items():
        assert together["metrics"][name] == pytest.approx(value, rel=1e-6, abs=1e-6), name
    assert together["samples"] == json.loads(json.dumps(alone.samples))
    during = next(record for record in run.metrics() if record["kind"] == "evaluation" and record["step"] == 2)
    assert load_model(run.folder, "2", device="cpu").evaluate(5, details=False).metrics["loss"] == pytest.approx(
        during["loss"], rel=1e-6
    )


def test_what_fails_in_one_process_fails_in_all(two):
    """The processes ended well, so each of them raised the error."""
    assert not (two / "data").exists()  # everything is read before the folder is made
    assert (two / "checkpoint").exists()
    assert not list((two / "checkpoint" / "checkpoints").glob("*"))


def test_processes_whose_rows_differ_in_chunks_wait_for_each_other(two, tmp_path):
    """Rows of one to four chunks, one per process and part of a step: one process may read a chunk where the other
    reads four, or both one, which has no use for an update."""
    whole = tmp_path / "whole"
    train(recipe(*with_rows(tmp_path)), whole)
    assert_close(whole, two / "divided")
    assert_close(whole, two / "sharded")


def test_a_model_with_frozen_parameters_is_refused():
    model = torch.nn.Linear(2, 2)
    sharding.refuse_frozen(model)
    model.bias.requires_grad_(False)
    with pytest.raises(ValueError, match="frozen parameters"):
        sharding.refuse_frozen(model)


def test_so_it_is_when_a_run_goes_on(tmp_path, monkeypatch):
    train(recipe(*GPT), tmp_path / "run")
    (tmp_path / "run" / "reports" / "evaluation.json").unlink()  # not complete

    def refuse(module):
        raise ValueError("frozen parameters")

    monkeypatch.setattr("statewise.experiments.launch.refuse_frozen", refuse)
    with pytest.raises(ValueError, match="frozen parameters"):
        resume(tmp_path / "run", flags=TWO)
    assert resume(tmp_path / "run", flags=["--trainer.devices=1"]).step == 3


@pytest.mark.slow
def test_every_objective_is_the_same_sharded(tmp_path):
    cases = [(name, [f"--objective={name}", *GPT]) for name in OBJECTIVES]
    for name, flags in cases:
        train(recipe(*flags), tmp_path / "one" / name)
    on_two_processes(*(("train", str(tmp_path / "two" / name), [*flags, *TWO], None) for name, flags in cases))
    for name, _ in cases:
        assert_close(tmp_path / "one" / name, tmp_path / "two" / name)


@pytest.mark.slow
def test_every_backbone_optimiser_and_precision_is_the_same_sharded(tmp_path):
    cases = {
        "two streams": (["--objective=belief_state", "--backbone=two_stream", *GPT, "--backbone.window=2"], 1e-5),
        "recurrent": (["--objective=belief_state", "--backbone=recurrent"], 1e-5),
        "deltanet": (["--backbone=deltanet", *GPT], 1e-5),
        "slots": (["--backbone=belief_slots", *GPT, "--backbone.chunk=4", "--backbone.slots=2"], 1e-5),
        # PyTorch's Muon, to which sharded matrices are left, rounds to bfloat16 before it makes them orthogonal.
        "muon": (["--objective=next_latent", *GPT, "--trainer.optimizer=muon"], 2e-3),
        "bf16": (["--objective=next_latent", *GPT, "--trainer.precision=bf16", "--trainer.accumulate=2"], 2e-2),
        "bf16, LayerNorm": ([*GPT, "--trainer.precision=bf16", "--backbone.norm=layer", "--backbone.bias=true"], 2e-2),
        "compiled": ([*GPT, "--trainer.compile=true"], 1e-4),
    }
    for name, (flags, _) in cases.items():
        train(recipe(*flags), tmp_path / "one" / name)
    on_two_processes(
        *(("train", str(tmp_path / "two" / name), [*flags, *TWO], None) for name, (flags, _) in cases.items())
    )
    for name, (_, slack) in cases.items():
        assert_close(tmp_path / "one" / name, tmp_path / "two" / name, slack)


@pytest.mark.slow
def test_two_machines_that_each_hold_the_whole_are_the_same(tmp_path):
    """`trainer.shard node` on two machines of two processes, which torchrun would have started."""
    flags = ["--objective=next_latent", *GPT]
    one, four = tmp_path / "one", tmp_path / "four"
    train(recipe(*flags), one)
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = str(found.getsockname()[1])
    orders = json.dumps([("train", str(four), [*flags, "--trainer.shard=node"], None)])
    common = {
        "TORCHELASTIC_RUN_ID": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "WORLD_SIZE": "4",
        "LOCAL_WORLD_SIZE": "2",
    }
    started = []
    for rank in range(4):
        place = {"RANK": str(rank), "LOCAL_RANK": str(rank % 2), "GROUP_RANK": str(rank // 2)}
        command = [sys.executable, __file__, orders]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        started.append(subprocess.Popen(command, env={**os.environ, **common, **place}, **pipes))
    try:
        said = [process.communicate(timeout=300)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0] * 4, "\n".join(said)
    trainer = json.loads((four / "config.json").read_text())["trainer"]
    assert (trainer["nodes"], trainer["devices"], trainer["shard"]) == (2, 2, "node")
    assert_close(one, four)


if __name__ == "__main__":
    warnings.filterwarnings("error", "FSDP2-wrapped", UserWarning)
    work(json.loads(sys.argv[1]))
