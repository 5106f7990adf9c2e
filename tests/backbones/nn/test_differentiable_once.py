"""Where a gradient is written by hand, a second derivative is an error and no wrong number."""

import pytest
import torch
from doubles import tiny_gpt, tiny_two_stream

from statewise.backbones.nn.blockwise import attend_blockwise
from statewise.backbones.nn.layers import RMSNorm
from statewise.backbones.nn.masks import Pattern, Reach
from statewise.data_types import Batch
from statewise.losses.vocabulary_head import blockwise_loss

pytestmark = pytest.mark.usefixtures("float64")


def head_in_blocks(x):
    return blockwise_loss(x, torch.eye(4, dtype=x.dtype), torch.arange(6) % 4, rows=4)


def blockwise(x):
    heads = x.view(1, 1, 1, 6, 4)
    return attend_blockwise(heads, heads * 1.0, heads.sin(), Pattern((0,), Reach(None, -1)))


WAYS = {"norm": RMSNorm(4, eps=1e-5).double(), "attention in blocks": blockwise, "a head in blocks": head_in_blocks}


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
