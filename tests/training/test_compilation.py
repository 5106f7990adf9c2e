"""Blocks that are compiled where a run is long: the same losses, exact continuation, and what is left as it is."""

import pytest
import torch
from doubles import SMALL_RUN

from statewise.config.recipes import recipe_text
from statewise.experiments import seeds
from statewise.experiments.launch import Listener, resume, train, train_or_resume
from statewise.model.building import make_objective, make_task
from statewise.model.recipes import read_recipe
from statewise.run import Run
from statewise.tasks.batches import Stream
from statewise.training import compilation
from statewise.training.compilation import what_to_compile

TINY = [
    *SMALL_RUN,
    "--task.held_out_graphs=40",
    "--trainer.precision=fp32",
    "--trainer.steps=6",
    "--trainer.evaluate_every=3",
    "--trainer.log_every=1",
]


def tiny(*flags):
    return read_recipe(recipe_text("path-star-small"), [*TINY, "--trainer.checkpoint_every=3", *flags])


@pytest.fixture
def calls(monkeypatch):
    """The calls of blocks that a stand-in for the compiler has made: it changes nothing."""
    calls = []

    def compiled(function, backend):
        return lambda *given: calls.append(function) or function(*given)

    monkeypatch.setattr(compilation, "PAYS_FROM", 0)
    monkeypatch.setattr(compilation, "has_compiler", lambda: True)
    monkeypatch.setattr(torch, "compile", compiled)
    return calls


def losses(folder):
    return [record["loss"] for record in Run.open(folder).metrics() if record["kind"] == "train"]


def test_training_alone_calls_the_compiled_blocks_and_a_resumed_run_does_again(tmp_path, calls, monkeypatch):
    notes = []
    train(tiny(), tmp_path / "compiled", listener=Listener(note=notes.append))
    assert any("blocks of the model are compiled" in note for note in notes)
    assert Run.open(tmp_path / "compiled").environment()["compiled"] == "blocks"
    assert len(calls) == 1 + 6  # of one layer: the first pass, and six steps; the evaluations call none
    train(tiny("--trainer.compile=false"), tmp_path / "plain")
    assert len(calls) == 7
    assert losses(tmp_path / "compiled") == losses(tmp_path / "plain")

    def stop(step):
        if step == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(tiny(), tmp_path / "cut", listener=Listener(step=stop))
    monkeypatch.setattr(compilation, "PAYS_FROM", 1e30)  # what the run began with counts
    calls.clear()
    resume(tmp_path / "cut")
    assert len(calls) == 1 + 3
    assert losses(tmp_path / "cut") == losses(tmp_path / "compiled")


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["next_token", "next_latent", "belief_state"])
def test_compiled_blocks_have_the_same_losses(tmp_path, monkeypatch, objective):
    monkeypatch.setattr(compilation, "PAYS_FROM", 0)
    train(tiny(f"--objective={objective}"), tmp_path / "compiled")
    train(tiny(f"--objective={objective}", "--trainer.compile=false"), tmp_path / "plain")
    assert losses(tmp_path / "compiled") == pytest.approx(losses(tmp_path / "plain"), rel=1e-3)
    assert Run.open(tmp_path / "compiled").environment()["compiled"] == "blocks"


def test_training_goes_on_where_compiling_fails(tmp_path, calls, monkeypatch):
    def broken(*_):
        raise OSError("Python.h: no such file\nand much more")

    monkeypatch.setattr(torch, "compile", lambda function, backend: broken)
    notes = []
    train(tiny(), tmp_path / "run", listener=Listener(note=notes.append))
    assert 'the blocks of the model are not compiled: "Python.h: no such file"' in notes
    train(tiny("--trainer.compile=false"), tmp_path / "plain")
    assert losses(tmp_path / "run") == losses(tmp_path / "plain")


def test_what_is_compiled_depends_on_the_operations_of_the_run(monkeypatch):
    def chosen(*flags, steps=6, device="cpu", without=()):
        recipe = read_recipe(recipe_text("path-star-small"), [flag for flag in [*TINY, *flags] if flag not in without])
        task = make_task(recipe)
        objective = make_objective(recipe, task)
        first = Stream(task, seed=0, batch_size=recipe.trainer.batch_size).batches(0, 1)
        return what_to_compile(recipe.trainer, objective, first, steps, device)

    monkeypatch.setattr(compilation, "has_compiler", lambda: True)
    many = 10**12
    assert chosen() == "nothing"
    assert chosen(steps=many) == "blocks"
    assert chosen(steps=many, device="cuda") == "nothing"
    assert chosen("--trainer.compile=true") == "whole"
    assert chosen("--trainer.compile=false", steps=many) == "nothing"
    assert chosen("--trainer.devices=2", steps=many) == "nothing"
    assert chosen("--backbone=recurrent", steps=many, without=["--backbone.heads=2"]) == "nothing"
    monkeypatch.setattr(compilation, "has_compiler", lambda: False)
    assert chosen(steps=many) == "nothing"


def test_a_run_from_before_blocks_were_compiled_goes_on(tmp_path, calls, monkeypatch):
    train(tiny("--trainer.compile=false"), tmp_path / "run")
    monkeypatch.setattr(compilation, "PAYS_FROM", 0)
    assert train_or_resume(tiny(), tmp_path / "run") is None
    seeds.write_group(tmp_path / "group", tiny("--trainer.compile=false"), [1])
    assert not seeds.has_other_recipe(tmp_path / "group", tiny())
    seeds.check_same(tmp_path / "group", tiny(), [1])
    assert seeds.has_other_recipe(tmp_path / "group", tiny("--trainer.clip=2"))
