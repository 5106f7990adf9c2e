"""The losses of a vocabulary head in blocks, against all logits at once."""

import pytest
import torch
from doubles import pack, random_batch, spread_weights, tiny_belief_slots, tiny_gpt, tiny_objective, tiny_two_stream
from torch.nn import functional as F

from statewise.experiments.dry_run import kept_for_backward
from statewise.losses import vocabulary_head as module
from statewise.losses.targets import IGNORED, to_float32
from statewise.losses.vocabulary_head import (
    blockwise_divergence,
    blockwise_loss,
    head_loss,
    whole_divergence,
    whole_loss,
)

N, D, V = 23, 8, 17


def of_loss(dtype=torch.float64, scored=0.7):
    generator = torch.Generator().manual_seed(0)
    readout = torch.randn(N, D, generator=generator).to(dtype).requires_grad_()
    weight = torch.randn(V, D, generator=generator).to(dtype).requires_grad_()
    targets = torch.randint(V, (N,), generator=generator)
    return readout, weight, torch.where(torch.rand(N, generator=generator) < scored, targets, IGNORED)


def slow_loss(readout, weight, targets):
    """One position at a time."""
    losses = [F.cross_entropy(weight @ readout[t], targets[t]) for t in range(len(targets)) if targets[t] != IGNORED]
    return sum(losses, start=(readout * 0).sum() + (weight * 0).sum())


@pytest.mark.parametrize("rows", [1, 5, N, 100])
@pytest.mark.parametrize("scored", [0.0, 0.7, 1.0])
def test_blocks_give_the_loss_and_gradients_of_single_positions(rows, scored):
    readout, weight, targets = of_loss(scored=scored)
    expected, found = slow_loss(readout, weight, targets), blockwise_loss(readout, weight, targets, rows)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(whole_loss(readout, weight, targets), expected)
    for factor in (1.0, -0.3):
        ours = torch.autograd.grad(factor * found, (readout, weight), retain_graph=True)
        torch.testing.assert_close(ours, torch.autograd.grad(factor * expected, (readout, weight), retain_graph=True))


@pytest.mark.parametrize("smoothing", [0.1, 1.0])
def test_smoothed_targets_are_those_of_pytorch(smoothing):
    readout, weight, targets = of_loss()
    expected = F.cross_entropy(readout @ weight.T, targets, reduction="sum", label_smoothing=smoothing)
    gradients = torch.autograd.grad(expected, (readout, weight))
    for found in (
        whole_loss(readout, weight, targets, smoothing),
        blockwise_loss(readout, weight, targets, 5, smoothing),
    ):
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(torch.autograd.grad(found, (readout, weight)), gradients)


def test_the_gradient_of_the_loss_is_that_of_the_function():
    readout, weight, targets = of_loss()
    torch.autograd.gradcheck(lambda x, w: blockwise_loss(x, w, targets, 4), (readout, weight))


def test_of_the_loss_what_needs_no_gradient_gets_none():
    readout, weight, targets = of_loss()
    expected = torch.autograd.grad(whole_loss(readout, weight, targets), readout)[0]
    frozen = blockwise_loss(readout, weight.detach(), targets, 5)
    torch.testing.assert_close(torch.autograd.grad(frozen, readout)[0], expected)
    with torch.no_grad():
        assert not blockwise_loss(readout, weight, targets, 5).requires_grad
    assert not blockwise_loss(readout.detach(), weight.detach(), targets, 5).requires_grad


def test_a_matrix_that_is_also_the_embedding_gets_both_gradients():
    _, weight, targets = of_loss()
    tokens = torch.arange(N) % V
    readout = F.embedding(tokens, weight).tanh()
    expected = torch.autograd.grad(slow_loss(readout, weight, targets), weight, retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(blockwise_loss(readout, weight, targets, 5), weight), expected)


