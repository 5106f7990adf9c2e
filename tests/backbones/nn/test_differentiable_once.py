"""Where a gradient is written by hand, a second derivative is an error and no wrong number."""

import pytest
import torch
from doubles import tiny_gpt, tiny_two_stream

from statewise.backbones.nn.blockwise import attend_blockwise
from statewise.backbones.nn.norm import RMSNorm
from statewise.backbones.nn.streams import Reach
from statewise.data_types import Batch
from statewise.objectives.vocabulary_head.blocks import GradientsInForward

pytestmark = pytest.mark.usefixtures("float64")


class Square(GradientsInForward):
    """The sum of squares."""

    @staticmethod
    def forward(ctx, x):
        """Saves 2 x."""
        ctx.save_for_backward(2 * x)
        ctx.dtypes = [x.dtype]
        return x.square().sum()


def blockwise(x):
    heads = x.view(1, 1, 1, 6, 4)
    return attend_blockwise(heads, heads * 1.0, heads.sin(), streams=(0,), reach=Reach(None, -1))


WAYS = {"norm": RMSNorm(4, eps=1e-5).double(), "attention in blocks": blockwise, "a head in blocks": Square.apply}


@pytest.mark.parametrize("way", WAYS)
def test_a_second_derivative_is_refused(way):
    x = torch.randn(6, 4, requires_grad=True)
    (first,) = torch.autograd.grad(WAYS[way](x).pow(3).sum(), x)
    assert first.abs().sum() > 0
    with pytest.raises(RuntimeError, match="second derivatives"):
        torch.autograd.grad(WAYS[way](x).pow(3).sum(), x, create_graph=True)


@pytest.mark.parametrize("make", [tiny_gpt, tiny_two_stream])
def test_of_a_backbone_too(make):
    backbone = make()
    loss = backbone.encode(Batch.plain(torch.tensor([[1, 2, 3]]))).state.pow(3).sum()
    with pytest.raises(RuntimeError, match="second derivatives"):
        torch.autograd.grad(loss, backbone.embedding.weight, create_graph=True)
