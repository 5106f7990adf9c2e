import itertools

import pytest
import torch
from doubles import rotate
from torch.autograd import gradcheck

from statewise.backbones.nn.attention import (
    KEPT_ONCE_FROM,
    attend,
    attend_fused,
    attend_written_out,
    rotary_angles,
    split_heads,
)
from statewise.backbones.nn.masks import causal, causal_within_documents, positions_within_documents

WAYS = {"written out": attend_written_out, "fused": attend_fused, "chosen": attend}


def slow_twin(query, key, value, allowed):
    """One query at a time, straight from the definition."""
    out = torch.zeros(*query.shape[:-1], value.shape[-1], dtype=query.dtype)
    for b in range(query.shape[0]):
        for h in range(query.shape[1]):
            for q in range(query.shape[2]):
                scores = [query[b, h, q] @ key[b, h, k] / query.shape[-1] ** 0.5 for k in range(key.shape[2])]
                seen = [k for k in range(key.shape[2]) if allowed[b, q, k]]
                weights = torch.stack([scores[k] for k in seen]).softmax(0)
                out[b, h, q] = sum(weight * value[b, h, k] for weight, k in zip(weights, seen))
    return out


def inputs(queries, keys, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = [(2, 3, queries, 4), (2, 3, keys, 4), (2, 3, keys, 4)]
    return [torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize(("queries", "keys"), [(5, 5), (1, 7), (3, 7)])
@pytest.mark.parametrize("masked", [False, True])
def test_every_way_is_the_definition_gradients_included(way, queries, keys, masked):
    tensors = inputs(queries, keys)
    mask = None
    allowed = causal(queries, keys, torch.device("cpu")).expand(2, -1, -1)
    if masked:
        drawn = torch.rand(2, 1, queries, keys, generator=torch.Generator().manual_seed(3)) < 0.5
        mask = drawn | torch.eye(queries, keys, dtype=torch.bool)
        allowed = mask[:, 0]
    fast = way(*tensors, mask=mask)
    slow = slow_twin(*tensors, allowed)
    torch.testing.assert_close(fast, slow)
    weights = torch.randn(fast.shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    for got, expected in zip(
        torch.autograd.grad((fast * weights).sum(), tensors), torch.autograd.grad((slow * weights).sum(), tensors)
    ):
        torch.testing.assert_close(got, expected)


def test_a_single_query_in_bf16():
    """Which is not asked as one: see `attend_fused`."""
    tensors = [tensor.detach() for tensor in inputs(1, 9)]
    every, some = torch.ones(1, 9, dtype=torch.bool), torch.arange(9)[None] % 3 == 1
    for mask, allowed in ((None, every), (every, every), (some, some), (some.expand(2, 3, 1, 9), some)):
        found = attend(*(tensor.bfloat16() for tensor in tensors), mask=mask)
        assert found.dtype == torch.bfloat16
        exact = slow_twin(*tensors, allowed.expand(2, 1, 9))
        torch.testing.assert_close(found.double(), exact, atol=0.02, rtol=0.02)


@pytest.mark.parametrize("keys", [20, 40])
def test_gradients_in_bfloat16_are_those_of_float64_up_to_rounding(keys):
    tensors = [tensor.bfloat16().detach().requires_grad_() for tensor in inputs(keys, keys)]
    exact = [tensor.detach().double().requires_grad_() for tensor in tensors]
    kept = []

    def keep(tensor):
        kept.append(tensor.dtype)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        found = attend_written_out(*tensors)
    assert (torch.float32 in kept) == (keys < KEPT_ONCE_FROM)
    along = torch.randn_like(found)
    ours = torch.autograd.grad(found, tensors, along)
    for one, other in zip(ours, torch.autograd.grad(attend_written_out(*exact), exact, along.double())):
        assert (one - other).norm() < 0.02 * other.norm()


def test_written_out_passes_gradcheck():
    assert gradcheck(attend_written_out, inputs(3, 3))


def test_documents_do_not_see_each_other():
    documents = torch.tensor([[1, 1, 2, 2, 2, 0], [1, 1, 1, 1, 0, 0]])
    allowed = causal_within_documents(documents)[:, 0]
    for b in range(2):
        for q in range(6):
            for k in range(6):
                assert allowed[b, q, k] == (k <= q and documents[b, q] == documents[b, k])
    assert positions_within_documents(documents).tolist() == [[0, 1, 0, 1, 2, 0], [0, 1, 2, 3, 0, 1]]


def by_definition(mixed, count, heads, turned, rotation):
    *rows, T, width = mixed.shape
    apart = mixed.view(*rows, T, count, heads, width // count // heads)
    last = apart.dim() - 1
    parts = [apart.select(-3, place).movedim(last - 2, 1) for place in range(count)]
    return [rotate(part, rotation) if rotation and place < turned else part for place, part in enumerate(parts)]


@pytest.mark.parametrize(
    ("rows", "count", "turned", "placed"),
    [
        *itertools.product([(2,), (2, 3)], [3], [2], ["alike", "by row"]),
        ((2,), 3, 2, "nowhere"),
        ((2, 3), 1, 1, "alike"),
        ((2, 3), 2, 1, "alike"),
        ((2,), 2, 0, "alike"),
    ],
)
@pytest.mark.parametrize("compiling", [False, True])
@pytest.mark.usefixtures("float64")
def test_heads_and_their_gradients_are_those_of_the_definition(rows, count, turned, placed, compiling, monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: compiling)
    heads, width, T = 2, 6, 5
    mixed = torch.randn(*rows, T, count * heads * width, requires_grad=True)
    place = torch.tensor([3, 4, 5, 6, 7])
    rotation = rotary_angles(place if placed == "alike" else torch.stack((place, place + 4)), width)
    if placed == "by row" and len(rows) > 1:
        rotation = tuple(part[:, :, None] for part in rotation)
    if placed == "nowhere":
        rotation = None
    found = split_heads(mixed, count, heads, turned=turned, rotation=rotation)
    expected = by_definition(mixed, count, heads, turned, rotation)
    weights = [torch.randn_like(part) for part in expected]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-14)
        assert one.is_contiguous()
    gradients = [
        torch.autograd.grad(sum((part * weight).sum() for part, weight in zip(parts, weights)), mixed)[0]
        for parts in (found, expected)
    ]
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-14)
    with torch.no_grad():
        for one, other in zip(split_heads(mixed, count, heads, turned=turned, rotation=rotation), found, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_training_and_reading_agree_in_every_precision(dtype):
    """Also of what does not lie in one piece, and of no rows."""
    for rows in (3, 0):
        mixed = torch.randn(7, rows, 3 * 2 * 8).transpose(0, 1).to(dtype)
        rotation = rotary_angles(torch.arange(7), 8)
        read = split_heads(mixed.contiguous(), 3, 2, turned=2, rotation=rotation)
        trained = split_heads(mixed.contiguous().requires_grad_(), 3, 2, turned=2, rotation=rotation)
        for one, other in zip(read, trained, strict=True):
            assert one.shape == (rows, 2, 7, 8)
            assert one.dtype == other.dtype == dtype
            torch.testing.assert_close(one, other.detach(), rtol=0.02, atol=0.02 if dtype == torch.bfloat16 else 1e-6)


def test_a_part_that_nobody_reads_has_no_gradient(float64):
    mixed = torch.randn(1, 3, 3 * 4, requires_grad=True)
    query, _, _ = split_heads(mixed, 3, 1, turned=2, rotation=rotary_angles(torch.arange(3), 4))
    query.sum().backward()
    assert mixed.grad[..., :4].abs().sum() > 0
    assert not mixed.grad[..., 4:].any()
