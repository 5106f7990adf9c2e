"""Gated DeltaNet: the delta rule by chunks and by tokens against its equation, and documents that share a row."""

import numpy as np
import pytest
import torch
from doubles import VOCABULARY, spread_weights, tiny_deltanet

from statewise.backbones import deltanet
from statewise.backbones.deltanet import DeltaNetConfig, Rule, by_chunks, by_kernel, by_tokens, fused_rule
from statewise.backbones.nn.cache import SLACK
from statewise.data_types import Batch

ROWS, HEADS, TOKENS, WIDTH = 2, 3, 11, 4


def rule(requires_grad=False):
    """Random vectors; `beta` goes from 0 to 2, so that eigenvalues of both signs occur."""
    query, key, value = torch.randn(3, ROWS, HEADS, TOKENS, WIDTH)
    beta, log_alpha = 2 * torch.rand(ROWS, HEADS, TOKENS), -torch.rand(ROWS, HEADS, TOKENS)
    parts = (query, key / key.norm(dim=-1, keepdim=True), value, beta, log_alpha)
    return Rule(*(each.requires_grad_(requires_grad) for each in parts))


def twin(given, memory, starts):
    """S_t = S_(t-1) alpha_t (I - beta_t k_t k_t^T) + beta_t v_t k_t^T and o_t = S_t q_t, one row, head and token at a
    time; S = 0 at `starts` (row, token). `memory` is S^T before the first token."""
    outputs, lasts = torch.zeros(ROWS, HEADS, TOKENS, WIDTH), torch.zeros(ROWS, HEADS, WIDTH, WIDTH)
    for row in range(ROWS):
        for head in range(HEADS):
            S = memory[row, head].T
            for t in range(TOKENS):
                q, k, v, beta, log_alpha = (each[row, head, t] for each in given)
                if (row, t) in starts:
                    S = torch.zeros_like(S)
                S = S @ (log_alpha.exp() * (torch.eye(WIDTH) - beta * torch.outer(k, k))) + beta * torch.outer(v, k)
                outputs[row, head, t] = S @ q
            lasts[row, head] = S.T
    return outputs, lasts


@pytest.mark.parametrize("chunk", [1, 4, 16])
@pytest.mark.parametrize("starts", [set(), {(0, 3), (0, 4), (1, 8)}])
@pytest.mark.usefixtures("float64")
def test_chunks_are_the_equation_and_so_are_their_gradients(chunk, starts):
    given, memory = rule(requires_grad=True), torch.randn(ROWS, HEADS, WIDTH, WIDTH, requires_grad=True)
    segments = None
    if starts:
        segments = torch.zeros(ROWS, TOKENS, dtype=torch.int64)
        for row, t in starts:
            segments[row, t:] += 1
    found, expected = by_chunks(given, memory, segments, chunk), twin(given, memory, starts)
    torch.testing.assert_close(found, expected)
    weights = [torch.randn_like(each) for each in expected]
    inputs = [*given, memory]
    mine, slow = (
        torch.autograd.grad(sum((each * weight).sum() for each, weight in zip(pair, weights)), inputs)
        for pair in (found, expected)
    )
    torch.testing.assert_close(mine, slow)


@pytest.mark.usefixtures("float64")
def test_tokens_one_by_one_are_the_equation():
    given, memory = rule(), torch.randn(ROWS, HEADS, WIDTH, WIDTH)
    outputs, memories = by_tokens(given, memory)
    expected, last = twin(given, memory, set())
    torch.testing.assert_close(outputs, expected)
    torch.testing.assert_close(memories[:, -1], last)


