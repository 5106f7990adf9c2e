"""Token order prediction against the definition of its target, one position at a time, gradients included."""

import pytest
import torch
from doubles import VOCABULARY, pack, random_batch, spread_weights, tiny_gpt, tiny_objective, tiny_two_stream
from torch.utils.flop_counter import FlopCounterMode

from statewise.data_types import Batch
from statewise.losses import vocabulary_head
from statewise.losses.targets import coming_tokens
from statewise.losses.vocabulary_head import head_function
from statewise.objectives.base import head_flops
from statewise.objectives.token_order import TokenOrderConfig

pytestmark = pytest.mark.usefixtures("float64")


def target(batch, b, t, window):
    """(V,): the softmax of window - distance over the tokens that come after t."""
    scores = torch.full((VOCABULARY,), -torch.inf)
    documents = batch.document_ids
    for distance in range(window, 0, -1):
        place = t + distance
        if place < batch.tokens.shape[1] and batch.scored[b, place] and documents[b, place] == documents[b, t]:
            scores[batch.tokens[b, place]] = window - distance
    return scores.softmax(0)


def slow_twin(objective, batch):
    readout = objective.backbone.encode(Batch.plain(batch.tokens, batch.documents)).readout
    following, order = [], []
    for b, t in torch.nonzero(batch.scored[:, 1:]).tolist():
        following.append(-objective.backbone.logits(readout[b, t]).log_softmax(-1)[batch.tokens[b, t + 1]])
        log_probs = (objective.order.weight @ readout[b, t]).log_softmax(-1)
        order.append(-(target(batch, b, t, objective.config.window) * log_probs).sum())
    return sum(following) / len(following), sum(order) / len(order)


@pytest.mark.parametrize("window", [1, 3, 40])
@pytest.mark.parametrize("make_backbone", [tiny_gpt, tiny_two_stream])
@pytest.mark.parametrize("packed", [False, True], ids=["apart", "packed"])
@pytest.mark.parametrize("blocks", [False, True], ids=["whole", "blocks"])
def test_loss_and_gradients_are_those_of_the_definition(monkeypatch, blocks, packed, make_backbone, window):
    if blocks:  # of 6 positions
        monkeypatch.setitem(vocabulary_head.BLOCK, "cpu", 70)
    objective = tiny_objective("token_order", make_backbone=make_backbone, window=window, order_weight=0.7)
    spread_weights(objective)
    batch = random_batch(longest=12)
    batch = pack(batch) if packed else batch
    loss, (following, order) = objective(batch), slow_twin(objective, batch)
    torch.testing.assert_close(loss.parts["next_token"].mean(), following)
    torch.testing.assert_close(loss.parts["order"].mean(), order)
    parameters = dict(objective.named_parameters())
    expected = torch.autograd.grad(following + 0.7 * order, parameters.values())
    for name, got, wanted in zip(parameters, torch.autograd.grad(loss.value(), parameters.values()), expected):
        torch.testing.assert_close(got, wanted, msg=lambda text, name=name: f"{name}: {text}")


def test_tokens_that_are_not_scored_are_no_targets():
    batch = random_batch(prompts=False)
    scored = batch.scored & (torch.arange(batch.tokens.shape[1]) % 3 != 1)
    batch = batch._replace(scored=scored)
    objective = tiny_objective("token_order", window=5)
    spread_weights(objective)
    torch.testing.assert_close(objective(batch).parts["order"].mean(), slow_twin(objective, batch)[1])


@pytest.mark.parametrize(("low", "high"), [(1, 4), (2, 3), (2, 30)])
def test_each_coming_token_is_found_once(low, high):
    batch = pack(random_batch(longest=12, n=6))
    T = batch.tokens.shape[1]
    found = coming_tokens(batch, 2, T - 1, low, high)
    for b in range(len(batch.tokens)):
        for t in range(2, T - 1):
            known, expected = set(), []
            for place in range(t + low, min(T, t + high + 1)):
                token = int(batch.tokens[b, place])
                inside = batch.scored[b, place] and batch.documents[b, place] == batch.documents[b, t]
                if inside and token not in known:
                    known.add(token)
                    expected.append((place - t - low, token))
            places = torch.nonzero(found.first[b, t - 2])[:, 0].tolist()
            assert [(place, int(found.tokens[b, t - 2, place])) for place in places] == expected


def test_a_wider_window_than_the_default_changes_nothing_that_float32_shows():
    batch = random_batch(longest=24, prompts=False)
    losses = []
    for window in (8, TokenOrderConfig().window, 24):
        objective = tiny_objective("token_order", window=window)
        spread_weights(objective)
        losses.append(objective(batch).parts["order"].mean())
    torch.testing.assert_close(losses[1], losses[2], rtol=1e-6, atol=0)
    assert abs(losses[0] / losses[2] - 1) > 1e-5


def test_the_best_order_of_distinct_tokens_is_an_exponential():
    batch = Batch.plain(torch.arange(8)[None])._replace(scored=torch.arange(8)[None] > 0, span=(1, 8))
    expected = torch.exp(-torch.arange(1.0, 8.0))
    tokens, first = coming_tokens(batch, 0, 1, 1, 7)
    assert (tokens.tolist(), bool(first.all())) == ([[[1, 2, 3, 4, 5, 6, 7]]], True)
    torch.testing.assert_close(target(batch, 0, 0, 16)[1:8], expected / expected.sum())
    assert [round(100 * share) for share in (expected / expected.sum()).tolist()[:5]] == [63, 23, 9, 3, 1]


def test_gradients_are_checked_against_finite_differences():
    readout, weight = torch.randn(5, 3).requires_grad_(), torch.randn(4, 3).requires_grad_()

    def cubes(logits, block):
        return (logits**3).sum(), 3 * logits**2

    torch.autograd.gradcheck(lambda *given: head_function(*given, cubes, rows=2), (readout, weight))


def test_a_step_costs_a_second_head():
    objective, plain = tiny_objective("token_order"), tiny_objective("next_token")
    batch = random_batch()
    assert objective.flops(batch) == plain.flops(batch) + 3 * head_flops(plain.backbone) * int(batch.scored.sum())
    full = random_batch(prompts=False)
    full = full._replace(
        real=torch.ones_like(full.real),
        scored=torch.ones_like(full.real).index_fill(1, torch.tensor([0]), False),
        span=(1, full.tokens.shape[1]),
    )
    counts = []
    for made in (objective, plain):
        with FlopCounterMode(display=False) as counter:
            made(full).value().backward()
        counts.append(counter.get_total_flops())
    assert objective.flops(full) - plain.flops(full) == counts[0] - counts[1]


def test_a_weight_or_window_of_nothing_is_refused():
    with pytest.raises(ValueError, match="order_weight"):
        tiny_objective("token_order", order_weight=0.0)
    with pytest.raises(ValueError, match="window"):
        tiny_objective("token_order", window=0)
