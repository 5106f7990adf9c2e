import functools
import math

import pytest
import torch
from doubles import TINY_BACKBONES, tiny_belief_slots, tiny_gpt, tiny_objective, tiny_recurrent, tiny_two_stream
from torch import nn
from torch.autograd import gradcheck

from statewise.backbones import gpt, two_stream
from statewise.backbones.gpt import GPTConfig
from statewise.backbones.nn import belief_slots as slots
from statewise.backbones.nn.layers import RMSNorm, TokenEmbedding, make_norm
from statewise.backbones.recurrent import Recurrent, RecurrentConfig
from statewise.losses import joint_multi_token, next_latent
from statewise.losses.belief_state import text_head
from statewise.losses.joint_multi_token import Fetch, JointMultiTokenConfig
from statewise.losses.next_latent import NextLatentConfig
from statewise.model.recipes import read_recipe
from statewise.objectives import OBJECTIVES
from statewise.objectives.belief_state.objective import BeliefStateConfig


def test_rms_norm_is_the_composed_one_gradients_included():
    torch.manual_seed(0)
    fast, slow = RMSNorm(6, eps=1e-5).double(), nn.RMSNorm(6, eps=1e-5).double()
    with torch.no_grad():
        fast.weight.copy_(torch.randn(6))
        slow.weight.copy_(fast.weight)
    x = torch.randn(3, 4, 6, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(3, 4, 6, dtype=torch.float64)
    torch.testing.assert_close(fast(x), slow(x))
    got = torch.autograd.grad((fast(x) * weights).sum(), [x, fast.weight])
    expected = torch.autograd.grad((slow(x) * weights).sum(), [x, slow.weight])
    torch.testing.assert_close(got, expected)
    assert gradcheck(fast, x)


def test_a_row_of_zeros_stays_finite():
    norm = RMSNorm(4, eps=1e-5)
    x = torch.zeros(2, 4, requires_grad=True)
    norm(x).sum().backward()
    assert torch.isfinite(x.grad).all()


def test_layer_norm_may_do_without_bias():
    assert make_norm("layer", 4, bias=False, eps=1e-5).bias is None
    assert make_norm("layer", 4, bias=True, eps=1e-5).bias is not None


@pytest.mark.parametrize("kind", ["rms", "layer"])
@pytest.mark.parametrize("grad", [True, False])
def test_weights_may_be_less_precise_than_the_input(kind, grad):
    norm, x = make_norm(kind, 8, True, 1e-5), torch.randn(3, 8)
    for part in norm.parameters():
        part.data = torch.randn(8).to(torch.bfloat16).float()
    with torch.set_grad_enabled(grad):
        expected = norm(x)
        found = norm.to(torch.bfloat16)(x)
    assert found.dtype == torch.float32
    assert torch.equal(found, expected)
    if grad:
        found.sum().backward()
        assert norm.weight.grad.dtype == torch.bfloat16


MODELS = {
    **{name: make for name, make in TINY_BACKBONES.items() if name != "hf"},  # whose weights are another model's
    "gpt with biases": functools.partial(tiny_gpt, bias=True, norm="layer", positions="learned", tied=False),
    "two_stream": functools.partial(tiny_two_stream, positions="learned", tied=False),
    "gated belief_slots": functools.partial(tiny_belief_slots, update="gated", injection="linear", pooling="mean"),
    "tied lstm": functools.partial(tiny_recurrent, cell="lstm", tied=True),
}
HEADS = {
    "mlp belief_state": {"head": "mlp"},
    "gated belief_state": {"head": "gated"},
    "belief_state": {},
    "shared belief_state": {"expert_width": 9},
    "next_latent": {"horizon": 2},
    "joint_multi_token": {"horizon": 2},
    "multi_token": {"horizon": 2},
    "token_order": {},
    "future_summary": {},
    "bag future_summary": {"summary": "bag"},
    "latent_multi_token": {"horizon": 2},
}
"""Objectives that own weights."""
BRANCHING = {"multi_token", "latent_multi_token"}
ADDED_LATER = {"token_order", "future_summary", "bag future_summary", "latent_multi_token"}
"""Those that had the choice from the start."""
pairs = [
    (head, model)
    for head in HEADS
    for model in MODELS
    if head not in BRANCHING or model not in ("two_stream", "belief_slots", "gated belief_slots")
]


def made(head, model, seed=0, own=None, **backbone):
    """An objective of `HEADS` around one of `MODELS`; `own`: its field `init`."""
    fields = {**HEADS[head], **({} if own is None else {"init": own})}
    return tiny_objective(head.split()[-1], seed, backbone, MODELS[model], **fields)


def wide(head, model, **options):
    """The same with matrices of which a standard deviation can be told."""
    return made(head, model, width=64, **options)


def as_before(module, init, layers=None):
    """What was drawn when there was no choice: in blocks, in the map of a slot update, in heads."""
    if layers is not None:
        for name, part in module.named_modules():
            if isinstance(part, nn.Linear):
                nn.init.normal_(part.weight, std=0.02 / (2 * layers) ** 0.5 if name.endswith("out_proj") else 0.02)
                if part.bias is not None:
                    nn.init.zeros_(part.bias)
            elif isinstance(part, nn.Embedding | TokenEmbedding) and part.weight is not None:
                nn.init.normal_(part.weight, std=0.02)
    elif isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=0.02)
        nn.init.zeros_(module.bias)
    else:
        maps = ("in_proj", "out_proj") if isinstance(module, Fetch) else ("first", "second", "third")
        for name in maps:
            nn.init.normal_(getattr(module, name).weight, std=0.02)


