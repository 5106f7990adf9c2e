"""Stick-breaking attention against its equation, written out one share at a time."""

import math

import numpy as np
import pytest
import torch
from doubles import CONTEXT, VOCABULARY, spread_weights, tiny_gpt

from statewise.backbones.gpt import GPTConfig
from statewise.backbones.nn import stick_breaking
from statewise.backbones.nn.masks import Documents
from statewise.backbones.nn.stick_breaking import (
    attend_blocks_of_sticks,
    attend_dense_sticks,
    attend_sticks,
    stick_weights,
)
from statewise.backbones.two_stream import TwoStreamConfig
from statewise.data_types import Batch


def twin(query, key, value, allowed):
    """The equation in float64: from each query back, every key takes its share of what is left."""
    query, key, value = (part.double() for part in (query, key, value))
    B, H, Q, W = query.shape
    T = key.shape[2]
    rows = []
    for b, h, i in np.ndindex(B, H, Q):
        left, seen = query.new_ones(()), query.new_zeros(W)
        for j in reversed(range(T - Q + i)):
            if allowed[b, i, j]:
                share = torch.sigmoid(query[b, h, i] @ key[b, h, j] / math.sqrt(W))
                seen, left = seen + left * share * value[b, h, j], left * (1 - share)
        rows.append(seen)
    return torch.stack(rows).view(B, H, Q, W)


def inputs(queries, keys, dtype=torch.float64, scale=2.0):
    generator = torch.Generator().manual_seed(0)
    parts = [torch.randn(2, 2, size, 4, generator=generator, dtype=torch.float64) for size in (queries, keys, keys)]
    return [(part * scale).to(dtype).requires_grad_() for part in parts]


DOCUMENTS = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 2, 2], [0, 0, 0, 0, 0, 1, 2, 2, 2]])


def cases():
    """Name, queries, mask, documents, and what the twin reads."""
    everything = torch.ones(2, 9, 9, dtype=torch.bool)
    yield "causal", 9, None, None, everything
    yield "after a cache", 4, None, None, everything[:, :4]
    yield "one query", 1, None, None, everything[:, :1]
    holes = torch.rand(2, 5, 9, generator=torch.Generator().manual_seed(1)) < 0.6
    yield "masked keys", 5, holes[:, None], None, holes
    yield "documents", 9, None, Documents(DOCUMENTS), DOCUMENTS[:, :, None] == DOCUMENTS[:, None]


WAYS = {
    "dense": lambda query, key, value, mask, documents: attend_dense_sticks(
        query, key, value, mask=mask if documents is None else documents.mask()
    ),
    **{
        f"blocks of {size}": lambda *given, size=size: attend_blocks_of_sticks(*given, block=size)
        for size in (1, 4, 99)
    },
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("queries", "mask", "documents", "allowed"), [pytest.param(*c[1:], id=c[0]) for c in cases()])
def test_values_and_gradients_are_those_of_the_equation(way, queries, mask, documents, allowed):
    parts = inputs(queries, 9)
    expected = twin(*parts, allowed)
    weights = torch.randn(expected.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    found = WAYS[way](*parts, mask, documents)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    gradients = [torch.autograd.grad((each * weights).sum(), parts) for each in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("scale", [0.1, 3.0, 30.0])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.bfloat16, 0.03)])
