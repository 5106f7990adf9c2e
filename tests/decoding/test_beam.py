import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from doubles import JointPredictor, MarkovPredictor, spread_weights, tiny_objective
from hypothesis import given, settings
from hypothesis import strategies as st

from statewise.decoding import make_decoder
from statewise.decoding.base import Request


def search(predictor, prompt, limit, end=None, goal=None, **fields):
    goal = None if goal is None else np.array(goal)
    return make_decoder("beam", **fields).search(predictor, Request([np.array(prompt)], limit, end, goal))


def next_log_probs(predictor, prompt, goal, tokens):
    prefix = torch.tensor([[*prompt, *tokens]])
    logits = predictor.start(prefix)[1] if goal is None else predictor.start_with_goal(prefix, torch.tensor(goal))[1]
    log_probs = logits[0].log_softmax(-1)
    return log_probs.tolist()


def every_completion(predictor, prompt, limit, end, goal):
    """(tokens, log-probability) of all there are, most likely first."""
    found = []
    for tokens in itertools.product(range(predictor.vocabulary), repeat=limit):
        length = tokens.index(end) + 1 if goal is None and end in tokens else limit
        if set(tokens[length:]) - {end} or (goal is not None and end in tokens):
            continue  # one of each that end early, and none with the end before the goal
        steps = [next_log_probs(predictor, prompt, goal, tokens[:place])[tokens[place]] for place in range(length)]
        found.append((list(tokens[:length]), sum(steps)))
    return sorted(found, key=lambda one: -one[1])


def one_by_one(predictor, prompt, limit, end, goal, beams):
    """Algorithm 2, a sequence at a time, each read anew."""
    kept = [([], 0.0)]
    for _ in range(limit):
        grown = []
        for tokens, total in kept:
            if goal is None and tokens[-1:] == [end]:
                grown.append((tokens, total))
                continue
            for token, log_prob in enumerate(next_log_probs(predictor, prompt, goal, tokens)):
                if goal is None or token != end:
                    grown.append(([*tokens, token], total + log_prob))
        kept = sorted(grown, key=lambda one: -one[1])[:beams]
    return kept


def assert_same(found, slow):
    assert [one.tokens.tolist() for one in found] == [tokens for tokens, _ in slow]
    np.testing.assert_allclose([one.log_probability for one in found], [total for _, total in slow])
    assert [one.score for one in found] == [one.log_probability for one in found]


@given(st.integers(0, 10**6), st.sampled_from([1, 2, 5, 100]), st.sampled_from([None, [0], [2, 0]]), st.booleans())
@settings(max_examples=40, deadline=None)
def test_it_is_algorithm_2_and_with_room_for_all_it_is_exhaustive(seed, beams, goal, ends):
    end = 1 if ends else None
    predictor = JointPredictor.drawn(seed, vocabulary=3, length=6, end=None if goal else end)
    limit = 6 - 2 - len(goal or [])
    found = search(predictor, [2, 0], limit, end, goal, beams=beams)
    assert_same(found, one_by_one(predictor, [2, 0], limit, end, goal, beams))
    if beams == 100:
        assert_same(found, every_completion(predictor, [2, 0], limit, end, goal))


@given(st.integers(0, 10**6), st.sampled_from([1, 3, 12]), st.sampled_from([None, 7]))
@settings(max_examples=10, deadline=None)
def test_a_real_cache_gives_what_reading_anew_gives(seed, beams, end):
    model = tiny_objective("next_token", seed=seed).double()
    spread_weights(model, seed)
    with torch.no_grad():
        slow = one_by_one(model.predictor(), [1, 2, 3], 6, end, None, beams)
    assert_same(search(model.predictor(), [1, 2, 3], 6, end, beams=beams), slow)


# 0 goes to 1, then anywhere; or to 2, then surely on to 2: the unlikely beginning is the likeliest whole.
TABLE = torch.tensor([[0.0, 0.6, 0.4], [0.4, 0.3, 0.3], [0.0, 0.0, 1.0]])


def test_it_sees_past_the_first_step():
    (greedy,) = make_decoder("greedy").decode(MarkovPredictor(TABLE), Request([np.array([0])], 2))
    assert greedy.tokens.tolist() == [1, 0]
    assert search(MarkovPredictor(TABLE), [0], 2, beams=1)[0].tokens.tolist() == [1, 0]
    best, *others = search(MarkovPredictor(TABLE), [0], 2, beams=2)
    assert best.tokens.tolist() == [2, 2]
    assert best.score == pytest.approx(np.log(0.4))
    assert len(others) == 1


def test_what_is_impossible_is_not_found():
    assert [one.tokens.tolist() for one in search(MarkovPredictor(TABLE), [2], 3, beams=9)] == [[2, 2, 2]]


def test_it_stops_when_ended_sequences_hold_all_places():
    class Counting(MarkovPredictor):
        steps = 0

        def extend(self, cursor, tokens, counts=None):
            self.steps += 1
            return super().extend(cursor, tokens, counts)

    predictor = Counting(torch.tensor([[0.05, 0.05, 0.9]] * 3))
    assert [one.tokens.tolist() for one in search(predictor, [0], 20, end=2, beams=2)] == [[2], [0, 2]]
    assert predictor.steps == 1


def test_a_goal_needs_a_model_that_can_head_for_one():
    with pytest.raises(ValueError, match="needs a model that can condition on a goal"):
        search(MarkovPredictor(TABLE), [0], 2, goal=[1])
    with pytest.raises(ValueError, match="beams must be at least 1 and at most 100,000, not 0"):
        make_decoder("beam", beams=0)


@pytest.mark.parametrize("decoder", ["greedy", "sample", "beam"])
def test_exact_completions_never_end_early(decoder):
    table = torch.tensor([[0.1, 0.2, 0.7], [0.2, 0.1, 0.7], [0.5, 0.4, 0.1]])
    asked = Request(np.array([[0], [1]]), 4, 2)
    made = make_decoder(decoder)
    assert all(len(one.tokens) < 4 for one in made.decode(MarkovPredictor(table), asked)[:1])
    for one in made.decode(MarkovPredictor(table), replace(asked, exact=True)):
        assert len(one.tokens) == 4
        assert 2 not in one.tokens