@pytest.mark.parametrize("fields", [{}, {"convolution": 0}, {"decay": False, "negative_eigenvalues": False}])
@pytest.mark.usefixtures("float64")
def test_documents_of_a_row_begin_with_an_empty_memory_and_so_do_their_gradients(fields):
    made = tiny_deltanet(**fields)
    spread_weights(made)
    tokens = torch.randint(0, VOCABULARY, (2, 20))
    documents = torch.tensor([[1] * 4 + [2] * 15 + [0], [3] + [4] * 19])
    weights = torch.randn(20, 16)
    packed = (made.encode(Batch.plain(tokens, documents)).readout * weights * (documents > 0)[..., None]).sum()
    parts = [(0, 0, 4), (0, 4, 19), (1, 0, 1), (1, 1, 20)]
    apart = sum(
        (made.encode(Batch.plain(tokens[row : row + 1, first:end])).readout[0] * weights[first:end]).sum()
        for row, first, end in parts
    )
    torch.testing.assert_close(packed, apart)
    parameters = list(made.parameters())
    torch.testing.assert_close(torch.autograd.grad(packed, parameters), torch.autograd.grad(apart, parameters))


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.usefixtures("float64")
def test_long_prompts_of_different_length_are_read_at_once_and_taken_back(held):
    made = tiny_deltanet(context=200).eval()
    spread_weights(made)
    tokens, counts = torch.randint(0, VOCABULARY, (4, 110)), np.array([110, 90, 100, 70])
    with torch.no_grad():
        cache = made.make_cache(4)
        if held:
            cache.hold()
        hidden = made.extend(tokens, cache, counts)
        back = np.array([110, 3, 100, 69]) if held else np.array([SLACK, 0, 1, SLACK])
        cache.rewind(back)
        again = made.extend(tokens[:, :2], cache)
        for row, left in enumerate(counts - back):
            expected = made.encode(Batch.plain(tokens[row, : counts[row]][None]))
            torch.testing.assert_close(hidden.readout[row, : counts[row]], expected.readout[0])
            whole = torch.cat([tokens[row, :left], tokens[row, :2]])[None]
            torch.testing.assert_close(again.readout[row], made.encode(Batch.plain(whole)).readout[0, -2:])
        if not held:
            with pytest.raises(ValueError, match="cannot go back"):
                cache.rewind(SLACK + 3)


def test_only_with_negative_eigenvalues_may_a_token_turn_what_is_stored():
    for negative in (False, True):
        made = tiny_deltanet(negative_eigenvalues=negative)
        layer = made.blocks[0].attention
        strong = torch.full((1, 1, layer.config.heads), 20.0)
        beta = layer._rule(torch.randn(1, 1, 48), strong, torch.zeros(1, 1, layer.config.heads)).beta
        torch.testing.assert_close(1 - beta, torch.full_like(beta, -1.0 if negative else 0.0))


def test_memories_are_at_least_float32_whatever_autocast_says():
    made = tiny_deltanet().eval()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        cache = made.make_cache(1)
        made.extend(torch.randint(0, VOCABULARY, (1, 5)), cache)
    assert {each.dtype for each in cache.contents()} == {torch.float32}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"width": 10, "heads": 3}, "width 10 cannot be divided among 3 heads"),
        ({"convolution": -1}, "backbone.convolution must be"),
        ({"convolution": 65}, "backbone.convolution must be"),
        ({"expansion": 0.0}, "backbone.expansion must be"),
        ({"layers": 0}, "backbone.layers must be"),
        ({"norm_eps": 0.0}, "backbone.norm_eps must be"),
        ({"init": "pytorch"}, "backbone.init must be"),
    ],
)
def test_fields_that_make_no_model_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        DeltaNetConfig(**fields)


@pytest.mark.usefixtures("float64")
def test_a_kernel_gets_all_documents_in_one_row_and_its_own_order_of_axes():
    """A kernel of the form of flash-linear-attention: (B, T, H, W), and borders of documents in a single row."""

    def kernel(query, key, value, g, beta, *, scale, cu_seqlens):
        assert scale == 1.0
        given = Rule(*(each.transpose(1, 2) for each in (query, key, value, beta, g)))
        segments = None
        if cu_seqlens is not None:
            assert len(query) == 1
            assert cu_seqlens[-1] == query.shape[1]
            place = torch.arange(query.shape[1])
            segments = (place[:, None] >= cu_seqlens[1:]).sum(1)[None]
        return by_chunks(given, None, segments)[0].transpose(1, 2), None

    given = rule()
    segments = torch.tensor([[0] * 3 + [1] * 8, [0] * 8 + [1] * 3])
    for each in (None, segments):
        expected, _ = by_chunks(given, None, each)
        torch.testing.assert_close(by_kernel(kernel, given, each, torch.float64), expected)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="the kernel runs on a CUDA device alone")
def test_the_kernel_of_flash_linear_attention_is_the_rule_by_chunks():
    pytest.importorskip("fla")
    given = Rule(*(each.cuda() for each in rule()))
    kernel = fused_rule()
    segments = torch.tensor([[0] * 3 + [1] * 8, [0] * 8 + [1] * 3]).cuda()
    for each in (None, segments):
        expected, _ = by_chunks(given, None, each)
        found = by_kernel(kernel, given, each, torch.bfloat16)
        torch.testing.assert_close(found, expected, atol=3e-2, rtol=3e-2)


def test_without_flash_linear_attention_there_is_no_kernel(monkeypatch):
    monkeypatch.setattr(deltanet.importlib.util, "find_spec", lambda name: None)
    fused_rule.cache_clear()
    assert fused_rule() is None
    fused_rule.cache_clear()
