"""The rollout against a loop written straight from the equations, gradients included."""

import pytest
import torch
from doubles import pack, random_batch, spread_weights, tiny_gpt, tiny_objective, tiny_two_stream
from torch.nn import functional as F

from statewise.data_types import Batch
from statewise.losses import vocabulary_head
from statewise.objectives.next_latent import NextLatentConfig

pytestmark = pytest.mark.usefixtures("float64")


def slow_twin(objective, batch):
    """Equations 3 to 5 one source position, one step, one sequence at a time."""
    config, backbone, dynamics = objective.config, objective.backbone, objective.dynamics
    states, readouts = backbone.encode(Batch.plain(batch.tokens, batch.documents))
    head = backbone.logits
    B, T = batch.tokens.shape
    documents = batch.documents if batch.documents is not None else torch.ones_like(batch.tokens)
    token_losses = []
    latent, kl, ce = ([[] for _ in range(config.horizon)] for _ in range(3))
    for b in range(B):
        for t in range(T - 1):
            if batch.scored[b, t + 1]:
                token_losses.append(F.cross_entropy(head(readouts[b, t]), batch.tokens[b, t + 1]))
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
                    frozen = {"frozen": not config.head_gradient}
                    p = head(readouts[b, s], **frozen).log_softmax(-1)
                    p = p.detach() if config.stop_gradient else p
                    q = head(backbone.state_for_head(rolled), **frozen).log_softmax(-1)
                    kl[i - 1].append((p.exp() * (p - q)).sum())
                    ce[i - 1].append(-q[batch.tokens[b, s + 1]])

    def mean(values):
        return sum(values) / len(values) if values else torch.zeros(())

    by_step = {"latent": latent, "kl": kl, "ce": ce}
    found = {
        f"step_{i + 1}_{name}": mean(values[i])
        for name, values in by_step.items()
        for i in range(config.horizon)
        if values[i]
    }
    found |= {name: sum(mean(of_step) for of_step in values) / config.horizon for name, values in by_step.items()}
    return {**found, "next_token": mean(token_losses), "state_norm": states[batch.real].norm(dim=-1).mean()}


SETTINGS = [
    {"horizon": 1},
    {"horizon": 3},
    {"horizon": 20},  # longer than any sequence
    {"horizon": 3, "stop_gradient": False},
    {"horizon": 2, "latent_weight": 2.0, "kl_weight": 0.1},
    {"horizon": 2, "dynamics_norm": "layer", "dynamics_factor": 0.75},
    {"horizon": 2, "kl_weight": 0.0, "ce_weight": 0.7},
    {"horizon": 3, "ce_weight": 0.7, "head_gradient": True},
    {"horizon": 2, "latent_weight": 0.0, "head_gradient": True},
    {"horizon": 2, "stop_gradient": False, "head_gradient": True},
]


BACKBONES = {"tied": (tiny_gpt, True), "untied": (tiny_gpt, False), "two streams": (tiny_two_stream, True)}
CASES = [
    pytest.param(settings, blocks, packed, which, id=f"{settings}, {which}, {packed=}, {blocks=}")
    for row, settings in enumerate(SETTINGS)
    for packed in (False, True)
    for blocks in (False, True)
    for which in [list(BACKBONES)[(row + 2 * packed + blocks) % 3]]
]
"""Each of the settings packed or not, in blocks or not, and on each backbone; all triples of the three come up."""


