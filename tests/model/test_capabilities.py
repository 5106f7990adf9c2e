"""Who has a power is found by looking, and said where one is missing."""

import pytest
import torch

from statewise.backbones import BACKBONES
from statewise.backbones.nn.hooks import Hookable
from statewise.decoding.predictor import Carrier, GoalScorer, StateLimiter, SuffixEncoder
from statewise.model.building import read_recipe
from statewise.model.capabilities import model_has, naming_who_has, who_has
from statewise.model.loading import new_model
from statewise.tasks.base import Infilling, RunningText

TINY = ["--backbone.width=16", "--backbone.heads=2", "--backbone.layers=1", "--task.held_out_graphs=20"]


def test_models_and_tasks_are_found_by_what_they_are():
    before = torch.get_rng_state()
    assert who_has(GoalScorer) == "such are models of the objective belief_state, with default fields"
    assert who_has(SuffixEncoder) == who_has(GoalScorer)
    limiting = who_has(StateLimiter)
    assert limiting.startswith("such are models of the objectives next_token, next_latent")
    assert limiting.endswith(" on two_stream, with default fields")
    assert who_has(RunningText) == "such are the tasks stories and text"
    assert who_has(Infilling) == "such is the task stories"
    assert who_has(Hookable) == f"such are the backbones {', '.join([*BACKBONES][:-1])} and {[*BACKBONES][-1]}"
    assert who_has(int) == "none of ours is such"
    assert (torch.get_rng_state() == before).all()
    assert model_has("next_token", "belief_slots", Carrier)
    assert not model_has("next_token", "gpt", Carrier)


def test_a_model_without_a_power_is_told_which_have_it(tmp_path):
    model = new_model(read_recipe("{task: path_star, backbone: gpt, objective: next_token}", TINY))
    prompt = model.task.decode(model.task.held_out(1).prompt(0))
    with pytest.raises(ValueError, match="condition on it and score it: such are models of the objective belief_state"):
        model.generate([prompt], goal="1")
    with pytest.raises(ValueError, match=r"carries one from chunk to chunk: such are models of .* on belief_slots"):
        model.evaluate(4, protocol="fresh")
    (tmp_path / "prompts.txt").write_text(prompt)
    with pytest.raises(ValueError, match="reads backwards as well: such are models of the objective belief_state"):
        model.embed(tmp_path / "prompts.txt", prompts=True, of="suffix")


def test_other_errors_pass():
    with pytest.raises(ValueError, match=r"^something else$"), naming_who_has():
        raise ValueError("something else")
