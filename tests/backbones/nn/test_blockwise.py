"""Every back end against the definition, gradients included."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from statewise.backbones.nn import attention
from statewise.backbones.nn.attention import attend, attend_dense, attend_flex, attend_streams
from statewise.backbones.nn.blockwise import attend_blockwise
from statewise.backbones.nn.masks import INPUT, PREDICTION, Documents, Pattern, Reach, may_read, stream_mask

STREAMS = [(INPUT,), (PREDICTION,), (INPUT, PREDICTION)]
reaches = st.sampled_from(
    [Reach(*pair) for pair in ((None, -1), (None, 0), (None, 3), (None, None), (2, None), (0, 1))]
)


def test_equation_5():
    """The key sets of the paper's equation 5, window 2, at place 4; places are counted from 0."""
    place = torch.arange(7)
    four = torch.tensor(4)
    for query, last in ((INPUT, 3), (PREDICTION, 4)):
        inputs = may_read(query, four, INPUT, place, Reach(None, 2))
        predictions = may_read(query, four, PREDICTION, place, Reach(None, 2))
        assert inputs.nonzero().flatten().tolist() == [0, 1, 2, 3, 4]
        assert predictions.nonzero().flatten().tolist() == list(range(2, last + 1))


def documents_of(generator, rows, places):
    return 1 + torch.randint(0, 3, (rows, places), generator=generator).eq(0).cumsum(1)


def from_the_definition(query, key, value, streams, reach, documents):
    """One query at a time, in the plainest words."""
    B, H, _, T, W = query.shape
    out = torch.zeros_like(query)
    for b in range(B):
        for s, stream in enumerate(streams):
            for i in range(T):
                seen = []
                for other in range(key.shape[2]):
                    for k in range(T):
                        limit = reach[other]
                        order = k <= i if (stream, other) != (INPUT, PREDICTION) else k < i
                        if (
                            order
                            and (limit is None or i - k <= limit)
                            and (documents is None or documents[b, i] == documents[b, k])
                        ):
                            seen.append((other, k))
                for h in range(H):
                    scores = torch.stack([query[b, h, s, i] @ key[b, h, other, k] / W**0.5 for other, k in seen])
                    weights = scores.softmax(0)
                    out[b, h, s, i] = sum(w * value[b, h, other, k] for w, (other, k) in zip(weights, seen))
    return out


@given(st.integers(0, 2**31), st.integers(1, 9), st.sampled_from(STREAMS), reaches, st.booleans(), st.integers(1, 10))
@settings(max_examples=36, deadline=None)
def test_blocks_and_the_dense_mask_are_the_definition(seed, places, streams, reach, packed, block):
    generator = torch.Generator().manual_seed(seed)
    keys = 1 if reach.predictions == -1 and seed % 2 and streams == (INPUT,) else 2
    shapes = [(2, 2, len(streams), places, 4), (2, 2, keys, places, 4), (2, 2, keys, places, 4)]
    tensors = [torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True) for shape in shapes]
    documents = documents_of(generator, 2, places) if packed else None
    slow = from_the_definition(*tensors, streams, reach, documents)
    weight = torch.randn(slow.shape, generator=generator, dtype=torch.float64)
    wanted = torch.autograd.grad((slow * weight).sum(), tensors)
    pattern = Pattern(streams, reach, None if documents is None else Documents(documents))
    for fast in (attend_blockwise(*tensors, pattern, block=block), attend_dense(*tensors, pattern)):
        torch.testing.assert_close(fast, slow)
        for got, expected in zip(torch.autograd.grad((fast * weight).sum(), tensors), wanted):
            torch.testing.assert_close(got, expected)


@pytest.mark.parametrize(
    ("streams", "reach", "packed"),
    [
        (streams, reach, (row + column) % 2 == 0)
        for row, streams in enumerate(STREAMS)
        for column, reach in enumerate([Reach(None, 3), Reach(None, -1), Reach(5, None)])
        if (row + column) % 3  # each case takes a third of a second
    ],
)
def test_flex_is_the_dense_mask(streams, reach, packed):
    """Forward alone: on a CPU it has no backward."""
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(2, 2, len(streams), 150, 16, generator=generator)
    key, value = (torch.randn(2, 2, 2, 150, 16, generator=generator) for _ in range(2))
    pattern = Pattern(streams, reach, Documents(documents_of(generator, 2, 150)) if packed else None)
    torch.testing.assert_close(
        attend_flex(query, key, value, pattern), attend_dense(query, key, value, pattern), rtol=1e-4, atol=1e-5
    )


