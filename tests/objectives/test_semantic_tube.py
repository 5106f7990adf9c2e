"""Semantic tube prediction against a loop over spans, gradients included."""

import pytest
import torch
from doubles import pack, random_batch, spread_weights, tiny_belief_slots, tiny_gpt, tiny_objective
from torch.nn import functional as F

from statewise.backbones.base import plain_batch
from statewise.objectives.semantic_tube import bend

pytestmark = pytest.mark.usefixtures("float64")


def slow_bend(states, batch):
    """The mean over documents of the mean over spans."""
    found, group = [], batch.document_ids
    for b in range(len(states)):
        for number in group[b].unique().tolist():
            path = states[b, group[b] == number]
            if not number or len(path) < 3:
                continue
            whole, losses = path[-1] - path[0], []
            for t in range(1, len(path)):
                for s in range(t):
                    if t - s < len(path) - 1:
                        step = path[t] - path[s]
                        losses.append(1 - F.cosine_similarity(step, whole - step, dim=0))
            found.append(sum(losses) / len(losses))
    return sum(found) / len(found)


@pytest.mark.parametrize("make_backbone", [tiny_gpt, tiny_belief_slots])
@pytest.mark.parametrize("packed", [False, True], ids=["apart", "packed"])
def test_loss_and_gradients_are_those_of_the_definition(packed, make_backbone):
    objective = tiny_objective("semantic_tube", make_backbone=make_backbone, tube_weight=0.4)
    plain = tiny_objective("next_token", make_backbone=make_backbone)
    spread_weights(objective)
    plain.load_state_dict(objective.state_dict())
    batch = random_batch(longest=9)
    batch = pack(batch) if packed else batch
    loss = objective(batch)
    torch.testing.assert_close(loss.parts["next_token"], plain(batch).parts["next_token"])
    slow = slow_bend(plain.backbone.encode(batch).state, batch)
    torch.testing.assert_close(loss.parts["tube"].mean(), slow)
    expected = torch.autograd.grad(plain(batch).value() + 0.4 * slow, list(plain.parameters()))
    for got, wanted in zip(torch.autograd.grad(loss.value(), list(objective.parameters())), expected):
        torch.testing.assert_close(got, wanted)


def test_short_documents_have_no_span():
    tokens = torch.zeros(1, 9, dtype=torch.int64)
    batch = plain_batch(tokens, torch.tensor([[1, 1, 2, 3, 3, 3, 4, 4, 0]]))
    objective = tiny_objective("semantic_tube")
    assert objective.counts(batch)["tube"] == 1
    states = torch.randn(1, 9, 5)
    torch.testing.assert_close(bend(states, batch), slow_bend(states, batch))


def test_a_straight_path_costs_nothing_and_coinciding_states_give_no_gradient():
    batch = plain_batch(torch.zeros(1, 6, dtype=torch.int64))
    straight = torch.arange(6.0)[:, None] * torch.tensor([1.0, -2.0, 0.5])
    torch.testing.assert_close(bend(straight[None], batch), torch.tensor(0.0))
    still = torch.ones(1, 6, 3, requires_grad=True)
    bend(still, batch).backward()
    assert torch.equal(still.grad, torch.zeros_like(still))


def test_float32_keeps_the_angles_between_close_states():
    batch = plain_batch(torch.zeros(2, 40, dtype=torch.int64))
    states = 1 + 0.01 * torch.randn(2, 40, 64)
    torch.testing.assert_close(bend(states.float(), batch).double(), bend(states, batch), rtol=1e-4, atol=0)


def test_a_weight_of_nothing_is_refused():
    with pytest.raises(ValueError, match="tube_weight"):
        tiny_objective("semantic_tube", tube_weight=0.0)
