"""Learned dynamics against their definitions, sequence by sequence and step by step: accuracy and drift."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from doubles import (
    TINY_BACKBONES,
    VOCABULARY,
    FixedTask,
    MarkovPredictor,
    random_examples,
    spread_weights,
    subject,
    tiny_objective,
)
from torch import nn

from statewise.analysis import make_analysis
from statewise.data_types import Batch, Hidden, LacksCapability
from statewise.decoding.predictor import StateDynamics
from statewise.tasks.state_tracking.task import StateTracking, StateTrackingConfig


def s3(**fields):
    return StateTracking(StateTrackingConfig("s3", length=12, longest=48, held_out_sequences=24, **fields))


def sizes(task):
    return {"extra_tokens": len(task.vocab) - VOCABULARY, "context": task.context}


def model(task):
    objective = tiny_objective("next_latent", backbone=sizes(task), horizon=1).eval()
    spread_weights(objective)
    return objective


def slowly(objective, examples, read):
    """(tokens before it, dynamics right, backbone right) of each scored token."""
    backbone, found = objective.backbone, []
    for row, length in enumerate(examples.lengths.tolist()):
        tokens = torch.from_numpy(examples.tokens[row, :length])
        states, readouts = (each[0] for each in backbone.encode(Batch.plain(tokens[None])))
        state = states[read - 1]
        for place in range(read, length - 1):
            state = objective.dynamics(state, backbone.embed(tokens[place]))
            if examples.scored[row, place + 1]:
                guesses = backbone.logits(backbone.state_for_head(state)), backbone.logits(readouts[place])
                found.append((place + 1, *(bool(guess.argmax() == tokens[place + 1]) for guess in guesses)))
    return np.array(found)


@pytest.mark.parametrize("ask", ["reveals", "query"])
@pytest.mark.parametrize("read", [1, 3])
@torch.no_grad()
def test_accuracies_are_those_of_single_steps(ask, read):
    task = s3(ask=ask, min_length=5)
    objective = model(task)
    found = make_analysis("dynamics-accuracy", read=read, sequences=24).analyze(subject(objective.predictor(), task))
    expected = {"": slowly(objective, task.held_out(), read)}
    for length in (24, 48):
        expected[f"_length_{length}"] = slowly(objective, task.held_out_by("length", str(length), 24), read)
    expected["_other"] = np.concatenate([expected["_length_24"], expected["_length_48"]])
    for suffix, rows in expected.items():
        assert found.metrics[f"dynamics{suffix}"] == pytest.approx(rows[:, 1].mean())
        assert found.metrics[f"backbone{suffix}"] == pytest.approx(rows[:, 2].mean())
    assert len(found.metrics) == 8
    assert found.details["answers"] == {
        "test set": len(expected[""]),
        "24": len(expected["_length_24"]),
        "48": len(expected["_length_48"]),
    }
    curves = {curve.label: curve for curve in found.panels[0].curves}
    assert curves["length of training"].x == [12.0, 12.0]
    every = np.concatenate([expected[""], expected["_other"]])
    pool = (every[:, 0] - every[:, 0].min()) // -(-np.ptp(every[:, 0]) // 31)
    for label, column in (("dynamics alone", 1), ("backbone", 2)):
        kept = [every[pool == one] for one in np.unique(pool)]
        assert curves[label].x == pytest.approx([rows[:, 0].mean() for rows in kept])
        assert curves[label].y == pytest.approx([rows[:, column].mean() for rows in kept])
    assert curves["chance"].y == [task.chance["accuracy"]] * 2


class Parity(MarkovPredictor, StateDynamics):
    """Dynamics that count the bits of parity exactly, and a backbone that always gives the first answer."""

    def __init__(self, task):
        self.symbols = list(task.vocab.symbols)
        self.answers = [number for number, name in enumerate(self.symbols) if name not in ("0", "1", "=")]

    def states(self, batch):
        state = (batch.tokens == self.symbols.index("1")).cumsum(1)[..., None].float()
        return Hidden(state, state)

    def logits(self, batch):
        return nn.functional.one_hot(torch.full_like(batch.tokens, self.answers[0]), len(self.symbols)).float()

    def advance(self, states, tokens):
        return states + (tokens == self.symbols.index("1"))[:, None]

    def read_states(self, states):
        right = torch.tensor(self.answers)[states[:, 0].long() % 2]
        return nn.functional.one_hot(right, len(self.symbols)).float()


def test_exact_dynamics_answer_every_question_and_one_answer_half_of_them():
    task = StateTracking(StateTrackingConfig("parity", ask="query", length=16, longest=64, held_out_sequences=200))
    found = make_analysis("dynamics-accuracy").analyze(subject(Parity(task), task)).metrics
    assert found["dynamics"] == found["dynamics_other"] == found["dynamics_length_64"] == 1
    assert 0.3 < found["backbone"] < 0.7


def test_another_test_set_can_be_chosen():
    task = s3()
    predictor = model(task).predictor()
    found = make_analysis("dynamics-accuracy", by="length=20, 30", sequences=5).analyze(subject(predictor, task))
    assert {"dynamics_length_20", "dynamics_length_30"} <= set(found.metrics)
    found = make_analysis("dynamics-accuracy", by="reveals=0.02").analyze(subject(predictor, task))
    assert set(found.metrics) == {"dynamics", "backbone", "dynamics_other", "backbone_other"}
    assert "length of training" not in {curve.label for curve in found.panels[0].curves}
    with pytest.raises(ValueError, match="4 to 48 tokens"):
        make_analysis("dynamics-accuracy", by="length=100").analyze(subject(predictor, task))


@pytest.mark.parametrize("by", ["length", "=3", "length=", " = "])
def test_a_test_set_needs_an_option_and_a_value(by):
    with pytest.raises(ValueError, match="such as length=64,128"):
        make_analysis("dynamics-accuracy", by=by)


def test_what_cannot_be_rolled_is_refused():
    task = s3()
    plain = tiny_objective("next_token", backbone=sizes(task)).predictor()
    with pytest.raises(LacksCapability, match="latent dynamics"):
        make_analysis("dynamics-accuracy").analyze(subject(plain, task))
    rolled = model(task).predictor()
    with pytest.raises(ValueError, match=r"at most 12 tokens.*read, 40"):
        make_analysis("dynamics-accuracy", read=40).analyze(subject(rolled, task))
    with pytest.raises(ValueError, match="held-out set `words` 20"):
        make_analysis("dynamics-accuracy", by="words=20").analyze(subject(rolled, task))
    packed = random_examples(np.random.default_rng(0))
    packed = replace(packed, documents=np.ones_like(packed.tokens))
    with pytest.raises(ValueError, match="several documents"):
        make_analysis("dynamics-accuracy").analyze(subject(rolled, FixedTask(packed)))


def drift_slowly(objective, examples, steps):
    """For each number of steps, means of: distance, divergence, norm, agreement greedy and sampled."""
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
    expected = drift_slowly(objective, examples, 20)
    assert sorted(expected) == list(range(1, 10))
    for step, values in expected.items():
        names = ("latent", "kl", "norm", "greedy", "sampled")
        assert [found.metrics[f"step_{step}_{name}"] for name in names] == pytest.approx(values, rel=1e-3, abs=1e-6)
    assert len(found.metrics) == 5 * 9 + 1


def test_drift_needs_dynamics():
    with pytest.raises(LacksCapability, match="latent dynamics"):
        make_analysis("rollout-drift").analyze(
            subject(tiny_objective("next_token").predictor(), FixedTask(random_examples(np.random.default_rng(0))))
        )
