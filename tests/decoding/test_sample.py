import numpy as np
import pytest
import torch
from doubles import MarkovPredictor
from hypothesis import given, settings
from hypothesis import strategies as st

from statewise.decoding import DECODERS, make_decoder
from statewise.decoding.base import Request

# 0 goes to 1 or 2; 1 goes to 3; 2 goes to 0; 3 ends.
TABLE = torch.tensor([[0.0, 0.6, 0.4, 0.0], [0.0, 0.0, 0.0, 1.0], [1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]])
END = 3


def decode(decoder, prompts, limit=8, end=END, **fields):
    return make_decoder(decoder, **fields).decode(MarkovPredictor(TABLE), Request(np.array(prompts), limit, end))


def test_greedy_takes_the_likeliest_and_stops_at_the_end():
    one, two = decode("greedy", [[2, 0], [0, 1]])
    assert one.tokens.tolist() == [1, 3]
    assert two.tokens.tolist() == [3]  # ended earlier than its neighbour: nothing after the end
    assert one.log_probability == pytest.approx(np.log(0.6))
    assert two.log_probability == pytest.approx(0.0)


def test_the_limit_and_the_context_bound_the_length():
    assert len(decode("greedy", [[0]], limit=1)[0].tokens) == 1
    assert len(decode("greedy", [[0]], limit=100, end=None)[0].tokens) == 31  # of a context of 32


def test_sampling_has_the_models_frequencies():
    firsts = [completion.tokens[0] for completion in decode("sample", [[0]] * 4000, limit=1, seed=3)]
    assert np.mean(np.array(firsts) == 1) == pytest.approx(0.6, abs=0.03)


def test_temperature_and_cuts_sharpen():
    def share(**fields):
        firsts = [completion.tokens[0] for completion in decode("sample", [[0]] * 2000, limit=1, **fields)]
        return np.mean(np.array(firsts) == 1)

    assert share(temperature=0.5) == pytest.approx(0.36 / (0.36 + 0.16), abs=0.04)
    assert share(top_k=1) == 1.0
    assert share(top_p=0.6) == 1.0
    assert share(top_p=0.61) < 1.0


@given(st.integers(0, 2**31), st.floats(0.05, 1.0), st.integers(1, 6))
@settings(max_examples=50, deadline=None)
def test_cuts_keep_exactly_the_tokens_they_name(seed, top_p, top_k):
    logits = torch.randn(1, 6, generator=torch.Generator().manual_seed(seed))
    probabilities = logits.softmax(-1)[0]
    order = probabilities.argsort(descending=True).tolist()
    allowed, mass = [], 0.0
    for token in order[:top_k]:
        if mass >= top_p - 1e-6 and allowed:
            break
        allowed.append(token)
        mass += float(probabilities[token])
    decoder = make_decoder("sample", top_p=top_p, top_k=top_k, seed=seed)
    drawn = {int(decoder.choose(logits, decoder.noise(np.zeros(1, int), np.array([place]), 6))) for place in range(40)}
    assert drawn <= set(allowed)


CUTS = st.tuples(st.sampled_from([1.0, 0.9, 0.5]), st.sampled_from([None, 1, 3]), st.sampled_from([0.0, 0.1]))


@given(st.integers(0, 2**31), CUTS)
@settings(max_examples=60, deadline=None)
def test_a_choice_that_is_not_close_survives_errors_of_the_logits(seed, cuts):
    top_p, top_k, floor = cuts
    generator, error = torch.Generator().manual_seed(seed), 0.02
    logits = torch.randn(40, 8, generator=generator).double()
    logits[:, 3] = logits[:, 2] + 0.01 * torch.randn(40, generator=generator)  # often next to each other
    sampled = make_decoder("sample", temperature=0.7, top_p=top_p, top_k=top_k, floor=floor, seed=seed)
    noise = sampled.noise(np.arange(40), np.zeros(40, int), 8)
    for decoder in (sampled, make_decoder("greedy")):
        tokens = decoder.choose(logits, noise)
        close = decoder.close(logits, noise, tokens, error)
        assert not close.all()
        for _ in range(20):
            moved = logits + error * torch.rand(40, 8, generator=generator).mul(2).sub(1).sign()
            assert (close | (decoder.choose(moved, noise) == tokens)).all()
        gaps = logits.topk(2).values.diff().abs()[:, 0]
        if decoder is not sampled:
            assert torch.equal(close, gaps <= 2 * error)


def test_what_a_cut_may_keep_or_drop_is_close():
    decoder = make_decoder("sample", top_p=0.5)
    logits = torch.tensor([[0.5, 0.3, 0.2], [0.501, 0.3, 0.199], [0.7, 0.2, 0.1]], dtype=torch.float64).log()
    likes_the_second = np.array([[0.0, 50.0, 0.0]])
    tokens = decoder.choose(logits, likes_the_second)
    assert tokens.tolist() == [0, 0, 0]
    assert decoder.close(logits, likes_the_second, tokens, 0.01).tolist() == [True, True, False]
    assert decoder.close(logits, likes_the_second, tokens, 0.0001).tolist() == [True, False, False]
    likes_the_first = np.array([[50.0, 0.0, 0.0]])
    assert not decoder.close(logits, likes_the_first, tokens, 0.01).any()


def test_equal_logits_are_cut_in_the_order_of_their_tokens():
    for top_k, kept in ((2, [1, 2]), (3, [1, 2, 4]), (1, [1])):
        cut = make_decoder("sample", top_k=top_k).cut(torch.tensor([[0.0, 2.0, 1.0, 0.5, 1.0, 1.0]]).double())
        assert torch.isfinite(cut[0]).nonzero()[:, 0].tolist() == kept


def test_the_same_seed_draws_the_same():
    first, second, other = (
        [completion.tokens.tolist() for completion in decode("sample", [[0]] * 50, seed=seed)] for seed in (1, 1, 2)
    )
    assert first == second
    assert first != other


@pytest.mark.parametrize(
    ("decoder", "fields", "message"),
    [
        ("gredy", {}, "unknown decoder 'gredy': did you mean greedy"),
        ("sample", {"temprature": 1.0}, "did you mean temperature"),
        ("greedy", {"temperature": 1.0}, "decoder greedy has no field 'temperature'"),
        ("sample", {"temperature": 0.0}, "use `decoder` greedy for 0"),
        ("sample", {"temperature": 1e-310}, "temperature must be at least 1e-100"),
        ("sample", {"temperature": 10**400}, "temperature: 1000"),
        ("sample", {"top_p": 0.0}, "top_p must be above 0 and at most 1"),
        ("sample", {"top_k": 0}, "top_k must be at least 1"),
        ("sample", {"top_k": "many"}, "top_k"),
    ],
)
def test_wrong_settings_are_named(decoder, fields, message):
    with pytest.raises(ValueError, match=message):
        make_decoder(decoder, **fields)


@pytest.mark.parametrize("decoder", list(DECODERS))
def test_prompts_that_cannot_be_read_are_named(decoder):
    with pytest.raises(ValueError, match="limit must be at least 1, not 0"):
        decode(decoder, [[0]], limit=0)
    with pytest.raises(ValueError, match="the prompt is empty"):
        decode(decoder, np.zeros((1, 0), np.int64))
    with pytest.raises(ValueError, match="40 tokens, and the model's context is 32"):
        decode(decoder, np.zeros((1, 40), np.int64))
