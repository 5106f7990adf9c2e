"""Trained models as predictors of whole actions, of several objectives and backbones."""

import itertools
import json

import numpy as np
import pytest
import torch
from doubles import spread_weights

from statewise.data_types import Examples
from statewise.extraction import SequencePredictor
from statewise.model.model import new_model
from statewise.model.recipes import read_recipe
from statewise.strips import domain
from statewise.tasks.batches import collate

GPT = {"name": "gpt", "width": 16, "layers": 1, "heads": 2}
WALKS = {"name": "strips_traces", "domain": "blocksworld:2", "max_length": 8, "held_out_traces": 5}


def model_of(task, objective="next_token", backbone=GPT):
    model = new_model(read_recipe(json.dumps({"task": task, "backbone": backbone, "objective": objective})))
    spread_weights(model.objective)
    return model


@pytest.mark.parametrize(
    ("objective", "backbone"),
    [
        ("next_token", GPT),
        ("next_token", {"name": "recurrent", "cell": "lstm", "width": 16, "layers": 1}),
        ("next_latent", GPT),
        ("belief_state", GPT),
    ],
)
def test_actions_have_the_probabilities_of_their_tokens(objective, backbone):
    model = model_of(WALKS, objective, backbone)
    rows = [(0, 3, 5), (2,), (7, 1, 1, 4)]
    with model.asking() as inference:
        predictor = SequencePredictor(model, inference)
        found = predictor.log_probabilities(rows)
        batch = collate(Examples.of([np.array(row) for row in rows], [1] * 3))
        with torch.no_grad():
            logs = inference.logits(batch).double().log_softmax(-1)
    assert predictor.actions == domain("blocksworld:2").model.names
    assert (predictor.longest, predictor.truth.name) == (7, "blocksworld:2")
    for place, row in enumerate(rows):
        np.testing.assert_allclose(found[place], logs[place, len(row) - 1], atol=1e-5)


def test_walks_begin_as_sequences_of_the_task_do():
    model = model_of(WALKS)
    with model.asking() as inference:
        begun = SequencePredictor(model, inference).begin(np.random.default_rng(0), 50)
    task = model.task
    drawn = [task.sample(np.random.default_rng(1), 200), task.held_out()]
    assert {each[0] for each in begun} <= {int(row[0]) for examples in drawn for row in examples.tokens}
    assert all(len(each) == 1 for each in begun)


@pytest.fixture
def logs(tmp_path):
    """A task whose actions are two words each, a token a word."""
    path = tmp_path / "walks.txt"
    path.write_text("go a go b stop a\ngo b stop a go a\nstop a go b go a\n" * 10)
    return {"name": "sequences", "path": str(path)}


def test_an_action_of_several_tokens_has_the_product_of_their_probabilities(logs):
    model = model_of(logs)
    names = ["go a", "go b", "stop a"]
    with model.asking() as inference:
        predictor = SequencePredictor(model, inference, names)
        found = predictor.log_probabilities([(0,), (1, 2)])
        assert predictor.truth is None
        assert predictor.longest == (model.task.context - 2) // 2

        def after(text):
            with torch.no_grad():
                return inference.logits(model.batch([text]))[0, -1].double().log_softmax(-1)

        for (place, prefix), (at, name) in itertools.product(enumerate(["go a", "go b stop a"]), enumerate(names)):
            verb, thing = (model.task.vocab.ids[word] for word in name.split())
            whole = after(prefix)[verb] + after(f"{prefix} {name.split()[0]}")[thing]
            assert found[place, at] == pytest.approx(float(whole), abs=1e-5)
    assert len(set(predictor.begin(np.random.default_rng(0), 100))) == 3


def test_symbols_are_the_actions_unless_they_are_named(logs):
    model = model_of(logs)
    with model.asking() as inference:
        assert set(SequencePredictor(model, inference).actions) == {"go", "stop", "a", "b"}


def test_tasks_whose_symbols_cannot_stand_side_by_side_are_refused():
    model = model_of({"name": "path_star"})
    with model.asking() as inference, pytest.raises(ValueError, match="one symbol for each action"):
        SequencePredictor(model, inference)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["go", "go a"], "begin those of"),
        (["go a", "jump a"], "jump"),
        (["go a"], "at least two"),
        (["go a", "go a"], "different names"),
        (["a", "b"], "no sequence"),
    ],
)
def test_actions_that_do_not_fit_are_refused(logs, names, said):
    model = model_of(logs)
    with model.asking() as inference, pytest.raises(ValueError, match=said):
        SequencePredictor(model, inference, names)
