"""Training on rows that follow one another, with a state carried from each to the next."""

import subprocess
import sys

import pytest
import torch
from doubles import small_corpus
from safetensors.torch import load_file

from statewise.cli import main
from statewise.config.recipes import recipe_text
from statewise.experiments.launch import Listener, resume, train
from statewise.model.recipes import read_recipe
from statewise.run import Run
from statewise.training import checkpoint as checkpoints
from statewise.training.stored import read

pytestmark = pytest.mark.usefixtures("forked")

FLAGS = [
    *("--backbone=belief_slots", "--backbone.chunk=8", "--backbone.width=16", "--backbone.heads=2"),
    *("--backbone.layers=1", "--backbone.across_rows=true", "--task.context=20", "--trainer.rows=consecutive"),
    *("--trainer.batch_size=4", "--trainer.precision=fp32", "--trainer.steps=12", "--trainer.warmup_steps=2"),
    *("--trainer.log_every=1", "--trainer.evaluate_every=0", "--trainer.checkpoint_every=5", "--trainer.report_num=4"),
    *("--trainer.threads=1", "--trainer.keep=0"),
]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return small_corpus(tmp_path_factory.mktemp("corpus"), 40)


@pytest.fixture
def recipe(corpus):
    def made(*flags):
        return read_recipe(recipe_text("text-small"), [*FLAGS, f"--task.path={corpus.folder}", *flags])

    return made


class Stop(Exception):
    """Stands for a machine that goes away."""


def stop_at(step):
    def check(now):
        if now == step:
            raise Stop

    return Listener(step=check)


def numbers(folder):
    """The run's metrics without what a clock says."""
    clock = ("seconds", "tokens_per_second", "flops_per_second")
    return [{key: value for key, value in record.items() if key not in clock} for record in Run(folder).metrics()]


def final(folder):
    """All tensors of the last checkpoint, by name."""
    found = Run(folder).find_checkpoint("last")
    state = checkpoints.load_training(found)
    moments = {
        f"{number}/{name}": read(tensor)
        for number, each in state["optimizer"]["state"].items()
        for name, tensor in each.items()
    }
    return {**load_file(found.weights), **moments, **state["lanes"]["backbone"]}


def assert_same(one, other):
    assert set(one) == set(other)
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name


@pytest.mark.parametrize(
    ("step", "flags"), [(3, ()), (7, ("--trainer.accumulate=2",)), (11, ("--objective=next_latent",))]
)
def test_a_run_that_was_cut_off_goes_on_bit_for_bit(tmp_path, recipe, step, flags):
    train(recipe(*flags), tmp_path / "whole")
    with pytest.raises(Stop):
        train(recipe(*flags), tmp_path / "cut", listener=stop_at(step))
    resume(tmp_path / "cut")
    assert_same(final(tmp_path / "cut"), final(tmp_path / "whole"))
    assert numbers(tmp_path / "cut") == numbers(tmp_path / "whole")
    assert final(tmp_path / "whole")["state"].abs().sum((1, 2)).min() > 0, "each lane keeps a state"


def test_the_state_makes_a_difference(tmp_path, recipe):
    """Else nothing here could fail. Begun alike, the losses part as soon as a row follows another."""
    train(recipe(), tmp_path / "across")
    train(recipe("--backbone.across_rows=false"), tmp_path / "alone")
    across, alone = (
        [record["loss"] for record in numbers(tmp_path / name) if record["kind"] == "train"]
        for name in ("across", "alone")
    )
    assert across[0] == alone[0]
    assert across[2:] != alone[2:]
    assert "lanes" not in checkpoints.load_training(Run(tmp_path / "alone").find_checkpoint("last"))


