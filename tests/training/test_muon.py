"""Muon against its definition, and that it and AdamW are one optimiser."""

import copy
import itertools

import pytest
import torch
from doubles import TINY_BACKBONES, tiny_objective

from statewise.config.trainer import TrainerConfig
from statewise.objectives import OBJECTIVES
from statewise.training import optim
from statewise.training.optim import Muon, hidden_matrices, make_optimizer

CONFIG = TrainerConfig(optimizer="muon", learning_rate=0.01, weight_decay=0.3)


def groups(objective):
    """(optimiser, decay) of every parameter by name."""
    optimizer = make_optimizer(objective, CONFIG)
    found = {}
    for part, label in ((optimizer.muon, "muon"), (optimizer.adamw, "adamw")):
        for group in part.param_groups:
            found |= {id(parameter): (label, group["weight_decay"]) for parameter in group["params"]}
    assert len(found) == sum(len(group["params"]) for group in optimizer.param_groups)  # none in two groups
    return {name: found[id(parameter)] for name, parameter in objective.named_parameters()}


def of_muon(name, kind, **fields):
    objective = tiny_objective(name, make_backbone=TINY_BACKBONES[kind], **fields)
    return {parameter for parameter, (label, _) in groups(objective).items() if label == "muon"}


BLOCK = ("attention.in_proj.weight", "attention.out_proj.weight", "mlp.in_proj.weight", "mlp.out_proj.weight")


def blocks(prefix):
    return {f"{prefix}.{layer}.{matrix}" for layer in range(2) for matrix in BLOCK}


def test_hidden_matrices_are_muons_and_all_else_is_adamws():
    trunk = blocks("backbone.blocks")
    assert of_muon("next_token", "gpt") == trunk
    assert of_muon("next_token", "gpt", backbone={"tied": False, "bias": True, "positions": "learned"}) == trunk
    assert of_muon("next_token", "two_stream", backbone={"tied": False}) == trunk
    assert of_muon("teacherless", "gpt") == trunk
    assert of_muon("token_order", "gpt") == trunk
    assert of_muon("semantic_tube", "gpt") == trunk
    assert of_muon("future_summary", "gpt", summary="bag") == trunk
    assert of_muon("future_summary", "gpt") == trunk | blocks("reverse.blocks") | {"map.weight"}
    assert of_muon("next_latent", "gpt") == trunk | {f"dynamics.{one}.weight" for one in ("first", "second", "third")}
    assert of_muon("joint_multi_token", "gpt") == trunk | {"fetch.in_proj.weight", "fetch.out_proj.weight"}
    assert of_muon("multi_token", "gpt") == trunk | {f"branches.0.block.{matrix}" for matrix in BLOCK}
    encoders = blocks("prefix_encoder.blocks") | blocks("suffix_encoder.blocks")
    head = {"head.first.weight", "head.second.weight"}
    assert of_muon("belief_state", "gpt", head="mlp") == encoders | head
    assert of_muon("belief_state", "gpt", head="gated") == encoders | head
    experts = {"head.prefix_experts.weight", "head.suffix_experts.weight"}
    assert of_muon("belief_state", "gpt") == encoders
    assert of_muon("belief_state", "gpt", expert_width=4) == encoders | experts
    cells = {f"backbone.blocks.{layer}.cell.weight_{kind}_l0" for layer in range(2) for kind in ("ih", "hh")}
    assert of_muon("next_token", "recurrent") == cells
    slots = blocks("backbone.gpt.blocks") | {"backbone.update.in_proj.weight"}
    assert of_muon("next_token", "belief_slots") == slots
    gated = of_muon("next_token", "belief_slots", backbone={"update": "gated"})
    assert gated == slots | {"backbone.update.cell.weight_ih", "backbone.update.cell.weight_hh"}


@pytest.mark.parametrize(
    ("name", "backbone"),
    [
        *((name, "gpt") for name in OBJECTIVES),  # an objective's own parameters do not depend on the backbone
        *itertools.product(("next_token", "belief_state"), sorted({*TINY_BACKBONES} - {"gpt"})),
    ],
)
def test_every_trained_parameter_is_in_one_group_and_decay_touches_matrices_alone(name, backbone):
    objective = tiny_objective(name, make_backbone=TINY_BACKBONES[backbone])
    found = groups(objective)
    for parameter, tensor in objective.named_parameters():
        label, decay = found[parameter]
        assert decay == (0.3 if tensor.dim() > 1 else 0.0), parameter
        if any(part in parameter for part in ("embedding", "norm", "bias", "initial", "backbone.head", "third")):
            assert label == ("muon" if parameter == "dynamics.third.weight" else "adamw"), parameter
    assert "muon" in {label for label, _ in found.values()}


