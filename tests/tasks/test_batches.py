import dataclasses

import numpy as np
import pytest
from doubles import CutStream, random_examples
from hypothesis import given, settings
from hypothesis import strategies as st

from statewise.data_types import Examples, LacksCapability
from statewise.tasks import permutation
from statewise.tasks.batches import Stream, blocks, collate, same_prompt_length, similar_prompt_length
from statewise.tasks.manhattan.task import pack
from statewise.tasks.path_star import PathStar, PathStarConfig


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


class Counted(PathStar):
    """A task that writes down how many rows each call of `sample` draws."""

    def sample(self, rng, n):
        self.drawn.append(n)
        return super().sample(rng, n)


def counted(at_once):
    made = Counted(PathStarConfig(degree=2, length=3, nodes=9, held_out_graphs=10, encoding="plain"))
    made.drawn, made.drawn_at_once = [], at_once
    return made


@given(st.integers(1, 6), st.integers(1, 5), st.integers(1, 9), st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_a_process_draws_the_blocks_of_its_share_alone(world, each, at_once, number):
    size = world * each
    whole = Stream(counted(at_once), seed=1, batch_size=size).batch(number).tokens.numpy()
    assert whole.shape[0] == size
    shares = []
    for rank in range(world):
        task = counted(at_once)
        shares.append(Stream(task, seed=1, batch_size=size, rank=rank, world=world).batch(number).tokens.numpy())
        begin, end = rank * each, (rank + 1) * each
        assert sum(task.drawn) == min(size, -(-end // at_once) * at_once) - begin // at_once * at_once
    np.testing.assert_array_equal(np.concatenate(shares), whole)


@given(st.integers(0, 2**32), st.lists(st.integers(1, 4), min_size=1, max_size=4), st.booleans())
@settings(max_examples=40, deadline=None)
def test_joined_examples_make_the_batches_of_their_rows(seed, sizes, packed):
    rng = np.random.default_rng(seed)
    parts = [random_examples(rng, n=n) for n in sizes]
    if packed:
        parts = [pack(dataclasses.replace(part, prompt_lengths=0 * part.prompt_lengths), 12) for part in parts]
    joined = Examples.joined(parts)
    assert len(joined) == sum(len(part) for part in parts)
    row = 0
    for part in parts:
        for place in range(len(part)):
            alone = collate(part[place : place + 1])
            again = collate(joined[row : row + 1])
            for one, other in zip(alone, again):
                assert (one is None and other is None) or np.array_equal(one, other)
            row += 1


def test_an_epoch_meets_every_example_once():
    stream = Stream(task(training_graphs=30), seed=0, batch_size=8)
    drawn = np.concatenate([stream.batch(number).tokens.numpy() for number in range(15)])  # four epochs
    examples = stream.examples[:].tokens
    orders = []
    for epoch in range(4):
        rows = drawn[epoch * 30 : (epoch + 1) * 30]
        assert sorted(map(tuple, rows)) == sorted(map(tuple, examples))
        orders.append(rows)
    assert not np.array_equal(orders[0], orders[1])
    assert stream.epoch(15) == 4.0


@pytest.mark.parametrize("rows", [30, 31, 32])
def test_orders_by_formula_are_shared_and_resumed(monkeypatch, rows):
    """As if the set were too large for its order to be held."""
    monkeypatch.setattr(permutation, "LISTED", 8)
    one = Stream(task(training_graphs=rows), seed=5, batch_size=6)
    assert len(one.examples) == rows
    drawn = np.concatenate([one.batch(number).tokens.numpy() for number in range(rows)])  # six epochs
    shares = [Stream(task(training_graphs=rows), seed=5, batch_size=6, rank=rank, world=3) for rank in range(3)]
    for number in (rows - 1, 0, 7, 3):  # in any order, as where a run is resumed
        together = np.concatenate([share.batch(number).tokens.numpy() for share in shares])
        np.testing.assert_array_equal(together, drawn[6 * number : 6 * number + 6])
    epochs = [drawn[epoch * rows : (epoch + 1) * rows] for epoch in range(6)]
    for epoch in epochs:
        assert sorted(map(tuple, epoch)) == sorted(map(tuple, one.examples[:].tokens))
    assert not np.array_equal(epochs[0], epochs[1])
    other = Stream(task(training_graphs=rows), seed=6, batch_size=6)
    assert not np.array_equal(other.batch(0).tokens, drawn[:6])


@given(
    st.lists(st.integers(1, 25), min_size=1, max_size=20),
    st.integers(2, 9),
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(0, 2**32),
)
@settings(max_examples=40, deadline=None)
def test_consecutive_rows_are_lanes_that_walk_through_the_stream(lengths, context, world, each, seed):
    tokens = np.concatenate([[*range(1, length), 0] for length in lengths])
    opens = np.append(True, tokens[:-1] == 0)
    task, size = CutStream(tokens, context), world * each
    shares = [
        Stream(task, seed=seed, batch_size=size, rank=rank, world=world, rows="consecutive") for rank in range(world)
    ]
    rows = len(task.windows)
    read, before = np.zeros(rows, np.int64), None
    for step in range(2 * rows + 1):
        batches = [share.batch(step) for share in shares]
        places = np.concatenate([share._lane_rows(step) for share in shares])
        if before is not None:
            np.testing.assert_array_equal(places, (before + 1) % rows)
        np.add.at(read, places, 1)
        assert read.max() - read.min() <= 1, "rows are read equally often, give or take one"
        lanes = [row for batch in batches for row in zip(batch.tokens, batch.real, batch.continuation.follows)]
        for place, (row, real, follows) in zip(places, lanes):
            np.testing.assert_array_equal(row[real], tokens[place * context : (place + 1) * context])
            assert bool(follows) == (step > 0 and place > 0 and not opens[place * context])
        assert all(batch.continuation.lane.tolist() == list(range(each)) for batch in batches)
        before = places
    parts = shares[0].batches(1, each)
    assert [part.continuation.lane.tolist() for part in parts] == [[lane] for lane in range(each)]


def test_lanes_begin_elsewhere_with_another_seed():
    task = CutStream(np.arange(1, 1001), 4)
    firsts = {int(Stream(task, seed=seed, batch_size=1, rows="consecutive").batch(0).tokens[0, 0]) for seed in range(5)}
    assert len(firsts) == 5


def test_only_rows_of_a_stream_follow_one_another():
    for fields in ({}, {"training_graphs": 30}):
        with pytest.raises(LacksCapability, match="training rows are consecutive windows"):
            Stream(task(**fields), seed=0, batch_size=2, rows="consecutive")
    assert Stream(task(), seed=0, batch_size=2).batch(0).continuation is None


def test_a_batch_moves_as_a_whole():
    stream = Stream(CutStream(np.arange(1, 40), 4), seed=0, batch_size=3, rows="consecutive")
    moved = stream.batch(1).to("meta")
    tensors = [*moved.continuation, moved.tokens, moved.scored, moved.real, moved.documents]
    assert all(tensor.device.type == "meta" for tensor in tensors)
    assert moved.span == stream.batch(1).span


def test_a_batch_that_cannot_be_shared_is_refused():
    with pytest.raises(ValueError, match="cannot be divided among 5 processes"):
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
    seen = []
    for rows in similar_prompt_length(examples, 4):
        lengths = examples.prompt_lengths[rows]
        assert len(rows) <= 4
        assert lengths[0] == lengths.min()
        assert lengths.max() <= 2 * lengths[0]
        seen += rows.tolist()
    assert sorted(seen) == list(range(13))
