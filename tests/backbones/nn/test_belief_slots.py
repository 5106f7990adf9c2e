"""Rows of a belief-slot decoder share a pass whenever they have read as much."""

import numpy as np
import pytest
import torch
from doubles import VOCABULARY, spread_weights, tiny_belief_slots

from statewise.data_types import Batch

pytestmark = pytest.mark.usefixtures("float64")


@pytest.fixture
def made():
    torch.manual_seed(0)
    made = tiny_belief_slots(context=60).double().eval()  # chunks of 4
    spread_weights(made)
    with torch.no_grad():
        yield made


def tokens(rows, count):
    return torch.randint(0, VOCABULARY, (rows, count))


def alone(made, *parts):
    return made.encode(Batch.plain(torch.cat(parts)[None])).readout[0]


def passes(made, cache, count):
    """The number of passes in which `count` tokens of all rows are read, no chunk ending before them."""
    calls = []
    handle = made.gpt.blocks[0].register_forward_hook(lambda *_: calls.append(1))
    made.extend(tokens(len(cache.lengths), count), cache)
    handle.remove()
    return len(calls)


def test_joined_rows_of_equal_length_share_a_pass(made):
    first, second = made.make_cache(2), made.make_cache(1)
    read = tokens(3, 7), tokens(3, 3)
    made.extend(read[0][:2, :4], first)
    made.extend(read[0][:2, 4:], first)
    made.extend(read[0][2:], second)
    first.join(second)
    found = made.extend(read[1], first).readout
    for row in range(3):
        torch.testing.assert_close(found[row], alone(made, read[0][row], read[1][row])[-3:])
    assert passes(made, first, 1) == 1


def test_rows_that_catch_up_share_a_pass_in_their_own_order(made):
    cache, read = made.make_cache(3), (tokens(3, 6), tokens(3, 2), tokens(3, 1))
    made.extend(read[0], cache, np.array([4, 6, 4]))
    assert passes(made, cache, 1) == 2
    cache.rewind(1)
    made.extend(read[1], cache, np.array([2, 0, 2]))
    found = made.extend(read[2], cache).readout
    for row, (first, second) in enumerate([(4, 2), (6, 0), (4, 2)]):
        expected = alone(made, read[0][row, :first], read[1][row, :second], read[2][row])
        torch.testing.assert_close(found[row], expected[-1:])
    assert passes(made, cache, 1) == 1


def test_rows_that_are_taken_back_to_one_length_share_a_pass(made):
    cache = made.make_cache(2)
    made.extend(tokens(2, 7), cache, np.array([7, 6]))
    cache.rewind(np.array([1, 0]))
    assert passes(made, cache, 1) == 1


def test_rows_that_share_a_pass_can_still_return_to_where_they_were_held(made):
    cache, read = made.make_cache(2), (tokens(2, 9), tokens(2, 8), tokens(2, 3), tokens(2, 2))
    made.extend(read[0], cache, np.array([1, 9]))
    cache.hold()
    made.extend(read[1], cache, np.array([8, 0]))
    made.extend(read[2], cache)
    cache.rewind(np.array([11, 3]))
    assert cache.lengths.tolist() == [1, 9]
    found = made.extend(read[3], cache).readout
    for row, length in enumerate((1, 9)):
        torch.testing.assert_close(found[row], alone(made, read[0][row, :length], read[3][row])[-2:])


def test_a_row_that_remembers_less_takes_nothing_from_one_that_may_go_back_further(made):
    first, second, read = made.make_cache(1), made.make_cache(1), (tokens(2, 9), tokens(2, 2))
    made.extend(read[0][:1, :6], first)
    for part in read[0][1:].split(1, dim=1):  # token by token only the last two chunks are remembered
        made.extend(part, second)
    second.rewind(3)
    first.join(second)
    first.rewind(np.array([4, 0]))
    found = made.extend(read[1], first).readout
    for row, length in enumerate((2, 6)):
        torch.testing.assert_close(found[row], alone(made, read[0][row, :length], read[1][row])[-2:])


def test_groups_stay_those_of_the_caches_when_a_pass_fails_midway(made, monkeypatch):
    cache = made.make_cache(3)
    made.extend(tokens(3, 5), cache)
    read, calls = type(made)._read, []

    def failing(self, *given):
        calls.append(given)
        if len(calls) == 2:
            raise MemoryError
        return read(self, *given)

    monkeypatch.setattr(type(made), "_read", failing)
    with pytest.raises(MemoryError):
        made.extend(tokens(3, 2), cache, np.array([2, 1, 2]))
    assert sorted(np.concatenate([rows for rows, _ in cache.groups]).tolist()) == [0, 1, 2]
    for rows, own in cache.groups:
        assert [len(part.state) for part in own.chunks] == [len(rows)] * len(own.chunks)
    assert isinstance(cache.split(np.zeros(3, np.int64)), list)


def test_a_state_of_rows_of_different_length_is_refused_with_the_reason(made):
    cache = made.make_cache(3)
    made.extend(tokens(3, 5), cache, np.array([5, 2, 5]))
    with pytest.raises(ValueError, match=r"read \[5, 2, 5\] tokens, in 2 groups .* by `reorder`"):
        made.keep(cache)
    cache.reorder(torch.tensor([0]))
    assert made.keep(cache)["length"] == 5