def orthogonalised(matrix, steps=5):
    """Newton-Schulz with the quintic of Jordan et al. 2024: x <- a x + b (x x^T) x + c (x x^T)^2 x."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrix / matrix.norm()
    if len(x) > x.shape[1]:
        return orthogonalised(matrix.T, steps).T
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + b * gram @ x + c * gram @ gram @ x
    return x


def steps_of_muon(weight, gradients, nesterov=True, newton_schulz=5, scale=0.2, decay=0.3, rate=0.01):
    """The definition, in float64: momentum 0.95, decoupled decay, an update of 0.2 sqrt(max(rows, columns))."""
    weight, momentum = weight.double(), torch.zeros_like(weight, dtype=torch.float64)
    for gradient in gradients:
        momentum = 0.95 * momentum + gradient.double()
        direction = gradient.double() + 0.95 * momentum if nesterov else momentum
        update = orthogonalised(direction, newton_schulz) * scale * max(weight.shape) ** 0.5
        weight = weight - rate * decay * weight - rate * update
    return weight


@pytest.fixture(params=["fp32", "bf16"])
def multiplies(request, monkeypatch):
    """The number type of the products, as of a processor that multiplies fast in it."""
    monkeypatch.setattr(optim, "choose_precision", lambda wanted, device: request.param)
    return request.param


@pytest.mark.parametrize("shape", [(24, 16), (16, 40), (12, 12)])
def test_a_matrix_is_trained_as_muon_is_defined(shape, multiplies):
    generator = torch.Generator().manual_seed(0)
    objective = tiny_objective("next_latent")
    objective.dynamics.first = torch.nn.Linear(shape[1], shape[0], bias=False)
    weight = objective.dynamics.first.weight
    # Singular values of one size, since bfloat16 keeps less of small ones. Every other one changes its sign, which
    # plain momentum and Nesterov's follow at different steps.
    left, _, right = torch.linalg.svd(torch.randn(shape, generator=generator), full_matrices=False)
    turned = torch.where(torch.arange(min(shape)) % 2 == 0, 1.0, -0.7)
    gradients = [left @ torch.diag(values) @ right for values in (torch.ones(min(shape)), turned)]
    start, optimizer = weight.detach().clone(), make_optimizer(objective, CONFIG)
    for gradient in gradients:
        weight.grad = gradient.clone()
        optimizer.step()
    moved = weight.detach().double() - start
    wanted = steps_of_muon(start, gradients) - start
    assert (moved - wanted).norm() < {"fp32": 1e-4, "bf16": 0.03}[multiplies] * wanted.norm()
    others = [{"nesterov": False}, {"newton_schulz": 4}, {"scale": 0.18}, {"decay": 3.0}]
    for other in others:
        assert (moved - steps_of_muon(start, gradients, **other) + start).norm() > 0.05 * wanted.norm(), other


SHAPES = [(8, 8), (24, 8), (8, 24), (8, 8), (1, 5), (8, 24), (8, 8), (5, 1), (3, 3)]


def matrices(kind=torch.float32):
    generator = torch.Generator().manual_seed(1)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator, dtype=kind)) for shape in SHAPES]


def stepped(optimizer, parameters, seeds=range(4)):
    """Steps at changing rates; the third matrix has its first gradient late, the last one none, one of all zeros."""
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        for place, parameter in enumerate(parameters):
            gradient = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype) * (place != 3)
            without = place == len(parameters) - 1 or (place == 2 and seed < 2)
            parameter.grad = None if without else gradient
        optimizer.param_groups[0]["lr"] = 0.01 * (seed + 1)
        optimizer.step()


def torchs(parameters):
    return torch.optim.Muon(parameters, 0.01, 0.3, adjust_lr_fn="match_rms_adamw")


@pytest.mark.parametrize("most", [optim.STACK, 200, 1])
def test_matrices_of_one_shape_together_are_trained_as_by_pytorch(most, multiplies, monkeypatch):
    monkeypatch.setattr(optim, "STACK", most)
    start, ours, theirs = matrices(), matrices(), matrices()
    optimizer, other = Muon(ours, 0.01, 0.3), torchs(theirs)
    stepped(optimizer, ours)
    stepped(other, theirs)
    for place, (begin, one, two) in enumerate(zip(start, ours, theirs)):
        assert (one - two).norm() <= 0.03 * (two - begin).norm(), place  # PyTorch's is in bf16
        assert torch.equal(begin, one) == (place == len(start) - 1)
    assert optimizer.state_dict()["state"].keys() == other.state_dict()["state"].keys()


def test_what_stands_in_one_stack_changes_nothing_but_rounding(monkeypatch):
    found = {}
    for most in (optim.STACK, 1):
        monkeypatch.setattr(optim, "STACK", most)
        found[most] = matrices(torch.float64)
        monkeypatch.setattr(optim, "choose_precision", lambda wanted, device: "fp32")
        stepped(Muon(found[most], 0.01, 0.3), found[most])
    for one, two in zip(*found.values()):
        torch.testing.assert_close(one, two, rtol=1e-10, atol=1e-12)


def test_it_goes_on_from_the_state_of_pytorchs(multiplies):
    """And PyTorch's from its own: a run of an earlier version can be resumed."""
    for first, then in ((torchs, lambda some: Muon(some, 0.01, 0.3)), (lambda some: Muon(some, 0.01, 0.3), torchs)):
        whole, cut = matrices(), matrices()
        stepped(then(whole), whole)
        before = first(cut)
        stepped(before, cut, range(2))
        after = then(cut)
        after.load_state_dict(copy.deepcopy(before.state_dict()))
        stepped(after, cut, range(2, 4))
        for begin, one, two in zip(matrices(), cut, whole):
            assert (one - two).norm() <= 0.03 * (two - begin).norm()


