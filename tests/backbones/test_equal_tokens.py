"""What attention without positions of their own cannot see: how often one token has been read from the beginning on."""

import numpy as np
import pytest
import torch
from doubles import tiny_gpt, tiny_recurrent, tiny_two_stream

from statewise.data_types import Examples
from statewise.tasks.batches import collate


def states(backbone, rows):
    """The last state of each row of tokens, float64."""
    backbone.double().eval()
    tokens = np.zeros((len(rows), max(map(len, rows))), np.int64)
    for row, read in enumerate(rows):
        tokens[row, : len(read)] = read
    lengths = np.array([len(row) for row in rows])
    with torch.no_grad():
        state = backbone.encode(collate(Examples(tokens, lengths, np.zeros(len(rows), np.int64)))).readout
    return state[torch.arange(len(rows)), torch.from_numpy(lengths) - 1]


COUNTED = [[3], [3, 3], [3] * 6]


@pytest.mark.parametrize("fields", [{}, {"layers": 3, "heads": 1}])
def test_rotary_positions_do_not_count_equal_tokens_from_the_beginning_on(fields):
    # All values are equal, so that their mean is, whatever the weights of attention are.
    torch.manual_seed(0)
    one, two, six = states(tiny_gpt(positions="rope", **fields), COUNTED)
    torch.testing.assert_close(two, one)
    torch.testing.assert_close(six, one)


@pytest.mark.parametrize("make", [lambda: tiny_gpt(positions="learned"), tiny_recurrent, tiny_two_stream])
def test_learned_positions_recurrence_and_a_prediction_stream_do(make):
    torch.manual_seed(0)
    one, two, six = states(make(), COUNTED)
    assert (two - one).abs().max() > 1e-4
    assert (six - two).abs().max() > 1e-4


def test_a_first_token_of_its_own_lets_rotary_positions_count():
    torch.manual_seed(0)
    one, two, six = states(tiny_gpt(positions="rope"), [[1, *row] for row in COUNTED])
    assert (two - one).abs().max() > 1e-4
    assert (six - two).abs().max() > 1e-4
