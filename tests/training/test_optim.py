import itertools

import pytest
import torch
from doubles import tiny_objective

from statewise.config import TrainerConfig
from statewise.training.optim import learning_rate, make_optimizer


def rates(**fields):
    config = TrainerConfig(**{"learning_rate": 1.0, "warmup_steps": 4, "steps": 20, **fields})
    return [learning_rate(step, config) for step in range(config.steps)]


def test_linear_warms_up_stays_and_decays():
    found = rates(decay_share=0.25, final_rate=0.1)
    assert found[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert found[4:16] == [1.0] * 12
    assert found[15:] == pytest.approx([1.0, 0.82, 0.64, 0.46, 0.28])


def test_without_a_decay_the_rate_stays():
    assert rates(decay_share=0.0)[4:] == [1.0] * 16


def test_cosine_falls_to_the_final_rate():
    found = rates(schedule="cosine", final_rate=0.1)
    assert found[4] == pytest.approx(1.0)
    assert found[12] == pytest.approx(0.55)
    assert 0.1 < found[-1] < 0.12
    assert all(a >= b for a, b in itertools.pairwise(found[4:]))


def test_decay_touches_matrices_alone():
    objective = tiny_objective("next_latent", backbone={"bias": True, "norm": "layer"})
    groups = make_optimizer(objective, TrainerConfig(weight_decay=0.3)).param_groups
    decayed, kept = ({id(p) for p in group["params"]} for group in groups)
    assert [group["weight_decay"] for group in groups] == [0.3, 0.0]
    for name, parameter in objective.named_parameters():
        vector = "norm" in name or name.endswith("bias")
        assert (id(parameter) in kept) == vector, name
        assert (id(parameter) in decayed) != vector, name
    assert isinstance(make_optimizer(objective, TrainerConfig()), torch.optim.AdamW)
