"""Gated SiLU against the definition, with gradients."""

import pytest
import torch

from statewise.nn.gating import gated_silu


def by_definition(both):
    gate, value = both.chunk(2, dim=-1)
    return gate * torch.sigmoid(gate) * value


@pytest.mark.parametrize(("dtype", "slack"), [(torch.float64, 1e-14), (torch.bfloat16, 0.05)])
def test_value_and_gradient_are_those_of_the_definition(dtype, slack):
    both = (3 * torch.randn(4, 5, 2 * 24)).to(dtype).requires_grad_()
    weight = torch.randn(4, 5, 24).to(dtype)
    found, expected = gated_silu(both), by_definition(both.double())
    torch.testing.assert_close(found.double(), expected, rtol=slack, atol=slack)
    gradient = torch.autograd.grad((found * weight).sum(), both)[0]
    other = torch.autograd.grad((expected * weight.double()).sum(), both)[0]
    torch.testing.assert_close(gradient, other, rtol=slack, atol=slack)


def test_far_out_it_stays_finite(float64):
    both = torch.tensor([[-1e4, 1e4, 0.0, 2.0, 3.0, 4.0]], requires_grad=True)
    gated_silu(both).sum().backward()
    torch.testing.assert_close(both.grad, torch.tensor([[0.0, 3.0, 2.0, 0.0, 1e4, 0.0]]))
