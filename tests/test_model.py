"""A model with its task, asked through functions that take a predictor."""

from types import SimpleNamespace

import pytest
import torch
from doubles import SMALL_RUN

from statewise.building import read_recipe
from statewise.loading import new_model
from statewise.recipes import recipe_text
from statewise.tasks.base import running_text


@pytest.fixture
def model():
    flags = [*SMALL_RUN, "--task.held_out_graphs=20", "--backbone.dropout=0.5"]
    return new_model(read_recipe(recipe_text("path-star-small"), flags))


def test_asking_gives_the_predictor_in_evaluation_mode(model):
    batch = model.batch([next(iter(model.task.lines(model.task.held_out(1))))])
    model.objective.train()
    with model.asking() as predictor:
        torch.testing.assert_close(predictor.states(batch).state, model.states(batch).state)
    assert not model.objective.training


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_asking_computes_in_the_precision_of_the_run(model, precision):
    model.run = SimpleNamespace(precision=lambda: precision)
    with model.asking():
        assert torch.is_autocast_enabled("cpu") == (precision == "bf16")
    assert not torch.is_autocast_enabled("cpu")


def test_asking_says_who_has_a_power_that_is_missing(model):
    with pytest.raises(ValueError, match="such are the tasks stories and text"), model.asking():
        running_text(model.task)
