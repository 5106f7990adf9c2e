import numpy as np
import pytest
import torch
from doubles import (
    CONTEXT,
    VOCABULARY,
    MarkovPredictor,
    random_examples,
    spread_weights,
    tiny_objective,
    tiny_two_stream,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from statewise.evaluation.zero_shot.likelihood import Continuation, likelihoods, windows
from statewise.runtime.progress import listening


@given(st.integers(2, 20), st.integers(1, 60), st.integers(1, 60))
@settings(max_examples=150, deadline=None)
def test_windows_ask_for_every_token_once_and_see_as_much_as_they_can(context, given, asked):
    length = given + asked
    found = list(windows(length, given, context))
    assert [place for one in found for place in range(one.scored, one.stop)] == list(range(given, length))
    for one in found:
        assert 0 <= one.start < one.scored < one.stop
        assert one.stop - one.start <= context
    last = found[-1]
    assert last.start == max(0, length - context)  # so the last always sees all that fits
    assert len(found) == 1 or asked >= context
    if given < context <= length - given:
        assert found[0].start == 0  # what is given is whole


def step_by_step(predictor, tokens, given):
    """Nats and first choices of the tokens behind `given`, by the cache, a token at a time."""
    cursor, logits = predictor.start(torch.tensor([tokens[:given]]))
    nats, right = [], []
    for token in tokens[given:]:
        nats.append(-float(logits[0].log_softmax(-1)[token]))
        right.append(int(logits[0].argmax()) == token)
        if len(nats) < len(tokens) - given:
            logits = predictor.extend(cursor, torch.tensor([[token]]))[:, -1]
    return np.array(nats), np.array(right)


@pytest.mark.parametrize("batch", [1, 3, 100])
@pytest.mark.parametrize("name", ["next_token", "next_latent", "belief_state", "teacherless", "two streams"])
def test_likelihoods_are_those_of_a_step_by_step_reading(name, batch, float64):
    options = {"make_backbone": tiny_two_stream} if name == "two streams" else {}
    objective = tiny_objective("next_token" if name == "two streams" else name, **options).double().eval()
    spread_weights(objective)
    predictor = objective.predictor()
    examples = random_examples(np.random.default_rng(0), n=9, longest=CONTEXT)
    asked = [
        Continuation(examples.tokens[row, : examples.lengths[row]].tolist(), int(examples.prompt_lengths[row]))
        for row in range(len(examples))
    ]
    told = []
    with listening(lambda works: told.append((works[0].done, works[0].total))):
        found = likelihoods(predictor, asked, batch)
    assert told[-1] == (9, 9)
    assert len(told) == -(-9 // batch)
    for one, sequence in zip(found, asked):
        nats, right = step_by_step(predictor, *sequence)
        np.testing.assert_allclose(one.nats, nats, rtol=1e-9)
        assert one.first_choice.tolist() == right.tolist()
        assert one.log_probability == pytest.approx(-nats.sum())
        assert one.greedy == right.all()
        assert (one.cut, one.pieces) == (False, 1)


def test_what_does_not_fit_is_cut_or_read_in_pieces(float64):
    objective = tiny_objective("next_token").double().eval()
    spread_weights(objective)
    predictor = objective.predictor()
    tokens = np.random.default_rng(1).integers(0, VOCABULARY, 3 * CONTEXT).tolist()
    cut, pieces, whole = likelihoods(
        predictor,
        [Continuation(tokens, len(tokens) - 5), Continuation(tokens, 2), Continuation(tokens[:CONTEXT], 2)],
        2,
    )
    assert (cut.cut, cut.pieces) == (True, 1)
    np.testing.assert_allclose(cut.nats, step_by_step(predictor, tokens[-CONTEXT:], CONTEXT - 5)[0], rtol=1e-9)
    assert (pieces.cut, pieces.pieces) == (False, 4)
    C = CONTEXT
    parts = [(0, 2, C), (C - 1, C, 2 * C - 1), (2 * C - 2, 2 * C - 1, 3 * C - 2), (2 * C, 3 * C - 2, 3 * C)]
    direct = [step_by_step(predictor, tokens[start:stop], scored - start)[0] for start, scored, stop in parts]
    np.testing.assert_allclose(pieces.nats, np.concatenate(direct), rtol=1e-9)
    assert (whole.cut, whole.pieces) == (False, 1)


def test_greedy_means_every_token():
    table = torch.tensor([[0.1, 0.7, 0.2], [0.1, 0.2, 0.7], [0.8, 0.1, 0.1]])
    right, wrong = likelihoods(
        MarkovPredictor(table), [Continuation([0, 1, 2, 0], 1), Continuation([0, 1, 2, 1, 2], 1)], 8
    )
    assert right.greedy
    assert right.log_probability == pytest.approx(np.log(0.7 * 0.7 * 0.8))
    assert not wrong.greedy
    assert wrong.first_choice.tolist() == [True, True, False, True]
