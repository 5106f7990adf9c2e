import pytest
import torch
from torch.autograd import gradcheck

from statewise.backbones.nn.attention import attend, attend_fused, attend_written_out
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
