"""Drift of learned dynamics: the same means, position by position, from the definitions."""

import numpy as np
import pytest
import torch
from doubles import TINY_BACKBONES, FixedTask, random_examples, spread_weights, subject, tiny_objective

from statewise.analysis import make_analysis
from statewise.data_types import Batch, LacksCapability


def slowly(objective, examples, steps):
    backbone, found = objective.backbone, {}
    for tokens, length in zip(torch.from_numpy(examples.tokens), examples.lengths.tolist()):
        states, readouts = (each[0] for each in backbone.encode(Batch.plain(tokens[None, :length])))
        for start in range(length):
            state = states[start]
            for step in range(1, min(steps, length - 1 - start) + 1):
                state = objective.dynamics(state, backbone.embed(tokens[start + step]))
                true = states[start + step]
                read = backbone.state_for_head(state), readouts[start + step]
                drafted, wanted = (backbone.logits(one).softmax(-1) for one in read)
                gap = (state - true).abs()
                found.setdefault(step, []).append(
                    [
                        float(torch.where(gap < 1, gap**2 / 2, gap - 0.5).mean()),
                        float((wanted * (wanted / drafted).log()).sum()),
                        float(state.square().sum().sqrt()),
                        float(drafted.argmax() == wanted.argmax()),
                        1 - float((drafted - wanted).abs().sum()) / 2,
                    ]
                )
    return {step: np.mean(values, 0) for step, values in found.items()}


@pytest.mark.parametrize("make_backbone", TINY_BACKBONES.values(), ids=TINY_BACKBONES)
@torch.no_grad()
def test_drift_is_that_of_the_definitions(make_backbone):
    objective = tiny_objective("next_latent", make_backbone=make_backbone, horizon=1).eval()
    spread_weights(objective)
    examples = random_examples(np.random.default_rng(0), n=3)
    found = make_analysis("rollout-drift", steps=20).analyze(subject(objective.predictor(), FixedTask(examples)))
    expected = slowly(objective, examples, 20)
    assert sorted(expected) == list(range(1, 10))
    for step, values in expected.items():
        names = ("latent", "kl", "norm", "greedy", "sampled")
        assert [found.metrics[f"step_{step}_{name}"] for name in names] == pytest.approx(values, rel=1e-3, abs=1e-6)
    assert len(found.metrics) == 5 * 9 + 1


def test_models_without_dynamics_are_refused():
    with pytest.raises(LacksCapability, match="latent dynamics"):
        make_analysis("rollout-drift").analyze(
            subject(tiny_objective("next_token").predictor(), FixedTask(random_examples(np.random.default_rng(0))))
        )
