"""Latent multi-token prediction against a loop over positions, gradients included."""

import pytest
import torch
from doubles import pack, random_batch, spread_weights, tiny_gpt, tiny_objective, tiny_recurrent
from torch.nn import functional as F

pytestmark = pytest.mark.usefixtures("float64")


def latent(objective, batch):
    """Of each further head the mean over positions of a smooth L1 distance per element."""
    trunk, group = objective.backbone.trunk(batch), batch.document_ids
    true = objective.backbone.last(trunk).readout.detach()
    means = []
    for steps, branch in enumerate(objective.branches, 1):
        readout, losses = branch(trunk), []
        for b in range(len(batch.tokens)):
            for t in range(batch.tokens.shape[1] - steps):
                if batch.real[b, t + steps] and group[b, t] == group[b, t + steps]:
                    losses.append(F.smooth_l1_loss(readout[b, t], true[b, t + steps]))
        means.append(sum(losses) / len(losses) if losses else torch.zeros(()))
    return sum(means) / len(means)


@pytest.mark.parametrize("make_backbone", [tiny_gpt, tiny_recurrent])
@pytest.mark.parametrize("packed", [False, True], ids=["apart", "packed"])
@pytest.mark.parametrize("horizon", [1, 3, 20])
def test_loss_and_gradients_are_those_of_the_definition(horizon, packed, make_backbone):
    settings = {"make_backbone": make_backbone, "horizon": horizon, "ahead_weight": 0.5}
    objective = tiny_objective("latent_multi_token", latent_weight=0.3, **settings)
    plain = tiny_objective("multi_token", **settings)
    spread_weights(objective)
    plain.load_state_dict(objective.state_dict())
    batch = random_batch(longest=8)
    batch = pack(batch) if packed else batch
    loss, expected = objective(batch), plain(batch)
    for name, part in expected.parts.items():
        torch.testing.assert_close(loss.parts[name], part)
    slow = latent(objective, batch)
    torch.testing.assert_close(loss.parts["latent"].mean(), slow)
    (0.3 * slow).backward()
    expected.value().backward()
    loss_gradients = torch.autograd.grad(loss.value(), objective.parameters())
    for got, one, other in zip(loss_gradients, objective.parameters(), plain.parameters()):
        torch.testing.assert_close(got, other.grad + (0 if one.grad is None else one.grad))


def test_its_products_are_those_of_multi_token_prediction():
    batch = random_batch()
    objectives = [tiny_objective(name, horizon=2) for name in ("multi_token", "latent_multi_token")]
    assert objectives[0].flops(batch) == objectives[1].flops(batch)


def test_a_weight_of_nothing_is_refused():
    with pytest.raises(ValueError, match=r"latent_weight must be above 0.*multi_token"):
        tiny_objective("latent_multi_token", latent_weight=0.0)