def test_of_the_loss_under_autocast_only_products_are_coarse():
    readout, weight, targets = of_loss(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        ways = whole_loss(readout, weight, targets), blockwise_loss(readout, weight, targets, 5)
    torch.testing.assert_close(ways[1], ways[0], rtol=1e-5, atol=1e-5)  # of the same rounded logits
    assert ways[1].dtype == torch.float32
    exact = torch.autograd.grad(whole_loss(readout, weight, targets), (readout, weight))
    for way in ways:
        found = torch.autograd.grad(way, (readout, weight))
        assert [part.dtype for part in found] == [torch.float32] * 2
        for ours, theirs in zip(found, exact):
            assert (ours - theirs).norm() < 0.02 * theirs.norm()


def test_float64_stays_exact_under_autocast():
    readout, weight, targets = of_loss()
    with torch.autocast("cpu", torch.bfloat16):
        found = blockwise_loss(readout, weight, targets, 5)
    torch.testing.assert_close(found, slow_loss(readout, weight, targets))


def test_few_logits_are_taken_whole_and_many_in_blocks(monkeypatch):
    readout, weight, targets = of_loss(torch.float32)
    assert torch.equal(head_loss(readout, weight, targets), whole_loss(readout, weight, targets))
    monkeypatch.setitem(module.WHOLE_UP_TO, "cpu", N * V - 1)
    monkeypatch.setitem(module.BLOCK, "cpu", 4 * V)
    most = 0
    original = module._loss_of_block

    def watched(vectors, *rest, **targets):
        nonlocal most
        most = max(most, len(vectors[0]))
        return original(vectors, *rest, **targets)

    monkeypatch.setattr(module, "_loss_of_block", watched)
    torch.testing.assert_close(head_loss(readout, weight, targets), whole_loss(readout, weight, targets))
    assert most == 4


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("next_token", {}),
        ("next_latent", {"kl_weight": 0.0}),
        ("multi_token", {}),
        ("joint_multi_token", {}),
        ("teacherless", {}),
    ],
)
@pytest.mark.usefixtures("float64")
def test_objectives_are_the_same_either_way(monkeypatch, name, fields, tied):
    objective = tiny_objective(name, backbone={"tied": tied}, **fields)
    spread_weights(objective)

    def results():
        found = []
        for batch in (random_batch(), pack(random_batch())):
            value = objective(batch).value()
            found += [value, *torch.autograd.grad(value, list(objective.parameters()))]
        return found

    expected = results()
    monkeypatch.setitem(module.WHOLE_UP_TO, "cpu", 0)
    monkeypatch.setitem(module.BLOCK, "cpu", 70)
    monkeypatch.setattr(module, "whole_loss", None)
    torch.testing.assert_close(results(), expected)


def of_divergence(dtype=torch.float64, counted=0.7):
    generator = torch.Generator().manual_seed(0)
    ahead, known = (torch.randn(N, D, generator=generator).to(dtype).requires_grad_() for _ in range(2))
    weight = torch.randn(V, D, generator=generator).to(dtype).requires_grad_()
    return ahead, known, weight, torch.rand(N, generator=generator) < counted


def target_of(known, weight):
    """Log-probabilities and probabilities of the known distribution, in float32 or better."""
    log_probs = to_float32(F.linear(known, weight)).log_softmax(-1)
    return log_probs, log_probs.exp()


def slow_divergence(ahead, known, weight, counted):
    """Equation 4, one position at a time."""
    total = sum((part * 0).sum() for part in (ahead, known, weight))
    for t in torch.nonzero(counted)[:, 0].tolist():
        p, q = ((weight @ side[t]).softmax(0) for side in (known, ahead))
        total = total + (p * (p / q).log()).sum()
    return total


@pytest.mark.parametrize("rows", [1, 5, N, 100])
@pytest.mark.parametrize("counted", [0.0, 0.7, 1.0])
def test_blocks_give_the_divergence_and_gradients_of_single_positions(rows, counted):
    ahead, known, weight, mask = of_divergence(counted=counted)
    expected, found = (
        slow_divergence(ahead, known, weight, mask),
        blockwise_divergence(ahead, known, weight, mask, rows),
    )
    torch.testing.assert_close(found, expected)
    whole = whole_divergence(ahead, target_of(known, weight), weight, mask)
    torch.testing.assert_close(whole, expected)
    for factor in (1.0, -0.3):
        theirs = torch.autograd.grad(factor * expected, (ahead, known, weight), retain_graph=True)
        for ours in (found, whole):
            gradients = torch.autograd.grad(factor * ours, (ahead, known, weight), retain_graph=True)
            torch.testing.assert_close(gradients, theirs)


