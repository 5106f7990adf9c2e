import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from statewise.evaluation.scoring import per_token, per_unit, score


@given(st.integers(0, 2**31), st.integers(1, 4), st.integers(0, 5), st.integers(2, 9))
def test_nats_and_choices_are_those_of_the_distribution(seed, B, n, V):
    generator = torch.Generator().manual_seed(seed)
    logits = 5 * torch.randn(B, n, V, generator=generator)
    tokens = torch.randint(V, (B, n), generator=generator)
    found = score(logits, tokens)
    probabilities = torch.softmax(logits.double(), -1).numpy()
    rows, columns = np.indices((B, n))
    assert found.nats.dtype == np.float64
    np.testing.assert_allclose(found.nats, -np.log(probabilities[rows, columns, tokens.numpy()]), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(found.choices, probabilities.argmax(-1) if n else np.empty((B, 0)))


def test_half_precision_is_summed_in_full():
    """A thousand equal logits in bfloat16: a sum of exponentials in that precision would be off by far more."""
    found = score(torch.zeros(1, 1, 1000, dtype=torch.bfloat16), torch.zeros(1, 1, dtype=torch.int64))
    assert found.nats[0, 0] == pytest.approx(math.log(1000), abs=1e-5)


def test_means_by_token_and_by_unit():
    assert per_token(6.0, 3) == {"loss": 2.0, "perplexity": math.exp(2.0)}
    assert per_token(1e6, 1)["perplexity"] == math.inf
    assert math.isnan(per_token(math.nan, 1)["perplexity"])
    with pytest.raises(ValueError, match="no token to score"):
        per_token(0.0, 0)
    assert per_unit(8.0, {"word": 4, "byte": 16, "line": 0}) == {
        "loss_per_word": 2.0,
        "perplexity_per_word": math.exp(2.0),
        "loss_per_byte": 0.5,
        "bits_per_byte": 0.5 / math.log(2),
    }
