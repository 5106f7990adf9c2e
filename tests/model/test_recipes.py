"""Error messages name the tasks, backbones and models that have what another lacks."""

from collections import defaultdict
from functools import partial

import pytest
import torch

from statewise.backbones import BACKBONES
from statewise.backbones.capabilities import Pretrained
from statewise.backbones.nn.hooks import Hookable
from statewise.decoding import predictor as interface
from statewise.model.model import new_model
from statewise.model.recipes import MODELS, explaining_missing_capability, read_recipe, who_has
from statewise.objectives import OBJECTIVES
from statewise.objectives.predictors import CausalPredictor
from statewise.runtime.messages import series
from statewise.tasks.base import Infilling, RunningText

TINY = ["--backbone.width=16", "--backbone.heads=2", "--backbone.layers=1", "--task.held_out_graphs=20"]
CAPABILITIES = {name: getattr(interface, name, CausalPredictor) for name in MODELS}


def small(name, *, extra_tokens=0, embedding_of=None, **fields):
    kind = BACKBONES[name]
    config = kind.Config(**{"layers": 1, **fields})
    return kind(config, vocabulary=8 + extra_tokens, context=1024, embedding_of=embedding_of)


@pytest.fixture(scope="module")
def predictors():
    """By objective and backbone, with default fields, where the two go together."""
    found = {}
    for backbone in BACKBONES:
        if issubclass(BACKBONES[backbone], Pretrained):  # it needs a model first
            continue
        for objective in OBJECTIVES:
            kind = OBJECTIVES[objective]
            try:
                found[objective, backbone] = kind(kind.Config(), partial(small, backbone)).predictor()
            except ValueError:
                found[objective, backbone] = None
    return found


def _has(predictor, kind):
    return predictor is not None and predictor.capability(kind) is not None


@pytest.mark.parametrize("name", MODELS)
def test_the_table_says_what_models_can_do(name, predictors):
    """Objectives that have the capability on the same backbones are named together; first those on all backbones."""
    backbones = list(dict.fromkeys(backbone for _, backbone in predictors))
    groups = defaultdict(list)
    for objective in OBJECTIVES:
        having = [one for one in backbones if _has(predictors[objective, one], CAPABILITIES[name])]
        groups[tuple(having)].append(objective)
    phrases = []
    for having, objectives in groups.items():
        if having:
            kind = "objectives" if len(objectives) > 1 else "objective"
            alone = "" if len(having) == len(backbones) else f" on {series(having, 'or')}"
            phrases.append(f"the {kind} {series(objectives)}{alone}")
    assert MODELS[name] == ", or ".join(phrases)


def test_every_capability_of_predictors_is_in_the_table():
    kinds = [value for value in vars(interface).values() if getattr(value, "__module__", "") == interface.__name__]
    own = {kind.__name__ for kind in kinds if getattr(kind, "__abstractmethods__", ())}
    assert own - {"Predictor"} == MODELS.keys() - {"CausalPredictor"}


def test_who_has_a_capability_is_said_in_words():
    before = torch.get_rng_state()
    assert who_has(interface.GoalScorer) == "such models, with default fields, have the objective belief_state"
    assert who_has(RunningText) == "such tasks are stories and text"
    assert who_has(Infilling) == "such a task is stories"
    assert who_has(Hookable) == f"such backbones are {', '.join([*BACKBONES][:-1])} and {[*BACKBONES][-1]}"
    assert who_has(int) == "none of ours has this capability"
    assert (torch.get_rng_state() == before).all()


def test_a_model_that_lacks_a_capability_is_told_which_have_it(tmp_path):
    model = new_model(read_recipe("{task: path_star, backbone: gpt, objective: next_token}", TINY))
    prompt = model.task.decode(model.task.held_out(1).prompt(0))
    with pytest.raises(ValueError, match=r"condition on a goal and score it: such models, .* objective belief_state"):
        model.generate([prompt], goal="1")
    with pytest.raises(ValueError, match=r"carries one from chunk to chunk: such models, .* on belief_slots"):
        model.evaluate(4, protocol="fresh")
    (tmp_path / "prompts.txt").write_text(prompt)
    with pytest.raises(ValueError, match=r"reads backwards as well: such models, .* the objective belief_state"):
        model.embed(tmp_path / "prompts.txt", prompts=True, of="suffix")


def test_other_errors_pass():
    with pytest.raises(ValueError, match=r"^something else$"), explaining_missing_capability():
        raise ValueError("something else")
