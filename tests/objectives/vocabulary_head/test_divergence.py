"""The divergence between two readings of a vocabulary head in blocks, against all logits at once."""

import pytest
import torch
from doubles import pack, random_batch, spread_weights, tiny_belief_slots, tiny_gpt, tiny_objective, tiny_two_stream

from statewise.objectives.vocabulary_head import blocks as head_blocks
from statewise.objectives.vocabulary_head import divergence as module
from statewise.objectives.vocabulary_head import loss as head_loss
from statewise.objectives.vocabulary_head.divergence import blockwise, whole

N, D, V = 23, 8, 17


def inputs(dtype=torch.float64, counted=0.7):
    generator = torch.Generator().manual_seed(0)
    ahead, known = (torch.randn(N, D, generator=generator).to(dtype).requires_grad_() for _ in range(2))
    weight = torch.randn(V, D, generator=generator).to(dtype).requires_grad_()
    return ahead, known, weight, torch.rand(N, generator=generator) < counted


def slow(ahead, known, weight, counted):
    """Equation 4, one position at a time."""
    total = sum((part * 0).sum() for part in (ahead, known, weight))
    for t in torch.nonzero(counted)[:, 0].tolist():
        p, q = ((weight @ side[t]).softmax(0) for side in (known, ahead))
        total = total + (p * (p / q).log()).sum()
    return total


@pytest.mark.parametrize("rows", [1, 5, N, 100])
@pytest.mark.parametrize("counted", [0.0, 0.7, 1.0])
def test_blocks_give_the_divergence_and_gradients_of_single_positions(rows, counted):
    ahead, known, weight, mask = inputs(counted=counted)
    expected, found = slow(ahead, known, weight, mask), blockwise(ahead, known, weight, mask, rows)
    torch.testing.assert_close(found, expected)
    log_probs = (known @ weight.T).log_softmax(-1)
    torch.testing.assert_close(whole(ahead, log_probs, weight, mask), expected)
    for factor in (1.0, -0.3):
        ours = torch.autograd.grad(factor * found, (ahead, known, weight), retain_graph=True)
        theirs = torch.autograd.grad(factor * expected, (ahead, known, weight), retain_graph=True)
        torch.testing.assert_close(ours, theirs)


def test_the_written_out_gradients_are_those_of_the_function():
    ahead, known, weight, mask = inputs()
    torch.autograd.gradcheck(lambda a, k, w: blockwise(a, k, w, mask, 4), (ahead, known, weight))
    # A fixed target's distribution is fixed for the head as well.
    target = (known @ weight.T).log_softmax(-1).detach()
    fixed = torch.autograd.grad(blockwise(ahead, known.detach(), weight, mask, 4), (ahead, weight))
    torch.testing.assert_close(fixed, torch.autograd.grad(whole(ahead, target, weight, mask), (ahead, weight)))


def test_nothing_as_large_as_the_logits_is_kept():
    ahead, known, _, mask = inputs()
    weight = torch.randn(1000, D, dtype=torch.float64, requires_grad=True)
    kept = []

    def keep(tensor):
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        blockwise(ahead, known, weight, mask, 5)
    assert sum(kept) < N * len(weight)


def test_what_needs_no_gradient_gets_none():
    ahead, known, weight, mask = inputs()
    wanted = torch.autograd.grad(slow(ahead, known, weight, mask), ahead)[0]
    fixed = blockwise(ahead, known.detach(), weight.detach(), mask, 5)
    torch.testing.assert_close(torch.autograd.grad(fixed, (ahead, weight), allow_unused=True), (wanted, None))
    with torch.no_grad():
        assert not blockwise(ahead, known, weight, mask, 5).requires_grad
    assert not blockwise(ahead.detach(), known.detach(), weight.detach(), mask, 5).requires_grad


def test_under_autocast_only_products_are_coarse():
    ahead, known, weight, mask = inputs(torch.float32)
    exact = torch.autograd.grad(slow(ahead, known, weight, mask), (ahead, known, weight))
    with torch.autocast("cpu", torch.bfloat16):
        found = blockwise(ahead, known, weight, mask, 5)
        log_probs = torch.nn.functional.linear(known, weight).float().log_softmax(-1)
        torch.testing.assert_close(found, whole(ahead, log_probs, weight, mask), rtol=1e-5, atol=1e-5)
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
    monkeypatch.setitem(head_loss.WHOLE_UP_TO, "cpu", 0)
    monkeypatch.setitem(head_blocks.BLOCK, "cpu", 70)
    monkeypatch.setattr(module, "whole", None)
    monkeypatch.setattr(head_loss, "whole", None)
    torch.testing.assert_close(results(), expected)