def test_accumulated_parts_carry_what_the_whole_does(tmp_path, recipe):
    train(recipe(), tmp_path / "one")
    train(recipe("--trainer.accumulate=4"), tmp_path / "four")
    for one, four in zip(numbers(tmp_path / "one"), numbers(tmp_path / "four")):
        if one["kind"] == "train":
            assert one["loss"] == pytest.approx(four["loss"], rel=1e-4)
    one, four = final(tmp_path / "one"), final(tmp_path / "four")
    assert torch.equal(one["documents"], four["documents"])
    torch.testing.assert_close(one["hidden"], four["hidden"], rtol=1e-3, atol=1e-4)


def run_to_end(*words):
    done = subprocess.run([sys.executable, "-m", "statewise", "train", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "deprecated" not in done.stderr


@pytest.mark.parametrize("shard", ["none", pytest.param("full", marks=pytest.mark.slow)])
def test_two_processes_carry_what_one_does_and_go_on_bit_for_bit(tmp_path, recipe, corpus, shard):
    train(recipe(), tmp_path / "one")
    two, divided = tmp_path / "two", ("--trainer.devices=2", f"--trainer.shard={shard}")
    run_to_end("text-small", *FLAGS, f"--task.path={corpus.folder}", *divided, "--out", str(two))
    one, whole, metrics = final(tmp_path / "one"), final(two), numbers(two)
    for left, right in zip(numbers(tmp_path / "one"), metrics):
        if left["kind"] == "train":
            assert left["loss"] == pytest.approx(right["loss"], rel=1e-4)
    assert torch.equal(one["documents"], whole["documents"]), "the lanes of both stand in the order of the batch"
    torch.testing.assert_close(one["hidden"], whole["hidden"], rtol=1e-3, atol=1e-4)
    (two / "reports" / "evaluation.json").unlink()
    Run(two).forget_after(10)
    run_to_end("--resume", str(two))
    assert_same(final(two), whole)
    assert numbers(two) == metrics


def test_a_checkpoint_without_what_lanes_kept_is_refused(tmp_path, recipe):
    with pytest.raises(Stop):
        train(recipe(), tmp_path / "run", listener=stop_at(7))
    run = Run(tmp_path / "run")
    found = run.find_checkpoint("last")
    state, weights = checkpoints.load_training(found), found.weights.read_bytes()
    kept = state["lanes"]["backbone"]
    for lanes, message in (
        (None, "lanes are missing"),
        ({}, "lanes are missing"),
        ({"backbone": {**kept, "state": kept["state"][:3]}}, "there are 3 lanes, and trainer.batch_size is 4"),
        ({"backbone": {**kept, "owner": 3}}, ""),
    ):
        state["lanes"] = lanes
        damaged = tmp_path / "training.pt"
        torch.save(state, damaged)
        run.forget_after(0)
        run.write_checkpoint(5, {"weights.safetensors": weights, "training.pt": damaged.read_bytes()})
        with pytest.raises(ValueError, match=f"training.pt does not fit the run's recipe: {message}"):
            resume(tmp_path / "run")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["text-small", *FLAGS, "--trainer.rows=shuffled"], "set trainer.rows to consecutive, or"),
        (["path-star-small", "--trainer.rows=consecutive"], "consecutive windows of one text: such a task is text"),
        (["text-small", *FLAGS, "--trainer.rows=sorted"], "trainer.rows"),
    ],
)
def test_what_does_not_go_together_is_refused_with_what_to_set(tmp_path, capsys, corpus, words, message):
    path = [f"--task.path={corpus.folder}"] if words[0] == "text-small" else []
    assert main(["train", *words, *path, "--out", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert message in " ".join(error.split())
    assert "Traceback" not in error
    assert not (tmp_path / "run").exists()


def test_any_model_may_read_rows_in_order(tmp_path, corpus):
    """The other half of a comparison: the same order of data, and nothing carried."""
    flags = [flag for flag in FLAGS if not flag.startswith("--backbone")]
    small = ["--backbone=gpt", "--backbone.width=16", "--backbone.heads=2", "--backbone.layers=1"]
    recipe = read_recipe(recipe_text("text-small"), [*flags, *small, f"--task.path={corpus.folder}"])
    assert train(recipe, tmp_path / "run").step == 12
