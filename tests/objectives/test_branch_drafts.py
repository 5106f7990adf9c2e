"""What the further heads of multi-token prediction guess, against their pass over whole sequences."""

from functools import partial

import numpy as np
import pytest
import torch
from doubles import VOCABULARY, spread_weights, tiny_gpt, tiny_objective, tiny_recurrent

from statewise.data_types import Batch

pytestmark = pytest.mark.usefixtures("float64")
MADE = {
    "gpt": tiny_gpt,
    "gpt, learned positions": partial(tiny_gpt, positions="learned"),
    "gpt, one layer": partial(tiny_gpt, layers=1),
    "gru": tiny_recurrent,
    "gru, one layer": partial(tiny_recurrent, layers=1),
    "lstm": partial(tiny_recurrent, cell="lstm"),
}


@pytest.fixture(params=MADE)
def objective(request):
    made = tiny_objective("multi_token", make_backbone=MADE[request.param], backbone={"context": 64}, horizon=3).eval()
    spread_weights(made)
    return made


def guessed(predictor, cursor, rows, count=3):
    """The first guesses after any token, (B, count, V)."""
    guesses = predictor.guesses(cursor, torch.zeros(rows, dtype=torch.int64))
    found = [next(guesses)] + [guesses.send(torch.zeros(rows, dtype=torch.int64)) for _ in range(count - 1)]
    return torch.stack(found, 1)


def expected(objective, read, count=3):
    """Every head over each whole row of `read`, at its last token."""
    found = []
    for row in read:
        heads = objective.all_readouts(Batch.plain(torch.tensor(row)[None]))[1 : count + 1]
        found.append(torch.stack([objective.backbone.logits(head[0, -1]) for head in heads]))
    return torch.stack(found)


def padded(rows):
    width = max(map(len, rows))
    return torch.tensor([row + [0] * (width - len(row)) for row in rows]), np.array([len(row) for row in rows])


def test_guesses_are_those_of_a_pass_over_the_whole(objective):
    rng = np.random.default_rng(0)
    predictor = objective.predictor()
    read = [rng.integers(0, VOCABULARY, n).tolist() for n in (3, 6, 1, 6)]
    cursor, _ = predictor.start(*padded(read))

    def check(count=3):
        torch.testing.assert_close(guessed(predictor, cursor, len(read), count), expected(objective, read, count))

    def extend(counts):
        new = [rng.integers(0, VOCABULARY, n).tolist() for n in counts]
        predictor.extend(cursor, *padded(new))
        for row, more in zip(read, new):
            row += more

    def rewind(counts):
        predictor.rewind(cursor, np.array(counts))
        for row, count in zip(read, counts):
            del row[len(row) - count :]

    check()
    check(2)  # asking twice changes nothing
    extend([2, 0, 4, 1])
    check(1)  # the other heads stay behind
    extend([1, 1, 1, 1])
    check()
    predictor.hold(cursor)
    extend([5, 5, 5, 5])
    rewind([5, 2, 4, 0])
    predictor.release(cursor)
    check()
    predictor.hold(cursor)
    extend([3, 1, 3, 3])
    check(2)  # they read what is rewound
    rewind([2, 1, 3, 0])
    predictor.release(cursor)
    check()
    rows = [2, 0, 0]
    predictor.reorder(cursor, torch.tensor(rows))
    read[:] = [list(read[row]) for row in rows]
    extend([1, 2, 3])
    check()
    more = [rng.integers(0, VOCABULARY, n).tolist() for n in (2, 7)]
    other, _ = predictor.start(*padded(more))
    guessed(predictor, other, 2, 1)
    predictor.join(cursor, other)
    read += more
    extend([2, 1, 2, 1, 2])
    check()


def test_a_prompt_in_parts_and_plain_decoding_leave_the_guesses_as_they_are(objective, monkeypatch):
    monkeypatch.setattr("statewise.backbones.base.PROMPT_POSITIONS", 1)
    predictor = objective.predictor()
    prompt = np.random.default_rng(1).integers(0, VOCABULARY, (2, 40))  # in parts of 32
    cursor, logits = predictor.start(torch.from_numpy(prompt))
    read = prompt.tolist()
    for _ in range(3):
        token = logits.argmax(-1)
        logits = predictor.extend(cursor, token[:, None])[:, -1]
        read = [[*row, int(one)] for row, one in zip(read, token)]
    assert [cache.lengths.max() for cache in cursor.branches] == [0, 0, 0]  # nothing was read for drafts
    torch.testing.assert_close(guessed(predictor, cursor, 2), expected(objective, read))
