"""The scripts of `examples` run; those that show a component are tested by test_docs.py and test_theory.py."""

import sys

import pytest
from pages import ROOT, example, run_code

import statewise


@pytest.fixture
def script(monkeypatch):
    """The names that a script defines when it is imported, from its folder."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    monkeypatch.delitem(sys.modules, "own_task", raising=False)
    return lambda name: run_code(example(name), f"{name}.py", {"__name__": name})


def test_a_task_of_ones_own_is_learned(script, capsys):
    names = script("own_task")
    assert names["main"](steps=80) > 0.4  # chance is about 1/30
    assert "7 12 ? " in capsys.readouterr().out


def test_belief_losses_are_compared(script, monkeypatch, capsys):
    train, few = statewise.train, {"task.held_out_sequences": 20, "task.length": 8, "batch_size": 8}
    monkeypatch.setattr(statewise, "train", lambda *recipe, **fields: train(*recipe, **{**fields, **few}))
    found = script("belief_loss")["main"](steps=3)
    assert set(found) == {"next_token", "next_latent"}
    said = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in said] == list(found)
    assert all(0 < r2 <= 1 and f"R^2 {r2:.2f}" in line for r2, line in zip(found.values(), said, strict=True))


def test_a_strips_model_is_learned_and_proven(script, capsys):
    pytest.importorskip("pysat", reason="needs the extra planning")
    assert script("strips_from_traces")["main"]() == "equivalent"
    said = capsys.readouterr().out
    assert said.startswith("sail\n  pre  ")
    assert said.endswith("equivalent, proven for all instances\n")


def test_a_loop_of_ones_own_trains_with_a_belief_loss(script, capsys):
    parts = script("own_loop")["main"](steps=60)
    assert set(parts) == {"next_token", "latent", "kl"}
    assert parts["next_token"] < 0.68  # chance is ln 2 = .69
    assert "step 60: next_token" in capsys.readouterr().out


def test_the_trainer_of_transformers_trains_with_a_belief_loss(script):
    pytest.importorskip("transformers")
    assert script("own_trainer")["main"](steps=20) < 2  # chance is ln 8 = 2.08
