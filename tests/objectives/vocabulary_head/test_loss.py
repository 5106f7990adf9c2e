"""The loss of the vocabulary head in blocks, against all logits at once."""

import pytest
import torch
from doubles import pack, random_batch, spread_weights, tiny_objective
from torch.nn import functional as F

from statewise.objectives.targets import IGNORED
from statewise.objectives.vocabulary_head import blocks as head_blocks
from statewise.objectives.vocabulary_head import loss as module
from statewise.objectives.vocabulary_head.loss import blockwise, head_loss, whole

N, D, V = 23, 8, 17


def inputs(dtype=torch.float64, scored=0.7):
    generator = torch.Generator().manual_seed(0)
    readout = torch.randn(N, D, generator=generator).to(dtype).requires_grad_()
    weight = torch.randn(V, D, generator=generator).to(dtype).requires_grad_()
    targets = torch.randint(V, (N,), generator=generator)
    return readout, weight, torch.where(torch.rand(N, generator=generator) < scored, targets, IGNORED)


def slow(readout, weight, targets):
    """One position at a time."""
    losses = [F.cross_entropy(weight @ readout[t], targets[t]) for t in range(len(targets)) if targets[t] != IGNORED]
    return sum(losses, start=(readout * 0).sum() + (weight * 0).sum())


@pytest.mark.parametrize("rows", [1, 5, N, 100])
@pytest.mark.parametrize("scored", [0.0, 0.7, 1.0])
def test_blocks_give_the_loss_and_gradients_of_single_positions(rows, scored):
    readout, weight, targets = inputs(scored=scored)
    expected, found = slow(readout, weight, targets), blockwise(readout, weight, targets, rows)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(whole(readout, weight, targets), expected)
    for factor in (1.0, -0.3):
        ours = torch.autograd.grad(factor * found, (readout, weight), retain_graph=True)
        torch.testing.assert_close(ours, torch.autograd.grad(factor * expected, (readout, weight), retain_graph=True))


def test_the_written_out_gradient_is_that_of_the_function():
    readout, weight, targets = inputs()
    torch.autograd.gradcheck(lambda x, w: blockwise(x, w, targets, 4), (readout, weight))


def test_what_needs_no_gradient_gets_none():
    readout, weight, targets = inputs()
    expected = torch.autograd.grad(whole(readout, weight, targets), readout)[0]
    frozen = blockwise(readout, weight.detach(), targets, 5)
    torch.testing.assert_close(torch.autograd.grad(frozen, readout)[0], expected)
    with torch.no_grad():
        assert not blockwise(readout, weight, targets, 5).requires_grad
    assert not blockwise(readout.detach(), weight.detach(), targets, 5).requires_grad


def test_a_matrix_that_is_also_the_embedding_gets_both_gradients():
    _, weight, targets = inputs()
    tokens = torch.arange(N) % V
    readout = F.embedding(tokens, weight).tanh()
    expected = torch.autograd.grad(slow(readout, weight, targets), weight, retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(blockwise(readout, weight, targets, 5), weight), expected)


def test_under_autocast_only_products_are_coarse():
    readout, weight, targets = inputs(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        ways = whole(readout, weight, targets), blockwise(readout, weight, targets, 5)
    torch.testing.assert_close(ways[1], ways[0], rtol=1e-5, atol=1e-5)  # of the same rounded logits
    assert ways[1].dtype == torch.float32
    exact = torch.autograd.grad(whole(readout, weight, targets), (readout, weight))
    for way in ways:
        found = torch.autograd.grad(way, (readout, weight))
        assert [part.dtype for part in found] == [torch.float32] * 2
        for ours, theirs in zip(found, exact):
            assert (ours - theirs).norm() < 0.02 * theirs.norm()


def test_float64_stays_exact_under_autocast():
    readout, weight, targets = inputs()
    with torch.autocast("cpu", torch.bfloat16):
        found = blockwise(readout, weight, targets, 5)
    torch.testing.assert_close(found, slow(readout, weight, targets))


def test_few_logits_are_taken_whole_and_many_in_blocks(monkeypatch):
    readout, weight, targets = inputs(torch.float32)
    assert torch.equal(head_loss(readout, weight, targets), whole(readout, weight, targets))
    monkeypatch.setitem(module.WHOLE_UP_TO, "cpu", N * V - 1)
    monkeypatch.setitem(head_blocks.BLOCK, "cpu", 4 * V)
    most = 0
    original = module.one_block

    def watched(x, *rest):
        nonlocal most
        most = max(most, len(x))
        return original(x, *rest)

    monkeypatch.setattr(module, "one_block", watched)
    torch.testing.assert_close(head_loss(readout, weight, targets), whole(readout, weight, targets))
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
    monkeypatch.setitem(head_blocks.BLOCK, "cpu", 70)
    monkeypatch.setattr(module, "whole", None)
    torch.testing.assert_close(results(), expected)
