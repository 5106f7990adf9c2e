import numpy as np
import pytest
from doubles import random_examples
from hypothesis import given, settings
from hypothesis import strategies as st

from statewise.data import Stream, blocks, collate, same_prompt_length
from statewise.tasks.path_star import PathStar, PathStarConfig
from statewise.types import Examples


@given(st.integers(0, 2**32), st.integers(1, 9), st.booleans())
@settings(max_examples=80, deadline=None)
def test_masks_say_what_is_asked_for(seed, n, prompts):
    examples = random_examples(np.random.default_rng(seed), n=n, prompts=prompts)
    batch = collate(examples)
    first, end = batch.span
    for row in range(n):
        for place in range(batch.tokens.shape[1]):
            real = place < examples.lengths[row]
            scored = real and place >= max(1, examples.prompt_lengths[row])
            assert bool(batch.real[row, place]) == real
            assert bool(batch.scored[row, place]) == scored
            assert not scored or first <= place < end
    assert batch.scored[:, first].any()
    assert batch.scored[:, end - 1].any()


def test_the_first_token_of_a_document_is_no_target():
    tokens = np.arange(1, 13).reshape(2, 6)
    documents = np.array([[1, 1, 2, 2, 2, 3], [1, 1, 1, 1, 1, 1]])
    examples = Examples(tokens, np.array([6, 4]), np.zeros(2, np.int64), documents)
    batch = collate(examples)
    assert batch.scored.tolist() == [[False, True, False, True, True, False], [False, True, True, True, False, False]]
    assert batch.documents.tolist() == [[1, 1, 2, 2, 2, 3], [1, 1, 1, 1, 0, 0]]
    cut = examples[np.array([1])]
    assert cut.documents.tolist() == [[1, 1, 1, 1]]


def task(**fields):
    return PathStar(PathStarConfig(degree=2, length=3, nodes=9, held_out_graphs=10, **fields))


@pytest.mark.parametrize("fields", [{}, {"training_graphs": 50}], ids=["fresh", "fixed"])
def test_processes_share_what_one_would_get(fields):
    one = Stream(task(**fields), seed=3, batch_size=12)
    shares = [Stream(task(**fields), seed=3, batch_size=12, rank=rank, world=3) for rank in range(3)]
    for number in (0, 7, 3):  # any order: a batch depends on its number alone
        together = np.concatenate([share.batch(number).tokens.numpy() for share in shares])
        np.testing.assert_array_equal(together, one.batch(number).tokens.numpy())
    parts = np.concatenate([part.tokens.numpy() for part in one.batches(3, 4)])
    np.testing.assert_array_equal(parts, one.batch(3).tokens.numpy())


def test_an_epoch_meets_every_example_once():
    stream = Stream(task(training_graphs=30), seed=0, batch_size=8)
    drawn = np.concatenate([stream.batch(number).tokens.numpy() for number in range(15)])  # four epochs
    examples = stream.examples.tokens
    orders = []
    for epoch in range(4):
        rows = drawn[epoch * 30 : (epoch + 1) * 30]
        assert sorted(map(tuple, rows)) == sorted(map(tuple, examples))
        orders.append(rows)
    assert not np.array_equal(orders[0], orders[1])
    assert stream.epoch(15) == 4.0


def test_a_batch_that_cannot_be_shared_is_refused():
    with pytest.raises(ValueError, match="cannot be shared by 5 processes"):
        Stream(task(), seed=0, batch_size=12, world=5)


def test_blocks_keep_row_numbers():
    examples = random_examples(np.random.default_rng(2), n=13)
    seen = []
    for rows, part in blocks(examples, 4):
        for row, tokens in zip(rows, part.tokens):
            np.testing.assert_array_equal(tokens, examples.tokens[row, : part.tokens.shape[1]])
        seen += rows.tolist()
    assert sorted(seen) == list(range(13))
    seen = []
    for rows, prompts in same_prompt_length(examples, 2):
        for row, prompt in zip(rows, prompts):
            np.testing.assert_array_equal(prompt, examples.prompt(row))
        seen += rows.tolist()
    assert sorted(seen) == list(range(13))