def test_a_closure_is_called_with_gradients():
    (parameter,) = parameters = [torch.nn.Parameter(torch.ones(2, 3))]
    optimizer = Muon(parameters, 0.1, 0.0)

    def closure():
        loss = (parameter**2).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure) == 6
    assert (parameter < 1).all()


def trained(objective, optimizer, steps, begin=0):
    for step in range(begin, begin + steps):
        generator = torch.Generator().manual_seed(step)
        for group in optimizer.param_groups:
            group["lr"] = 0.01 * (step + 1)
        for parameter in objective.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.step()
        optimizer.zero_grad()
        assert all(parameter.grad is None for parameter in objective.parameters())


def test_it_goes_on_bit_for_bit_from_its_state():
    whole = tiny_objective("belief_state")
    optimizer = make_optimizer(whole, CONFIG)
    trained(whole, optimizer, 2)
    cut, state = copy.deepcopy(whole), copy.deepcopy(optimizer.state_dict())
    trained(whole, optimizer, 3, begin=2)
    after = make_optimizer(cut, CONFIG)
    after.load_state_dict(state)
    trained(cut, after, 3, begin=2)
    for (name, one), two in zip(whole.named_parameters(), cut.parameters()):
        assert torch.equal(one, two), name
    one, two = optimizer.state_dict(), after.state_dict()
    assert one["param_groups"] == two["param_groups"]
    for number, moments in one["state"].items():
        for key, moment in moments.items():
            assert torch.equal(moment, two["state"][number][key])


def test_the_rate_of_both_is_that_of_the_schedule():
    objective = tiny_objective("next_token")
    optimizer = make_optimizer(objective, CONFIG)
    for _ in range(2):
        before = copy.deepcopy(objective.state_dict())
        for group in optimizer.param_groups:
            group["lr"] = 0.0
        for parameter in objective.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        assert all(torch.equal(before[name], tensor) for name, tensor in objective.state_dict().items())
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))  # must not cut the groups' ties


def test_without_gradient_matrices_decay_and_vectors_stay():
    objective = tiny_objective("next_latent", backbone={"bias": True})
    optimizer = make_optimizer(objective, CONFIG)
    for parameter in objective.parameters():
        with torch.no_grad():
            parameter += 0.5
        parameter.grad = torch.zeros_like(parameter)
    before = copy.deepcopy(objective.state_dict())
    optimizer.step()
    for name, parameter in objective.named_parameters():
        factor = 1 - 0.01 * 0.3 if parameter.dim() > 1 else 1.0
        torch.testing.assert_close(parameter, before[name] * factor, msg=name)


def test_a_state_of_adamw_alone_is_refused():
    objective = tiny_objective("next_token")
    alone = make_optimizer(objective, TrainerConfig())
    with pytest.raises(ValueError, match="different number of parameter groups"):
        make_optimizer(objective, CONFIG).load_state_dict(alone.state_dict())


def test_a_model_of_hidden_matrices_alone_is_muons():
    """As with low-rank adaptation, where nothing else is trained."""
    objective = tiny_objective("next_token")
    hidden = {id(matrix) for matrix in hidden_matrices(objective)}
    for parameter in objective.parameters():
        parameter.requires_grad_(id(parameter) in hidden)
    optimizer = make_optimizer(objective, CONFIG)
    assert isinstance(optimizer, torch.optim.Muon)
    assert {id(each) for group in optimizer.param_groups for each in group["params"]} == hidden


def test_a_model_without_hidden_matrices_is_refused():
    objective = tiny_objective("next_token")
    for part in objective.backbone.blocks.parameters():
        part.requires_grad_(False)
    with pytest.raises(ValueError, match=r"trainer.optimizer muon needs matrices .*: choose adamw"):
        make_optimizer(objective, CONFIG)
