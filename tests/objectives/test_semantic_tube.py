"""Semantic tube prediction against a loop over spans, gradients included."""

import pytest
import torch
from doubles import VOCABULARY, pack, random_batch, spread_weights, tiny_belief_slots, tiny_gpt, tiny_objective
from torch.nn import functional as F

from statewise.data_types import Batch
from statewise.losses.semantic_tube import bend

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
                        rest = whole - step
                        short = min(step.norm(), rest.norm()) < 1e-9
                        losses.append(1 - (0 if short else F.cosine_similarity(step, rest, dim=0)))
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
    batch = Batch.plain(tokens, torch.tensor([[1, 1, 2, 3, 3, 3, 4, 4, 0]]))
    objective = tiny_objective("semantic_tube")
    assert objective.counts(batch)["tube"] == 1
    states = torch.randn(1, 9, 5)
    torch.testing.assert_close(bend(states, batch), slow_bend(states, batch))


def test_a_straight_path_costs_nothing():
    batch = Batch.plain(torch.zeros(1, 6, dtype=torch.int64))
    straight = torch.arange(6.0)[:, None] * torch.tensor([1.0, -2.0, 0.5])
    torch.testing.assert_close(bend(straight[None], batch), torch.tensor(0.0))


@pytest.mark.parametrize("at", [(0, 1), (2, 4), (3, 7)])  # the last: nothing is left after the span from 0 to 3
def test_spans_between_equal_states_are_left_out(at):
    states, batch = torch.randn(2, 8, 70), Batch.plain(torch.zeros(2, 8, dtype=torch.int64))
    states[:, at[1]] = states[:, at[0]]
    found, wanted = states.clone().requires_grad_(), states.clone().requires_grad_()
    fast, slow = bend(found, batch), slow_bend(wanted, batch) * 2  # rows
    fast.backward()
    slow.backward()
    torch.testing.assert_close(fast, slow)
    torch.testing.assert_close(found.grad, wanted.grad)
    single = states.float().requires_grad_()
    bend(single, batch).backward()
    torch.testing.assert_close(single.grad.double(), wanted.grad, rtol=1e-3, atol=1e-5)


def test_float32_keeps_the_angles_between_close_states():
    batch = Batch.plain(torch.zeros(2, 40, dtype=torch.int64))
    states = 1 + 0.01 * torch.randn(2, 40, 64)
    torch.testing.assert_close(bend(states.float(), batch).double(), bend(states, batch), rtol=1e-4, atol=0)


def test_float32_takes_no_rounding_error_for_a_step():
    batch = Batch.plain(torch.zeros(1, 12, dtype=torch.int64))
    for _ in range(8):
        states = F.normalize(torch.randn(1, 12, 64), dim=-1) * 80
        states[:, 5] = states[:, 9] + 1e-4 * F.normalize(torch.randn(64), dim=0)
        found, wanted = states.float().requires_grad_(), states.clone().requires_grad_()
        loss = bend(found, batch)
        assert 0 <= loss <= 2
        torch.testing.assert_close(loss.double(), bend(wanted, batch), rtol=0, atol=0.04)  # of 65 spans one differs
        loss.backward()
        assert found.grad.norm() < 0.2  # the exact one is of a step that float32 does not see


def test_bfloat16_takes_no_rounding_error_for_a_step():
    tokens = torch.randint(VOCABULARY, (4, 16))
    tokens[:, :4] = tokens[:, :1]  # with rotary positions their states are equal
    batch, found = Batch.plain(tokens), []
    for dtype in (torch.float32, torch.float64):
        objective = tiny_objective("semantic_tube", backbone={"positions": "rope"})
        spread_weights(objective)
        objective = objective.to(dtype)
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.float32):
            loss = bend(objective.backbone.encode(batch).state, batch)
        loss.backward()
        gradients = [each.grad.double().flatten() for each in objective.parameters() if each.grad is not None]
        found.append((loss.double(), torch.cat(gradients)))
    (loss, gradient), (wanted, exact) = found
    torch.testing.assert_close(loss, wanted, rtol=0.05, atol=0)
    assert F.cosine_similarity(gradient, exact, dim=0) > 0.95


def test_a_weight_of_nothing_is_refused():
    with pytest.raises(ValueError, match="tube_weight"):
        tiny_objective("semantic_tube", tube_weight=0.0)