@pytest.mark.parametrize(("settings", "blocks", "packed", "which"), CASES)
def test_loss_and_gradients_are_those_of_the_equations(monkeypatch, settings, blocks, packed, which):
    make_backbone, tied = BACKBONES[which]
    if blocks:  # of 6 positions
        monkeypatch.setitem(vocabulary_head.WHOLE_UP_TO, "cpu", 0)
        monkeypatch.setitem(vocabulary_head.BLOCK, "cpu", 70)
        monkeypatch.setattr(vocabulary_head, "whole_divergence", None)
        monkeypatch.setattr(vocabulary_head, "whole_loss", None)
    objective = tiny_objective("next_latent", backbone={"tied": tied}, make_backbone=make_backbone, **settings)
    spread_weights(objective)
    batch = random_batch(longest=7)
    batch = pack(batch) if packed else batch
    loss, slow = objective(batch), slow_twin(objective, batch)
    config = objective.config
    weights = {"latent": config.latent_weight, "kl": config.kl_weight, "ce": config.ce_weight}
    assert set(loss.parts) == {"next_token", *(name for name, weight in weights.items() if weight)}
    for name, part in loss.parts.items():
        torch.testing.assert_close(part.mean(), slow[name])
    total = slow["next_token"] + sum(weight * slow[name] for name, weight in weights.items() if weight)
    parameters = dict(objective.named_parameters())
    fast_gradients = torch.autograd.grad(loss.value(), parameters.values())
    for name, got, expected in zip(parameters, fast_gradients, torch.autograd.grad(total, parameters.values())):
        torch.testing.assert_close(got, expected, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize(
    ("width", "factor", "hidden"),
    # The authors' widths: Manhattan, Countdown, path-star, TinyStories, A5, FineWeb-Edu; then small ones.
    [
        (384, 2.0, 1536),
        (768, 0.5, 768),
        (384, 0.5, 384),
        (768, 1.333, 2048),
        (512, 1.0, 1024),
        (2048, 1.6, 6528),
        (96, 0.5, 96),
        (192, 0.5, 192),
        (16, 0.5, 16),
        (1, 0.5, 8),
        (96, 1.333, 256),
    ],
)
def test_the_dynamics_are_as_wide_as_the_factor_says(width, factor, hidden):
    assert NextLatentConfig(dynamics_factor=factor).hidden_width(width) == hidden


@pytest.mark.parametrize("factor", [0.0, -1.0, float("nan"), float("inf")])
def test_a_factor_of_nothing_is_refused(factor):
    with pytest.raises(ValueError, match="dynamics_factor must be"):
        NextLatentConfig(dynamics_factor=factor)


@pytest.mark.parametrize("packed", [False, True], ids=["apart", "packed"])
def test_held_out_parts_are_told_by_step_whatever_is_trained(packed):
    for settings in ({"horizon": 3}, {"horizon": 9, "latent_weight": 0.0}):
        objective = tiny_objective("next_latent", **settings)
        spread_weights(objective)
        batch = random_batch(longest=7)
        batch = pack(batch) if packed else batch
        slow = slow_twin(objective, batch)
        halves = [
            batch._replace(
                **{name: getattr(batch, name)[rows] for name in ("tokens", "scored", "real")},
                documents=None if batch.documents is None else batch.documents[rows],
            )
            for rows in (slice(0, 1), slice(1, None))
        ]
        parts = [objective.held_out_parts(half) for half in halves]
        for name, first in parts[0].items():
            total, terms = (sum(getattr(part[name], field) for part in parts) for field in ("total", "terms"))
            assert not total.requires_grad
            if name == "state_norm":
                torch.testing.assert_close(total / terms, slow[name])
                continue
            assert first.total.shape == (objective.config.horizon,)
            for step, (value, count) in enumerate(zip(total, terms), 1):
                assert bool(count) == (f"step_{step}_{name}" in slow)
                if count:
                    torch.testing.assert_close(value / count, slow[f"step_{step}_{name}"])


def test_ablations_drop_their_part():
    batch = random_batch()
    assert set(tiny_objective("next_latent", latent_weight=0.0)(batch).parts) == {"next_token", "kl"}
    assert set(tiny_objective("next_latent", kl_weight=0.0)(batch).parts) == {"next_token", "latent"}
    replaced = tiny_objective("next_latent", kl_weight=0.0, ce_weight=1.0)
    assert set(replaced(batch).parts) == {"next_token", "latent", "ce"}
    with pytest.raises(ValueError, match="next_token"):
        tiny_objective("next_latent", latent_weight=0.0, kl_weight=0.0)
    with pytest.raises(ValueError, match="head_gradient needs"):
        tiny_objective("next_latent", kl_weight=0.0, head_gradient=True)
    with pytest.raises(ValueError, match="stop_gradient is for latent_weight and kl_weight, which are 0"):
        tiny_objective("next_latent", latent_weight=0.0, kl_weight=0.0, ce_weight=1.0, stop_gradient=False)


def gradients(objective, batch, part):
    parameters = dict(objective.named_parameters())
    found = torch.autograd.grad(objective(batch).parts[part].total.sum(), parameters.values(), allow_unused=True)
    return dict(zip(parameters, found))


@pytest.mark.parametrize("part", ["kl", "ce"])
@pytest.mark.parametrize("trained", [False, True])
def test_rolled_out_states_leave_the_head_alone_unless_told_otherwise(part, trained):
    objective = tiny_objective("next_latent", backbone={"tied": False}, horizon=2, ce_weight=1.0, head_gradient=trained)
    spread_weights(objective)
    found = gradients(objective, random_batch(), part)
    head = found.pop("backbone.head.weight")
    assert (head is not None and bool(head.any())) == trained
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
    token, guesses = logits.argmax(-1), None
    state = objective.backbone.encode(Batch.plain(tokens)).state[:, -1]
    for step in range(3):
        guesses = guesses or predictor.guesses(cursor, token)
        guessed = guesses.send(token if step else None)
        state = objective.dynamics(state, objective.backbone.embed(token))
        torch.testing.assert_close(guessed, objective.backbone.logits(state))
        token = (guessed.argmax(-1) + step) % len(objective.backbone.head_weight())
    predictor.rewind(cursor, 5)
    with pytest.raises(ValueError, match="read one token again"):
        next(predictor.guesses(cursor, token))
