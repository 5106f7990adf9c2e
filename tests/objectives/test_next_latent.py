"""The rollout against a loop written straight from the equations, gradients included."""

import pytest
import torch
from doubles import pack, random_batch, spread_weights, tiny_objective
from torch.nn import functional as F

from statewise.backbones.base import plain_batch
from statewise.objectives.next_latent import NextLatentConfig

pytestmark = pytest.mark.usefixtures("float64")


def slow_twin(objective, batch):
    """Equations 3 to 5 one source position, one step, one sequence at a time."""
    config, backbone, dynamics = objective.config, objective.backbone, objective.dynamics
    states = backbone.encode(plain_batch(batch.tokens, batch.documents)).state
    head = backbone.logits
    B, T = batch.tokens.shape
    documents = batch.documents if batch.documents is not None else torch.ones_like(batch.tokens)
    token_losses, latent, kl = [], [[] for _ in range(config.horizon)], [[] for _ in range(config.horizon)]
    for b in range(B):
        for t in range(T - 1):
            if batch.scored[b, t + 1]:
                token_losses.append(F.cross_entropy(head(states[b, t]), batch.tokens[b, t + 1]))
            rolled = states[b, t]
            for i in range(1, config.horizon + 1):
                s = t + i
                if s >= T or not batch.real[b, s] or documents[b, s] != documents[b, t]:
                    break
                rolled = dynamics(rolled, backbone.embed(batch.tokens[b, s]))
                target = states[b, s].detach() if config.stop_gradient else states[b, s]
                difference = (target - rolled).abs()
                latent[i - 1].append(torch.where(difference < 1, 0.5 * difference**2, difference - 0.5).mean())
                if s + 1 < T and batch.scored[b, s + 1]:
                    frozen = {"frozen": True}
                    p = head(target, **frozen).log_softmax(-1)
                    q = head(rolled, **frozen).log_softmax(-1)
                    kl[i - 1].append((p.exp() * (p - q)).sum())

    def mean(values):
        return sum(values) / len(values) if values else torch.zeros(())

    return {
        "next_token": mean(token_losses),
        "latent": sum(mean(values) for values in latent) / config.horizon,
        "kl": sum(mean(values) for values in kl) / config.horizon,
    }


SETTINGS = [
    {"horizon": 1},
    {"horizon": 3},
    {"horizon": 20},  # longer than any sequence
    {"horizon": 3, "stop_gradient": False},
    {"horizon": 2, "latent_weight": 2.0, "kl_weight": 0.1},
    {"horizon": 2, "dynamics_norm": "layer", "dynamics_factor": 0.75},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("packed", [False, True], ids=["apart", "packed"])
def test_loss_and_gradients_are_those_of_the_equations(settings, packed):
    objective = tiny_objective("next_latent", **settings)
    spread_weights(objective)
    batch = random_batch(longest=7)
    batch = pack(batch) if packed else batch
    loss, slow = objective(batch), slow_twin(objective, batch)
    for name, part in loss.parts.items():
        torch.testing.assert_close(part.mean(), slow[name])
    config = objective.config
    total = slow["next_token"] + config.latent_weight * slow["latent"] + config.kl_weight * slow["kl"]
    parameters = dict(objective.named_parameters())
    fast_gradients = torch.autograd.grad(loss.value(), parameters.values())
    for name, got, expected in zip(parameters, fast_gradients, torch.autograd.grad(total, parameters.values())):
        torch.testing.assert_close(got, expected, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize(
    ("width", "factor", "hidden"),
    # The authors' widths: Manhattan, Countdown, path-star, TinyStories, A5, FineWeb-Edu; then small ones.
    [(384, 2.0, 1536), (768, 0.5, 768), (384, 0.5, 384), (768, 1.333, 2048), (512, 1.0, 1024), (2048, 1.6, 6528),
     (96, 0.5, 96), (192, 0.5, 192), (16, 0.5, 16), (1, 0.5, 8), (96, 1.333, 256)],
)  # fmt: skip
def test_the_dynamics_are_as_wide_as_the_factor_says(width, factor, hidden):
    assert NextLatentConfig(dynamics_factor=factor).hidden_width(width) == hidden


@pytest.mark.parametrize("factor", [0.0, -1.0, float("nan"), float("inf")])
def test_a_factor_of_nothing_is_refused(factor):
    with pytest.raises(ValueError, match="dynamics_factor must be"):
        NextLatentConfig(dynamics_factor=factor)


def test_ablations_drop_their_part():
    batch = random_batch()
    assert set(tiny_objective("next_latent", latent_weight=0.0)(batch).parts) == {"next_token", "kl"}
    assert set(tiny_objective("next_latent", kl_weight=0.0)(batch).parts) == {"next_token", "latent"}
    with pytest.raises(ValueError, match="next_token"):
        tiny_objective("next_latent", latent_weight=0.0, kl_weight=0.0)


def gradients(objective, batch, part):
    parameters = dict(objective.named_parameters())
    found = torch.autograd.grad(objective(batch).parts[part].total.sum(), parameters.values(), allow_unused=True)
    return dict(zip(parameters, found))


def test_the_divergence_leaves_the_head_alone():
    objective = tiny_objective("next_latent", backbone={"tied": False}, horizon=2)
    spread_weights(objective)
    found = gradients(objective, random_batch(), "kl")
    head = found.pop("backbone.head.weight")
    assert head is None or not head.any()
    assert found["backbone.embedding.weight"].any()
    assert found["dynamics.first.weight"].any()


def test_targets_get_no_gradient_and_sources_do():
    objective = tiny_objective("next_latent", horizon=1)
    spread_weights(objective)
    batch = random_batch(n=2, longest=4, prompts=False)
    states = []
    backbone = objective.backbone

    def encode(batch):
        hidden = type(backbone).encode(backbone, batch)
        hidden.state.retain_grad()
        states.append(hidden.state)
        return hidden

    backbone.encode = encode
    objective(batch).parts["latent"].total.sum().backward()
    # The last position is a target and never a source; the others are sources.
    assert not states[0].grad[:, -1].any()
    assert states[0].grad[:, :-1].any(-1).all()


def test_drafting_follows_the_dynamics():
    objective = tiny_objective("next_latent").eval()
    spread_weights(objective)
    predictor = objective.predictor()
    tokens = random_batch(prompts=False).tokens[:, :5]
    cursor, logits = predictor.start(tokens)
    first = logits.argmax(-1)
    drafted, _ = predictor.draft(cursor, first, 2)
    state = objective.backbone.encode(plain_batch(tokens)).state[:, -1]
    for place, token in enumerate([first, drafted[:, 0]]):
        state = objective.dynamics(state, objective.backbone.embed(token))
        assert torch.equal(objective.backbone.logits(state).argmax(-1), drafted[:, place])
    predictor.rewind(cursor, 5)
    with pytest.raises(ValueError, match="read one token again"):
        predictor.draft(cursor, first, 1)
