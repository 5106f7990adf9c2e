import numpy as np
from doubles import random_examples
from hypothesis import given, settings
from hypothesis import strategies as st

from statewise.data_types import Ragged


@given(st.integers(0, 2**32), st.integers(1, 9), st.sampled_from([200, 256, 257, 2**16, 2**16 + 1, 10**6]))
@settings(max_examples=40, deadline=None)
def test_rows_come_back_as_they_were(seed, n, vocabulary):
    rng = np.random.default_rng(seed)
    examples = random_examples(rng, n=n)
    ragged = Ragged.unpadded(examples, vocabulary)
    assert len(ragged.tokens) == examples.lengths.sum()
    assert vocabulary - 1 <= np.iinfo(ragged.tokens.dtype).max < max(256, vocabulary**2)
    rows = [examples.tokens[row, :length] for row, length in enumerate(examples.lengths)]
    again = Ragged.of(rows, examples.prompt_lengths.tolist(), vocabulary)
    numbers = rng.integers(n, size=5)
    for made in (ragged, again):
        for wanted in (slice(None), slice(1, 3), numbers, np.zeros(0, np.int64)):
            found, expected = made[wanted], examples[wanted]
            np.testing.assert_array_equal(found.tokens, expected.tokens)
            np.testing.assert_array_equal(found.lengths, expected.lengths)
            np.testing.assert_array_equal(found.prompt_lengths, expected.prompt_lengths)
            assert found.tokens.dtype == np.int64
        np.testing.assert_array_equal(made.row(n - 1), rows[n - 1])
        np.testing.assert_array_equal(made.columns(), np.concatenate([np.arange(len(row)) for row in rows]))
