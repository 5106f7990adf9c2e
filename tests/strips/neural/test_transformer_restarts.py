"""Restarts train as one program, and each comes out as if it were alone."""

import numpy as np
import pytest
import torch

from statewise.strips.neural.transformer import Restarts, focal_loss, inconsistency
from statewise.strips.trace_data.domains import domain
from statewise.strips.trace_data.random_traces import traces

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
    train(whole, 30)
    train(parted, 30)
    parted.keep(np.array(kept))
    assert parted.numbers.tolist() == kept
    train(whole, 50)
    train(parted, 20)
    parted.keep(np.array([0]))
    train(parted, 30)
    assert parted.numbers.tolist() == kept[:1]
    assert parted.steps == 80
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