@pytest.mark.parametrize(("head", "model"), [pair for pair in pairs if pair[0] not in ADDED_LATER])
def test_by_default_weights_are_those_that_a_seed_always_gave(head, model, monkeypatch):
    now = made(head, model).state_dict()
    for module in (gpt, two_stream, slots, next_latent, joint_multi_token, text_head):
        monkeypatch.setattr(module, "init_weights", as_before)
    monkeypatch.setattr(slots, "_std", lambda init, inputs: inputs**-0.5)
    before = made(head, model).state_dict()
    assert now.keys() == before.keys()
    for name, tensor in before.items():
        assert torch.equal(now[name], tensor), name
    assert not torch.equal(*(made(head, model, seed).head_matrices()[0] for seed in (0, 1)))


def deviation(name, parameter, objective, backbone_init, own):
    """What the documentation says of a parameter of two dimensions."""
    inputs, backbone = parameter.shape[1], backbone_of(objective)
    if name.endswith(".initial"):  # of slots: a state, no matrix
        return 0.02
    if name.endswith("convolution.weight"):  # (tokens, features), by every rule
        return parameter.shape[0] ** -0.5
    of_backbone = name.startswith(("backbone.", "branches.", "prefix_encoder.", "suffix_encoder.", "reverse."))
    rule = backbone_init if of_backbone or own is None else own
    if isinstance(rule, float):
        return rule
    if isinstance(backbone, Recurrent) and name.endswith("embedding.weight"):
        return 0.5 if backbone.head is not None else inputs**-0.5
    if rule == "fan_in" or name.endswith(("directions", "query")):
        return inputs**-0.5
    head = getattr(objective, "head", None)
    uniform = not of_backbone and own is None and isinstance(head, text_head.MLPHead | text_head.MixtureHead)
    if ".cell.weight" in name or (of_backbone and rule == "pytorch") or uniform:
        return (3 * inputs) ** -0.5  # uniform up to 1 / sqrt(inputs)
    in_blocks = ".blocks." in name or name.startswith("branches.")
    return 0.02 / math.sqrt(2 * 2) if in_blocks and name.endswith("out_proj.weight") else 0.02


def backbone_of(objective):
    return getattr(objective, "backbone", None) or objective.prefix_encoder


RULES = [(None, None), ("fan_in", None), (0.05, None), ("fan_in", 0.3), (None, "fan_in")]


@pytest.mark.parametrize(
    ("head", "model", "init"),
    [
        (head, model, RULES[(list(HEADS).index(head) + list(MODELS).index(model) + turn) % len(RULES)])
        for head, model in pairs
        for turn in (0, 2)
    ],
    ids=str,
)
def test_every_matrix_has_its_standard_deviation(head, model, init):
    backbone_init, own = init
    own = None if head in BRANCHING else own
    objective = wide(head, model, own=own, **({} if backbone_init is None else {"init": backbone_init}))
    usual = "pytorch" if isinstance(backbone_of(objective), Recurrent) else "gpt2"
    looked = 0
    for name, parameter in objective.named_parameters():
        if parameter.dim() == 2 and not ("injections" in name and name.endswith("weight")):
            expected = deviation(name, parameter, objective, backbone_init or usual, own)
            slack = 5 * expected * (2 * parameter.numel()) ** -0.5
            assert parameter.std().item() == pytest.approx(expected, abs=slack), name
            assert parameter.mean().item() == pytest.approx(0, abs=5 * expected * parameter.numel() ** -0.5), name
            looked += 1
        elif "norm" not in name and "bias" in name and backbone_init is not None and parameter.dim() == 1:
            assert not parameter.any(), name
    assert looked >= 5


