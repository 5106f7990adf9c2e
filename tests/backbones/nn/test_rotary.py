"""Heads split and rotated against the definition, in float64, with gradients."""

import itertools

import pytest
import torch
from doubles import rotate

from statewise.backbones.nn.attention import rotary_angles, split_heads


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
@pytest.mark.usefixtures("float64")
def test_heads_and_their_gradients_are_those_of_the_definition(rows, count, turned, placed):
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