def test_low_precision_is_close_and_large_scores_stay_finite(scale, dtype, bound):
    parts = inputs(9, 9, dtype, scale)
    found, expected = attend_sticks(*parts), twin(*parts, torch.ones(2, 9, 9, dtype=torch.bool))
    assert found.dtype == dtype
    weights = torch.randn(expected.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    gradients = [torch.autograd.grad((each.double() * weights).sum(), parts) for each in (found, expected)]
    for one, other in zip((found, *gradients[0]), (expected, *gradients[1])):
        assert torch.isfinite(one).all()
        assert (one - other).norm() <= bound * other.norm().clamp(min=1) * max(1, scale)


def test_shares_of_tiny_scores_keep_their_digits():
    """The sums of log(1 - sigmoid) of the keys in between are not the difference of two large sums."""
    scores = torch.tensor([[300.0, -20.0, -20.0, 0.0]])
    allowed = torch.tensor([[True, True, True, False]])
    share = 1 / (1 + math.exp(20))
    expected = torch.tensor([[(1 - share) ** 2, share * (1 - share), share, 0.0]])
    torch.testing.assert_close(stick_weights(scores, allowed), expected, rtol=1e-6, atol=0)
    assert stick_weights(torch.full((1, 5), 500.0), torch.ones(1, 5, dtype=torch.bool)).tolist() == [[0, 0, 0, 0, 1]]


def test_nothing_as_large_as_all_scores_is_allocated():
    largest = 0

    class Sizes(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            nonlocal largest
            result = function(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor):
                largest = max(largest, result.numel())
            return result

    T = 4 * stick_breaking.QUERIES
    parts = [torch.randn(1, 1, T, 4, requires_grad=True) for _ in range(3)]
    with Sizes():
        attend_sticks(*parts).sum().backward()
    assert largest == stick_breaking.QUERIES * T


def test_the_first_position_and_a_padded_query_read_nothing():
    query, key, value = inputs(3, 3)
    assert (attend_sticks(query, key, value)[:, :, 0] == 0).all()
    assert (attend_sticks(query, key, value, mask=torch.zeros(2, 1, 3, 3, dtype=torch.bool)) == 0).all()


def test_dropout_drops_shares():
    parts = inputs(9, 9)
    torch.manual_seed(0)
    dropped = torch.stack([attend_sticks(*parts, dropout=0.5) for _ in range(2000)]).detach()
    mean, spread = dropped.mean(0), dropped.std(0) / 2000**0.5
    assert (dropped[0] != dropped[1]).any()
    assert ((mean - attend_sticks(*parts)).abs() <= 6 * spread + 1e-9).all()


def sticks(**fields):
    model = tiny_gpt(attention="stick_breaking", **fields)
    spread_weights(model)
    return model


def test_without_positions_softmax_misses_the_order_that_sticks_see():
    """With one layer, the last position of softmax attention reads a bag of the earlier tokens."""
    tokens = torch.tensor([[1, 2, 3, 4], [3, 1, 2, 4]])
    for attention, differs in (("softmax", False), ("stick_breaking", True)):
        model = tiny_gpt(attention=attention, positions="none", layers=1).eval()
        spread_weights(model)
        with torch.no_grad():
            first, second = model.encode(Batch.plain(tokens)).state[:, -1]
        assert torch.allclose(first, second, atol=1e-5) != differs


@pytest.mark.parametrize("positions", ["none", "rope", "learned"])
def test_packed_documents_are_read_as_if_alone(positions):
    model = sticks(positions=positions).double().eval()
    tokens = torch.randint(0, VOCABULARY, (1, 9), generator=torch.Generator().manual_seed(0))
    numbers = DOCUMENTS[:1]
    with torch.no_grad():
        packed = model.encode(Batch.plain(tokens)._replace(documents=numbers)).state
        alone = [model.encode(Batch.plain(tokens[:, numbers[0] == number])).state for number in range(3)]
    torch.testing.assert_close(packed, torch.cat(alone, 1))


def test_a_model_compiles_to_one_graph_with_the_same_gradients():
    model = sticks(positions="none")
    tokens = torch.randint(0, VOCABULARY, (2, 6), generator=torch.Generator().manual_seed(0))

    def read(tokens):
        return model.encode(Batch.plain(tokens)).state

    found = [read(tokens), torch.compile(read, backend="eager", fullgraph=True)(tokens)]
    torch.testing.assert_close(*found)
    weights = torch.randn_like(found[0])
    torch.testing.assert_close(*[torch.autograd.grad((each * weights).sum(), model.embedding.matrix) for each in found])


def test_flops_leave_out_the_own_position():
    softmax, stick = tiny_gpt(), tiny_gpt(attention="stick_breaking")
    assert softmax.flops(CONTEXT) - stick.flops(CONTEXT) == 2 * 2 * CONTEXT * 2 * 16  # 2 layers, scores and sums
    assert stick.flops(1) == 2 * stick.block_weights


def test_two_streams_refuse_what_they_do_not_have():
    assert GPTConfig().attention == "softmax"
    for fields in ({"attention": "stick_breaking"}, {"positions": "none"}):
        with pytest.raises(ValueError, match="two_stream has softmax attention and positions rope or learned"):
            TwoStreamConfig(**fields)


@pytest.mark.slow
def test_an_exported_model_takes_any_length():
    class Readout(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = sticks(positions="none").eval()

        def forward(self, tokens):
            return self.model.encode(Batch.plain(tokens)).readout

    model, length = Readout(), torch.export.Dim("length", min=2, max=CONTEXT)
    shapes = {"tokens": {1: length}}
    exported = torch.export.export(model, (torch.zeros(2, 7, dtype=torch.long),), dynamic_shapes=shapes).module()
    for size in (2, CONTEXT):
        tokens = torch.randint(0, VOCABULARY, (2, size), generator=torch.Generator().manual_seed(size))
        torch.testing.assert_close(exported(tokens), model(tokens))