def test_the_gradients_of_the_divergence_are_those_of_the_function():
    ahead, known, weight, mask = of_divergence()
    torch.autograd.gradcheck(lambda a, k, w: blockwise_divergence(a, k, w, mask, 4), (ahead, known, weight))
    # A fixed target's distribution is fixed for the head as well.
    target = target_of(known.detach(), weight.detach())
    fixed = torch.autograd.grad(blockwise_divergence(ahead, known.detach(), weight, mask, 4), (ahead, weight))
    torch.testing.assert_close(
        fixed, torch.autograd.grad(whole_divergence(ahead, target, weight, mask), (ahead, weight))
    )


def test_nothing_as_large_as_the_logits_is_kept():
    ahead, known, _, mask = of_divergence()
    weight = torch.randn(1000, D, dtype=torch.float64, requires_grad=True)
    kept = []

    def keep(tensor):
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        blockwise_divergence(ahead, known, weight, mask, 5)
    assert sum(kept) < N * len(weight)


def test_with_all_logits_at_once_each_rollout_step_keeps_one_tensor_of_their_size():
    ahead, known, weight, mask = of_divergence()
    target = target_of(known.detach(), weight.detach())
    with kept_for_backward(set()) as kept:
        divergences = [whole_divergence(ahead, target, weight.detach(), mask) for _ in range(4)]
    assert all(each.requires_grad for each in divergences)
    probabilities = target[1].untyped_storage()
    assert kept.pop(probabilities.data_ptr()) == probabilities.nbytes()
    assert sum(size >= probabilities.nbytes() for size in kept.values()) == 4


def test_of_the_divergence_what_needs_no_gradient_gets_none():
    ahead, known, weight, mask = of_divergence()
    wanted = torch.autograd.grad(slow_divergence(ahead, known, weight, mask), ahead)[0]
    fixed = blockwise_divergence(ahead, known.detach(), weight.detach(), mask, 5)
    torch.testing.assert_close(torch.autograd.grad(fixed, (ahead, weight), allow_unused=True), (wanted, None))
    with torch.no_grad():
        assert not blockwise_divergence(ahead, known, weight, mask, 5).requires_grad
    assert not blockwise_divergence(ahead.detach(), known.detach(), weight.detach(), mask, 5).requires_grad


def test_of_the_divergence_under_autocast_only_products_are_coarse():
    ahead, known, weight, mask = of_divergence(torch.float32)
    exact = torch.autograd.grad(slow_divergence(ahead, known, weight, mask), (ahead, known, weight))
    with torch.autocast("cpu", torch.bfloat16):
        found = blockwise_divergence(ahead, known, weight, mask, 5)
        whole = whole_divergence(ahead, target_of(known, weight), weight, mask)
        torch.testing.assert_close(found, whole, rtol=1e-5, atol=1e-5)
    assert found.dtype == torch.float32
    for ours, theirs in zip(torch.autograd.grad(found, (ahead, known, weight)), exact):
        assert ours.dtype == torch.float32
        assert (ours - theirs).norm() < 0.02 * theirs.norm()


@pytest.mark.parametrize("head_gradient", [True, False])
@pytest.mark.parametrize("stop_gradient", [True, False])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("make_backbone", [tiny_gpt, tiny_two_stream, tiny_belief_slots])
@pytest.mark.usefixtures("float64")
def test_next_latent_is_the_same_either_way(monkeypatch, make_backbone, tied, stop_gradient, head_gradient):
    objective = tiny_objective(
        "next_latent",
        backbone={"tied": tied},
        make_backbone=make_backbone,
        horizon=3,
        stop_gradient=stop_gradient,
        head_gradient=head_gradient,
    )
    spread_weights(objective)

    def results():
        found = []
        for batch in (random_batch(), pack(random_batch())):
            value = objective(batch).value()
            found += [value, *torch.autograd.grad(value, list(objective.parameters()), allow_unused=True)]
        return [torch.zeros(()) if each is None else each for each in found]

    expected = results()
    monkeypatch.setitem(module.WHOLE_UP_TO, "cpu", 0)
    monkeypatch.setitem(module.BLOCK, "cpu", 70)
    monkeypatch.setattr(module, "whole_divergence", None)
    monkeypatch.setattr(module, "whole_loss", None)
    torch.testing.assert_close(results(), expected)