@pytest.mark.parametrize("model", MODELS)
def test_a_seed_gives_the_same_weights_by_every_rule(model):
    for init in ("fan_in", 0.05):
        one, two, other = (made("next_latent", model, seed, init=init).state_dict() for seed in (0, 0, 1))
        assert all(torch.equal(one[name], two[name]) for name in one)
        assert any(not torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("model", ["belief_slots", "gated belief_slots"])
def test_slots_add_nothing_at_the_start_by_any_rule(model):
    for init in ("gpt2", "fan_in", 0.05):
        backbone = MODELS[model](init=init)
        for inject in backbone.injections:
            assert not inject(torch.randn(3, 2, 16)).any()


@pytest.mark.parametrize("init", ["foo", "", "0.02", -1.0, 0, 0.0, math.nan, math.inf, 1e9])
@pytest.mark.parametrize(
    ("config", "field"),
    [
        (GPTConfig, "backbone"),
        (RecurrentConfig, "backbone"),
        (NextLatentConfig, "objective"),
        (JointMultiTokenConfig, "objective"),
        (BeliefStateConfig, "objective"),
    ],
)
def test_what_is_no_rule_and_no_standard_deviation_is_refused(config, field, init):
    with pytest.raises(ValueError, match=rf"^{field}.init must be "):
        config(init=init)


def test_a_backbone_has_a_rule():
    with pytest.raises(ValueError, match=r"backbone.init must be .*, not None"):
        GPTConfig(init=None)


def test_rules_are_those_that_mean_something():
    with pytest.raises(ValueError, match=r"backbone.init must be pytorch, fan_in or a standard deviation"):
        RecurrentConfig(init="gpt2")
    with pytest.raises(ValueError, match=r"backbone.init must be gpt2, fan_in or a standard deviation"):
        GPTConfig(init="pytorch")


@pytest.mark.parametrize("written", [".02", "0.02", "2e-2"])
@pytest.mark.parametrize("name", ["gpt", "two_stream", "belief_slots", "deltanet", "recurrent"])
def test_a_recipe_and_a_flag_hold_names_and_numbers(name, written):
    text = f"task: path_star\nbackbone: {{name: {name}, init: {written}}}\nobjective: next_latent\n"
    recipe = read_recipe(text)
    assert recipe.backbone.config.init == 0.02
    assert recipe.objective.config.init is None
    recipe = read_recipe(text, ["--backbone.init=fan_in", f"--objective.init={written}"])
    assert (recipe.backbone.config.init, recipe.objective.config.init) == ("fan_in", 0.02)
    with pytest.raises(ValueError, match=r"backbone.init must be .*, not 'foo'"):
        read_recipe(text, ["--backbone.init=foo"])


@pytest.mark.parametrize("model", [model for model in MODELS if "recurrent" not in model and "lstm" not in model])
@pytest.mark.parametrize("head", [head for head in HEADS if head not in BRANCHING])
def test_every_norm_has_the_epsilon_of_the_backbone(head, model):
    norms = [part for part in made(head, model, norm_eps=1e-3).modules() if isinstance(part, nn.RMSNorm | nn.LayerNorm)]
    assert len(norms) > 4
    assert {norm.eps for norm in norms} == {1e-3}


@pytest.mark.parametrize("norm_eps", [0, -1e-5, math.nan, 2])
def test_an_epsilon_that_is_none_is_refused(norm_eps):
    with pytest.raises(ValueError, match=r"backbone.norm_eps must be above 0 and at most 1"):
        GPTConfig(norm_eps=norm_eps)


def test_all_objectives_that_own_weights_are_tried():
    plain = {name for name in OBJECTIVES if not list(extra(tiny_objective(name)))}
    assert {head.split()[-1] for head in HEADS} == set(OBJECTIVES) - plain


def extra(objective):
    """Parameters that are no backbone's."""
    encoders = ("backbone.", "prefix_encoder.", "suffix_encoder.")
    return (name for name, _ in objective.named_parameters() if not name.startswith(encoders))
