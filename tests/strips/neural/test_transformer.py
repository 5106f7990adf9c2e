"""The STRIPS Transformer against its equations, written out slowly, and against action models (Theorems 4 and 6)."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from statewise.strips.model.heads import Heads
from statewise.strips.model.model import Action, ActionModel, bits
from statewise.strips.neural.transformer import EDGE, Restarts, focal_loss, head_outputs, inconsistency
from statewise.strips.trace_data.domains import domain
from statewise.strips.trace_data.random_traces import traces


def slow_heads(theta, trace):
    """Equations 11-16 for one theta [L, A, 3] and one trace: [T, L]."""
    query, key, value = theta[:, trace].unbind(-1)  # each [L, T]
    length = len(trace)
    scores = query[:, :, None] * key[:, None, :]  # [L, T, T]
    scores = scores * torch.ones(length, length, dtype=theta.dtype).tril(-1)
    rows = []
    for i in range(length):
        weights = [scores[:, i, j] * (1 - scores[:, i, j + 1 : i]).prod(-1) for j in range(i)]
        rows.append(sum((weight * value[:, j] for j, weight in enumerate(weights)), torch.zeros_like(value[:, 0])))
    return torch.stack(rows)


def slow_y(theta, trace):
    """Equation 17: [T]."""
    return 1 - (1 - slow_heads(theta, trace)).prod(-1)


def rejection(y):
    """f(trace), the OR over positions (equation 18): [R, B] from y [T, R, B]."""
    return 1 - (1 - y).prod(0)


def random_theta(seed, *shape):
    return torch.rand(*shape, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def random_traces(seed, actions, shape, least=1):
    """Actions [T, R, B] with -1 behind the end, and lengths [R, B]."""
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randint(0, actions, shape, generator=generator)
    lengths = torch.randint(least, shape[0] + 1, shape[1:], generator=generator)
    lengths[0, 0] = shape[0]
    return torch.where(torch.arange(shape[0])[:, None, None] < lengths, numbers, -1), lengths


def each_trace(actions):
    """(restart, place in the batch, the trace) of all."""
    _, restarts, batch = actions.shape
    for restart in range(restarts):
        for place in range(batch):
            trace = actions[:, restart, place]
            yield restart, place, trace[trace >= 0]


@pytest.mark.parametrize("seed", range(4))
def test_values_are_those_of_the_equations(seed):
    theta = random_theta(seed, 3, 4, 5)
    actions, _ = random_traces(seed, 5, (12, 3, 6))
    heads, y = head_outputs(theta, actions), inconsistency(theta, actions)
    f = rejection(y)
    for restart, place, trace in each_trace(actions):
        assert torch.allclose(heads[: len(trace), restart, place], slow_heads(theta[restart], trace), atol=1e-14)
        assert torch.allclose(y[: len(trace), restart, place], slow_y(theta[restart], trace), atol=1e-14)
        whole = 1 - math.prod(1 - float(each) for each in slow_y(theta[restart], trace))  # equation 18
        assert f[restart, place].item() == pytest.approx(whole, abs=1e-14)


@pytest.mark.parametrize("seed", range(4))
def test_gradients_are_those_of_the_equations(seed):
    theta = random_theta(seed, 2, 3, 4).requires_grad_()
    actions, _ = random_traces(seed, 4, (9, 2, 5))
    upstream = random_theta(seed + 100, 9, 2)[..., 0, None] * random_theta(seed, 9, 2, 5)[..., 0]
    (fast,) = torch.autograd.grad((inconsistency(theta, actions) * upstream).sum(), theta)
    total = sum(
        (slow_y(theta[restart], trace) * upstream[: len(trace), restart, place]).sum()
        for restart, place, trace in each_trace(actions)
    )
    (slow,) = torch.autograd.grad(total, theta)
    assert slow.abs().max() > 1e-3
    assert torch.allclose(fast, slow, atol=1e-12)


@pytest.mark.parametrize("at", [0.0, 1.0, None])
def test_gradients_at_the_edge_of_the_cube(at):
    """Where training clamps theta, scores are exactly 0 and 1."""
    theta = (random_theta(1, 1, 2, 3) if at is None else torch.full((1, 2, 3, 3), at, dtype=torch.float64)).round()
    theta = theta.requires_grad_()
    actions, _ = random_traces(7, 3, (8, 1, 6))
    weights = torch.arange(1.0, 9, dtype=torch.float64)
    (fast,) = torch.autograd.grad((inconsistency(theta, actions).sum((1, 2)) * weights).sum(), theta)
    total = sum((slow_y(theta[0], trace) * weights[: len(trace)]).sum() for _, _, trace in each_trace(actions))
    (slow,) = torch.autograd.grad(total, theta)
    assert torch.allclose(fast, slow, atol=1e-12)


def test_gradients_are_those_of_differences():
    theta = random_theta(5, 2, 2, 3).requires_grad_()
    actions, lengths = random_traces(5, 3, (5, 2, 2))
    labels = torch.tensor([[1, 0], [0, 1]])
    assert torch.autograd.gradcheck(lambda theta: head_outputs(theta, actions), theta)
    assert torch.autograd.gradcheck(lambda theta: focal_loss(inconsistency(theta, actions), lengths, labels), theta)


@pytest.mark.parametrize("kind", ["random", "near one", "binary", "near zero"])
def test_float32_is_exact_at_length_200(kind):
    theta = random_theta(3, 2, 3, 4)
    theta = {"random": theta, "near one": 1 - 1e-4 * theta, "binary": theta.round(), "near zero": 1e-3 * theta}[kind]
    actions, lengths = random_traces(3, 4, (200, 2, 4), least=150)
    labels = torch.tensor([[0, 1, 0, 1]] * 2)
    results = []
    for dtype in (torch.float64, torch.float32):
        parameter = theta.to(dtype).requires_grad_()
        y = inconsistency(parameter, actions)
        (gradient,) = torch.autograd.grad(focal_loss(y, lengths, labels).sum(), parameter)
        assert y.dtype == dtype
        results.append((y.detach().double(), gradient.double()))
    (y, gradient), (y32, gradient32) = results
    assert torch.isfinite(y32).all()
    assert torch.isfinite(gradient32).all()
    assert y32.min() >= 0
    assert y32.max() <= 1
    assert torch.allclose(y32, y, atol=2e-6)
    if kind == "random":
        assert torch.allclose(gradient32, gradient, rtol=1e-3, atol=1e-4 * gradient.abs().max().item())


def test_what_lies_behind_the_end_changes_nothing():
    theta = random_theta(1, 2, 3, 4).requires_grad_()
    actions, lengths = random_traces(1, 4, (6, 2, 5))
    longer = torch.cat((actions, torch.full((7, 2, 5), -1)))
    labels = torch.randint(0, 2, (2, 5), generator=torch.Generator().manual_seed(1))
    y, more = inconsistency(theta, actions), inconsistency(theta, longer)
    assert torch.equal(more[:6], y)
    assert not more[6:].any()
    assert not y[actions < 0].any()
    assert torch.allclose(rejection(more), rejection(y))
    losses = [focal_loss(each, lengths, labels) for each in (y, more)]
    assert torch.allclose(*losses)
    gradients = [torch.autograd.grad(each.sum(), theta, retain_graph=True)[0] for each in losses]
    assert torch.allclose(*gradients)


def test_an_action_is_judged_by_those_before_it_alone():
    theta = random_theta(2, 1, 3, 4)
    actions = torch.tensor([0, 1, 2, 3, 0, 1, 2])[:, None, None]
    y = inconsistency(theta, actions)
    assert y[0] == 0
    for at in range(1, 7):
        other = actions.clone()
        other[at] = (other[at] + 1) % 4
        changed = inconsistency(theta, other)
        assert torch.equal(changed[:at], y[:at])
        assert not torch.equal(changed[at:], y[at:])


# Theorems 4 and 6


@st.composite
def models(draw):
    atoms, actions = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    sets = st.integers(0, (1 << atoms) - 1)
    return ActionModel(
        tuple(f"x{atom}" for atom in range(atoms)),
        tuple(Action("abcd"[number], draw(sets), draw(sets), draw(sets)) for number in range(actions)),
    )


def last_effects_say(model, trace):
    """For each position the atoms that it requires and whose last effect before it, of whatever action, was a delete.
    An action that adds and deletes an atom deletes it."""
    found = []
    for at, number in enumerate(trace):
        wrong = set()
        for atom in bits(model.actions[number].pre):
            touching = [
                model.actions[one]
                for one in trace[:at]
                if (model.actions[one].add | model.actions[one].delete) >> atom & 1
            ]
            if touching and touching[-1].delete >> atom & 1:
                wrong.add(atom)
        found.append(wrong)
    return found


@settings(max_examples=100, deadline=None)
@given(models(), st.data())
def test_theorem_4(model, data):
    numbers = st.integers(0, len(model.actions) - 1)
    trace = data.draw(st.lists(numbers, min_size=1, max_size=9))
    theta = torch.from_numpy(Heads.of_model(model).theta())[None]
    actions = torch.tensor(trace)[:, None, None]
    expected = last_effects_say(model, trace)
    by_head = head_outputs(theta, actions)[:, 0, 0]
    assert [set(np.flatnonzero(row)) for row in by_head.numpy()] == expected
    y = inconsistency(theta, actions)[:, 0, 0]
    assert y.tolist() == [float(bool(wrong)) for wrong in expected]
    first = model.first_rejected(trace)
    assert rejection(y[:, None, None]).item() == float(first is not None)
    assert next((at for at, of in enumerate(y) if of), None) == first


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(1, 4), st.data())
def test_theorem_6(seed, atoms, count, data):
    theta = np.random.default_rng(seed).random((atoms, count, 3)).astype(np.float32)
    theta[0, 0, 0] = 0.5  # counts as 1
    binary = (theta >= 0.5).astype(np.float32)
    model = Heads.of_theta(theta).model([f"a{number}" for number in range(count)])
    rows = data.draw(st.lists(st.lists(st.integers(0, count - 1), min_size=8, max_size=8), min_size=1, max_size=10))
    y = inconsistency(torch.from_numpy(binary)[None], torch.tensor(rows).T[:, None])[:, 0]  # [T, B]
    for row, of in zip(rows, y.T):
        assert next((at for at, each in enumerate(of) if each), None) == model.first_rejected(row)
        assert of.tolist() == [float(bool(wrong)) for wrong in last_effects_say(model, row)]


@settings(max_examples=100, deadline=None)
@given(models())
def test_a_model_comes_back_from_its_theta(model):
    again = Heads.of_theta(Heads.of_model(model).theta()).model(model.names, model.atoms)
    plain = tuple(Action(one.name, one.pre, one.add & ~one.delete, one.delete) for one in model.actions)
    assert again == ActionModel(model.atoms, plain)


# the loss


def slow_loss(y, length, label, alpha=0.9, gamma=3.0):
    """Equations 21 and 22 for one trace."""
    total = 0.0
    for at in range(length):
        if label and at == length - 1:
            total += -alpha * (1 - y[at]) ** gamma * math.log(y[at])
        else:
            total += -(1 - alpha) * y[at] ** gamma * math.log(1 - y[at])
    return total / length


@pytest.mark.parametrize(("alpha", "gamma"), [(0.9, 3.0), (0.5, 2.0)])
def test_the_loss_is_that_of_the_equations(alpha, gamma):
    y = 0.02 + 0.96 * random_theta(1, 7, 2, 4)[..., 0]
    lengths = torch.tensor([[7, 3, 1, 5], [7, 7, 2, 4]])
    labels = torch.tensor([[0, 1, 1, 0], [1, 0, 0, 1]])
    found = focal_loss(y, lengths, labels, alpha, gamma)
    for restart in range(2):
        each = [
            slow_loss(
                y[:, restart, place].tolist(), int(lengths[restart, place]), int(labels[restart, place]), alpha, gamma
            )
            for place in range(4)
        ]
        assert found[restart].item() == pytest.approx(sum(each) / 4, rel=1e-4)
    if alpha == 0.9:
        assert torch.equal(found, focal_loss(y, lengths, labels))


def test_the_gradient_of_the_loss_is_that_of_the_equations():
    y = (0.02 + 0.96 * random_theta(2, 5, 1, 2)[..., 0]).requires_grad_()
    lengths, labels = torch.tensor([[5, 3]]), torch.tensor([[0, 1]])
    assert torch.autograd.gradcheck(lambda y: focal_loss(y, lengths, labels), y)
    (fast,) = torch.autograd.grad(focal_loss(y, lengths, labels).sum(), y)
    step = 1e-6
    for at in range(5):
        for place, (length, label) in enumerate(((5, 0), (3, 1))):
            values = y[:, 0, place].tolist()
            sides = []
            for sign in (1, -1):
                moved = list(values)
                moved[at] += sign * step
                sides.append(slow_loss(moved, length, label) / 2)
            slow = (sides[0] - sides[1]) / (2 * step)
            assert fast[at, 0, place].item() == pytest.approx(slow, rel=1e-4, abs=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_loss_is_finite_where_the_model_is_sure_and_wrong(dtype):
    y = torch.tensor([0.0, 1.0, 0.0, 1.0], dtype=dtype)[:, None, None].expand(4, 1, 2).clone().requires_grad_()
    losses = focal_loss(y, torch.tensor([[4, 3]]), torch.tensor([[0, 1]]))
    losses.sum().backward()
    assert torch.isfinite(losses).all()
    assert torch.isfinite(y.grad).all()
    assert y.grad[1, 0, 0] > 0  # pulled down where it is to be 0
    assert y.grad[2, 0, 1] < 0  # and up where it is to be 1
    # the whole loss of a sure error: -(1 - alpha) log EDGE, twice, and -alpha log EDGE beside one of the former
    wrong = -math.log(EDGE) * np.array([2 * 0.1 / 4, (0.1 + 0.9) / 3])
    assert losses.item() == pytest.approx(wrong.mean(), rel=0.01)


def test_a_perfect_model_has_next_to_no_loss():
    y = torch.tensor([0.0, 0.0, 1.0])[:, None, None]
    assert focal_loss(y, torch.tensor([[3]]), torch.tensor([[1]])).item() < 1e-5
    assert focal_loss(y, torch.tensor([[2]]), torch.tensor([[0]])).item() < 1e-5
    assert focal_loss(y, torch.tensor([[3]]), torch.tensor([[0]])).item() > 0.1


GIVEN = traces(domain("simple"), 50, 8, 1)
PLACES = np.array([[0, 1, 4], [2, 4, 3], [4, 4, 0], [1, 1, 1]])  # 4 heads read 4 weights; 4 stands for none


def made(count=4, given=GIVEN, **more):
    shape = (4,) if "places" in more else (3, len(given.actions))
    return Restarts(given, shape, count, **({"seed": 7, "batch": 8, "learning_rate": 0.02} | more))


def train(group, steps):
    return torch.stack([group.step() for _ in range(steps)])


def weights(group):
    return group.weights.detach().numpy().copy()


VARIANTS = pytest.mark.parametrize("more", [{}, {"places": PLACES}], ids=["plain", "shared"])


@VARIANTS
def test_a_restart_is_what_it_is_alone(more):
    together, first = made(4, **more), made(2, **more)
    assert np.array_equal(weights(together)[:2], weights(first))
    losses, of_first = train(together, 60), train(first, 60)
    assert torch.allclose(losses[:, :2], of_first, rtol=1e-3, atol=1e-5)
    assert np.allclose(weights(together)[:2], weights(first), atol=1e-4)
    assert np.abs(weights(together)[0] - weights(together)[1]).max() > 0.1


@VARIANTS
@pytest.mark.parametrize("kept", [[1], [0, 3], [3, 1]])
def test_the_end_of_others_changes_nothing(more, kept):
    whole, parted = made(**more), made(**more)
    train(whole, 12)
    train(parted, 12)
    parted.keep(np.array(kept))
    assert parted.numbers.tolist() == kept
    train(whole, 20)
    train(parted, 8)
    parted.keep(np.array([0]))
    train(parted, 12)
    assert parted.numbers.tolist() == kept[:1]
    assert parted.steps == 32
    assert np.allclose(weights(parted)[0], weights(whole)[kept[0]], atol=1e-4)


@VARIANTS
def test_what_was_put_down_goes_on_bit_for_bit(more):
    whole, again = made(**more), made(**more, count=4)
    train(whole, 33)
    whole.keep(np.array([0, 2, 3]))
    state = whole.state()
    before = {name: value.copy() for name, value in state.items()}
    again.restore(state)
    losses = train(whole, 40)
    assert all(np.array_equal(value, before[name]) for name, value in state.items())  # a copy, not the thing itself
    assert torch.equal(train(again, 40), losses)
    assert again.numbers.tolist() == [0, 2, 3]
    assert again.steps == whole.steps == 73
    ends = whole.state(), again.state()
    assert ends[0].keys() == ends[1].keys()
    assert all(np.array_equal(value, ends[1][name]) for name, value in ends[0].items())
    again.restore(before)
    assert torch.equal(train(again, 40), losses)


def test_the_seed_and_the_number_are_all_that_chance_depends_on():
    assert np.array_equal(weights(made(3)), weights(made(3)))
    assert not np.array_equal(weights(made(1)), weights(made(1, seed=8)))
    drawn = weights(made(50))
    assert 0 <= drawn.min() < 0.01
    assert 0.99 < drawn.max() <= 1
    assert abs(drawn.mean() - 0.5) < 0.05


def batches(group, steps):
    found = []
    for _ in range(steps):
        found.append(group._batch().numpy())
        group.steps += 1
    return np.concatenate(found, axis=1)  # [R, steps * batch]


@pytest.mark.parametrize("batch", [8, 7, 120])
def test_every_epoch_goes_through_all_traces_in_an_order_of_its_own(batch):
    order = batches(made(3, batch=batch), 100 // batch + 30)
    orders = set()
    epochs = order.shape[1] // 50
    for restart in range(3):
        for epoch in range(epochs):
            once = order[restart, 50 * epoch : 50 * (epoch + 1)]
            assert sorted(once) == list(range(50))
            orders.add(tuple(once))
    assert len(orders) == 3 * epochs


def test_a_step_is_one_of_radam_kept_between_0_and_1():
    group = made(2, learning_rate=0.3)
    parameter = group.weights.detach().clone().requires_grad_()
    optimizer = torch.optim.RAdam([parameter], lr=0.3)
    touched = False
    for _ in range(40):
        chosen = group._batch()
        y = inconsistency(parameter, group.actions[chosen].permute(2, 0, 1))
        losses = focal_loss(y, group.lengths[chosen], group.labels[chosen])
        optimizer.zero_grad()
        losses.sum().backward()
        optimizer.step()
        with torch.no_grad():
            touched |= bool((parameter < 0).any() or (parameter > 1).any())
            parameter.clamp_(0, 1)
        assert torch.allclose(group.step(), losses, rtol=1e-4)
        assert torch.allclose(group.weights, parameter, atol=1e-4)
    assert touched


def test_training_lowers_the_loss():
    losses = train(made(3), 400)
    assert (losses[-50:].mean(0) < losses[:50].mean(0) / 4).any()


def test_shared_weights_are_read_where_they_are_placed():
    group = made(2, places=PLACES)
    theta, own = group.theta().detach(), group.weights.detach()
    assert theta.shape == (2, 4, 3, 3)
    for restart in range(2):
        for head in range(4):
            for action in range(3):
                place = PLACES[head, action]
                expected = torch.zeros(3) if place == 4 else own[restart, place]
                assert torch.equal(theta[restart, head, action], expected)
    assert np.array_equal(group.binary(), theta.numpy())


def test_shared_weights_learn_from_all_who_read_them():
    group = made(1, places=PLACES)
    free = group.theta().detach().clone().requires_grad_()
    chosen = group._batch()
    facts = group.lengths[chosen], group.labels[chosen]
    numbers = group.actions[chosen].permute(2, 0, 1)
    focal_loss(inconsistency(free, numbers), *facts).sum().backward()
    focal_loss(inconsistency(group.theta(), numbers), *facts).sum().backward()
    for place in range(4):
        assert torch.allclose(
            group.weights.grad[0, place], free.grad[0][torch.from_numpy(PLACES) == place].sum(0), atol=1e-7
        )