def test_flex_has_few_shapes_and_short_rows_none(monkeypatch):
    """On a GPU every shape compiles a kernel, and from some number on PyTorch would go on without."""
    shapes = []

    def compiled(query, key, value, *, block_mask):
        shapes.append(query.shape)
        assert torch._dynamo.config.recompile_limit == attention.FLEX_SHAPES
        return torch.nn.functional.scaled_dot_product_attention(query, key, value)

    monkeypatch.setattr(attention, "_flex", lambda device: compiled)
    for places in range(600, 760, 7):
        part = torch.zeros(1, 1, 1, places, 16)
        assert attend_flex(part, part, part, Pattern((INPUT,), Reach(None, -1))).shape == part.shape
    assert {shape[2] for shape in shapes} == {640, 768}
    assert not attention.takes_flex(511, 64)
    assert not attention.takes_flex(4096, 8)
    assert attention.takes_flex(512, 16)


def test_bf16_is_near_float32():
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(1, 2, 2, 300, 16, generator=generator, requires_grad=True) for _ in range(3)]
    pattern = Pattern((INPUT, PREDICTION), Reach(None, 16))
    exact = attend_streams(*tensors, pattern)
    rough = attend_streams(*(tensor.bfloat16() for tensor in tensors), pattern)
    assert rough.dtype == torch.bfloat16
    torch.testing.assert_close(rough.float(), exact, rtol=0.02, atol=0.03)
    for got, wanted in zip(
        torch.autograd.grad(rough.float().square().sum(), tensors), torch.autograd.grad(exact.square().sum(), tensors)
    ):
        assert (got - wanted).norm() < 0.02 * wanted.norm()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_large_scores_stay_finite_in_blocks(dtype):
    """A query takes the only key whose score is not far below the largest; nothing but the inputs is kept for that."""
    query, key = torch.zeros(1, 1, 1, 40, 16), torch.zeros(1, 1, 1, 40, 16)
    query[..., 0], key[0, 0, 0, 7, 0] = 300.0, 300.0
    value = torch.arange(40.0)[:, None].expand(1, 1, 1, 40, 16)
    parts = [part.to(dtype).clone().requires_grad_() for part in (query, key, value)]
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda part: kept.append(part) or part, lambda part: part):
        found = attend_blockwise(*parts, Pattern((INPUT,), Reach(None, -1)), block=8)
    assert sum(part.numel() for part in kept) == 3 * found.numel()
    torch.testing.assert_close(found[0, 0, 0, 7:], torch.full((33, 16), 7.0, dtype=dtype))
    to_query, to_key, to_value = torch.autograd.grad(found.sum(), parts)
    assert to_query.isfinite().all()
    assert to_key.isfinite().all()
    assert to_value[0, 0, 0, 7, 0] == 33


def test_plain_attention_within_documents_is_the_one_stream_case():
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(2, 2, 20, 8, generator=generator) for _ in range(3)]
    documents = documents_of(generator, 2, 20)
    mask = stream_mask((INPUT,), 20, Reach(None, -1), documents)[..., :20]
    torch.testing.assert_close(attend(*tensors, documents=Documents(documents)), attend(*tensors, mask=mask))
    some = attend(*tensors, documents=Documents(documents), dropout=0.5)  # dropout needs the mask written out
    assert some.shape == tensors[0].shape


def test_compiled_blocks_are_not_unrolled():
    """They were, in each layer and anew for each length, until the compiler gave up."""
    graphs = []

    def attend_twice(query, key, value):
        once = attend_blockwise(2 * query, key, value, Pattern((INPUT, PREDICTION), Reach(None, 2)), block=2)
        return once.square().sum(-1)

    torch.compiler.reset()
    compiled = torch.compile(attend_twice, backend=lambda graph, _: graphs.append(graph) or graph)
    for places in range(3, 13):
        parts = [torch.randn(2, 2, 2, places, 4, requires_grad=True) for _ in range(3)]
        got, expected = (made(*parts) for made in (compiled, attend_twice))
        torch.testing.assert_close(got, expected)
        for one, other in zip(*(torch.autograd.grad(made.sum(), parts) for made in (got, expected))):
            torch.testing.assert_close(one, other)
    operations = [node for graph in graphs for node in graph.graph.nodes if node.op.startswith("call")]
    assert len(graphs) <= 4  # before and after, for one length and for others
    assert len(operations) <= 12
