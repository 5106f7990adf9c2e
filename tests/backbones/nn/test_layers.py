import pytest
import torch
from torch import nn
from torch.autograd import gradcheck

from statewise.backbones.nn.layers import RMSNorm, make_norm


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
