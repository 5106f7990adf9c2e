"""Decoding from the end, against the previous-token head asked anew for every token."""

import itertools

import numpy as np
import pytest
import torch
from doubles import CONTEXT, VOCABULARY, spread_weights, tiny_objective
from torch.nn import functional as F

from statewise.data_types import Batch
from statewise.decoding import make_decoder
from statewise.decoding.base import Request
from statewise.decoding.reverse import Reverse

PROMPT, GOAL, END, CLOSING = [1, 5, 2], [4, 7], 3, VOCABULARY

pytestmark = pytest.mark.usefixtures("float64")


def made(**fields):
    objective = tiny_objective("belief_state", **{"head": "mlp", "backbone": {"layers": 1}, **fields}).eval()
    spread_weights(objective)
    return objective


def log_probs(objective, prefix, suffix, output, choices=VOCABULARY):
    """(choices,) of the next-token head (0) or the previous-token head (1), both encoders run afresh."""
    read, after = list(prefix) or [objective.begin], list(suffix)[::-1] or [objective.end]
    f = objective.prefix_encoder.encode(Batch.plain(torch.tensor([read]))).state[0, -1]
    b = objective.suffix_encoder.encode(Batch.plain(torch.tensor([after]))).state[0, -1]
    head = objective.head
    x = F.relu(head.second(F.relu(head.first(torch.cat((f, b))))))
    return head.third(x).view(2, -1)[output, :choices].log_softmax(-1).detach()


def request(goal=GOAL, limit=2, end=None, **fields):
    return Request([np.array(PROMPT)], limit, end, None if goal is None else np.array(goal), **fields)


def slow_log_probability(objective, fill, goal, choices=VOCABULARY, closed=False):
    """Of `fill` between the prompt and `goal`, from its last token to its first."""
    chosen, behind, total = [*([CLOSING] if closed else []), *fill], list(goal), 0.0
    for symbol in reversed(chosen):
        total += float(log_probs(objective, PROMPT, behind, 1, choices)[symbol])
        behind = [symbol, *behind]
    return total


def prompt_score(objective, fill, goal):
    """Equation 7 in reverse: every token of the prompt between what is before and behind it."""
    whole = [*PROMPT, *fill, *goal]
    return sum(
        float(log_probs(objective, whole[:place], whole[place + 1 :], 1)[whole[place]]) for place in range(len(PROMPT))
    )


@pytest.mark.parametrize("goal", [GOAL, []])
def test_the_reversed_predictor_says_what_the_previous_token_head_says(goal):
    objective = made()
    predictor = objective.predictor().backwards()
    cursor, logits = predictor.start_with_goal(torch.tensor([goal[::-1]] * 2), torch.tensor(PROMPT[::-1]))
    rows = [list(goal), list(goal)]
    for new in ([8, 0], [6, 6], [10, 2]):
        for row, behind in enumerate(rows):
            torch.testing.assert_close(logits[row].log_softmax(-1), log_probs(objective, PROMPT, behind, 1))
        logits = predictor.extend(cursor, torch.tensor(new)[:, None])[:, -1]
        rows = [[token, *behind] for token, behind in zip(new, rows)]
    predictor.reorder(cursor, torch.tensor([1, 0, 1]))
    predictor.rewind(cursor, 3)  # to the goal, be it empty
    logits = predictor.extend(cursor, torch.tensor([[9], [9], [1]]))[:, -1]
    for row, token in enumerate([9, 9, 1]):
        torch.testing.assert_close(logits[row].log_softmax(-1), log_probs(objective, PROMPT, [token, *goal], 1))


@pytest.mark.parametrize("goal", [GOAL, None])
def test_beam_search_backwards_finds_all_with_their_probability(goal):
    objective = made()
    found = Reverse(make_decoder("beam", beams=1000)).search(objective.predictor(), request(goal))
    assert len(found) == VOCABULARY**2
    for one in found[::7]:
        slow = slow_log_probability(objective, one.tokens.tolist(), goal or [])
        assert one.log_probability == pytest.approx(slow, abs=1e-9)
    assert sum(np.exp([one.log_probability for one in found])) == pytest.approx(1)


def test_it_stops_where_nothing_is_missing():
    objective = made(min_gap=1)
    found = Reverse(make_decoder("beam", beams=1000)).search(objective.predictor(), request(closing=CLOSING))
    assert len(found) == 1 + VOCABULARY + VOCABULARY**2
    for one in [found[0], *(one for one in found if one.closed)]:
        slow = slow_log_probability(objective, one.tokens.tolist(), GOAL, VOCABULARY + 1, one.closed)
        assert one.log_probability == pytest.approx(slow, abs=1e-9)
    assert sum(np.exp([one.log_probability for one in found])) == pytest.approx(1)


def test_greedy_decoding_backwards_takes_the_most_likely_token_before():
    objective = made()
    several = [np.array([1]), np.array([2, 9, 9, 4])]
    found = Reverse(make_decoder("greedy")).decode(objective.predictor(), Request(several, 4, END, np.array(GOAL)))
    for prompt, one in zip(several, found):
        behind = list(GOAL)
        while len(behind) < 6:
            choices = log_probs(objective, prompt.tolist(), behind, 1)
            choices[END] = -torch.inf
            behind = [int(choices.argmax()), *behind]
        assert one.tokens.tolist() == behind[:4]


def test_goal_search_backwards_ranks_by_the_prompt():
    objective = made()
    found = Reverse(make_decoder("goal_search", rollouts=1000, batch=9, tie=0)).search(objective.predictor(), request())
    assert {tuple(one.tokens.tolist()) for one in found} == set(itertools.product(range(VOCABULARY), repeat=2))
    for one in found[::7]:
        fill = one.tokens.tolist()
        assert one.log_probability == pytest.approx(slow_log_probability(objective, fill, GOAL), abs=1e-9)
        assert one.score == pytest.approx(prompt_score(objective, fill, GOAL), abs=1e-9)
    assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)


@pytest.mark.parametrize("min_gap", [1, 2])
def test_without_a_goal_it_begins_with_the_end_token(min_gap):
    objective = made(min_gap=min_gap)
    (one,) = Reverse(make_decoder("greedy")).decode(objective.predictor(), request(None, 6, END))
    chosen = []
    while len(chosen) < 5 and CLOSING not in chosen:
        choices = log_probs(objective, PROMPT, [*chosen, END], 1, VOCABULARY + (min_gap == 1))
        choices[END] = -torch.inf
        chosen = [int(choices.argmax()), *chosen]
    assert one.tokens.tolist() == [*(token for token in chosen if token != CLOSING), END]
    assert one.closed == (CLOSING in chosen)


def test_without_a_prompt_it_finds_beginnings():
    objective = made()
    nothing = Request([np.zeros(0, np.int64)], 2, END, np.array(GOAL))

    def backwards(fill):
        return float(
            log_probs(objective, [], GOAL, 1)[fill[1]] + log_probs(objective, [], [fill[1], *GOAL], 1)[fill[0]]
        )

    every = set(itertools.product(sorted({*range(VOCABULARY)} - {END}), repeat=2))
    found = Reverse(make_decoder("beam", beams=1000)).search(objective.predictor(), nothing)
    assert {tuple(one.tokens.tolist()) for one in found} == every
    for one in found[::7]:
        assert one.log_probability == pytest.approx(backwards(one.tokens.tolist()), abs=1e-9)
    searched = Reverse(make_decoder("goal_search", rollouts=1000, batch=9, tie=0)).search(
        objective.predictor(), nothing
    )
    assert {tuple(one.tokens.tolist()) for one in searched} == every
    for one in searched[::7]:  # equation 8 in reverse: each token between what is before and behind it
        whole = [*one.tokens.tolist(), *GOAL]
        score = sum(float(log_probs(objective, whole[:k], whole[k + 1 :], 0)[whole[k]]) for k in range(2))
        assert one.score == pytest.approx(score, abs=1e-9)
    assert [one.score for one in searched] == sorted((one.score for one in searched), reverse=True)


def test_beginnings_can_be_filled_in_too():
    objective = made()
    found = make_decoder("beam", beams=1000).search(
        objective.predictor(), Request([np.zeros(0, np.int64)], 2, None, np.array(GOAL))
    )
    for one in found[::7]:
        first, second = one.tokens.tolist()
        slow = log_probs(objective, [], GOAL, 0)[first] + log_probs(objective, [first], GOAL, 0)[second]
        assert one.log_probability == pytest.approx(float(slow), abs=1e-9)
    greedy = make_decoder("greedy").decode(
        objective.predictor(), Request([np.zeros(0, np.int64)] * 2, 3, None, np.array(GOAL))
    )
    assert greedy[0].tokens[0] == int(log_probs(objective, [], GOAL, 0).argmax())
    with pytest.raises(ValueError, match="prompt is empty"):
        Request([np.array([1]), np.zeros(0, np.int64)], 3, None, np.array(GOAL))


def test_steps_are_whole_completions_in_reading_order():
    objective = made()
    reverse = Reverse(make_decoder("greedy"))
    both = Request([np.array([1]), np.array([2])], 3, None, np.array(GOAL))
    steps = list(reverse.steps(objective.predictor(), both))
    for row, one in enumerate(reverse.decode(objective.predictor(), both)):
        assert steps[row].tokens[row].tolist() == one.tokens.tolist()


def test_steps_keep_the_probability_of_an_empty_completion():
    objective = made(min_gap=1)
    with torch.no_grad():
        objective.head.third.bias.view(2, -1)[1, CLOSING] += 100.0
    reverse = Reverse(make_decoder("beam", beams=2))
    (one,) = reverse.decode(objective.predictor(), request(None, 4))
    assert (one.tokens.tolist(), one.closed) == ([], True)
    assert one.log_probability < 0
    (step,) = reverse.steps(objective.predictor(), request(None, 4))
    assert (step.tokens < 0).all()
    assert step.log_probabilities.sum() == one.log_probability


@pytest.mark.parametrize("score", ["previous", "next", "goal"])
def test_scores_that_rank_nothing_backwards_are_refused(score):
    def search(asked, **fields):
        return Reverse(make_decoder("goal_search", rollouts=4, **fields)).search(made().predictor(), asked)

    nothing = Request([np.zeros(0, np.int64)], 2, None, np.array(GOAL))
    with pytest.raises(ValueError, match=f"score {score} has no use: .* first tokens under .*omit `score`"):
        search(nothing, score=score)
    assert len(search(nothing, scored_tokens=1)) == 4
    if score == "goal":
        assert len(search(request(), score=score)) == 4
    else:
        with pytest.raises(ValueError, match=f"score {score} has no use: .* of the prompt: omit `score`"):
            search(request(), score=score)
    with pytest.raises(ValueError, match="scored_tokens has no use: backwards"):
        search(request(), scored_tokens=3)


@pytest.mark.parametrize(
    ("predictor", "asked", "message"),
    [
        (lambda: tiny_objective("next_token").predictor(), request(), "previous tokens"),
        (lambda: tiny_objective("belief_state", backward=False).predictor(), request(), "previous tokens"),
        (lambda: tiny_objective("belief_state", previous_weight=0.0).predictor(), request(), "no head for them"),
        (
            lambda: made(min_gap=1).predictor(),
            Request([np.zeros(0, np.int64)], 2, None, np.array(GOAL), closing=CLOSING),
            "give `limit` in place of `free_length`",
        ),
        (lambda: made().predictor(), request(list(range(10)) * 3), "a goal of 30 tokens after a prompt of 3"),
        (
            lambda: made().predictor(),
            request(None, 1, END),
            "from the end token and needs room for one more: set `limit`",
        ),
        (lambda: made().predictor(), Request([np.ones(CONTEXT - 1, np.int64)], 5, END), "of at most 22 tokens"),
    ],
)
def test_what_cannot_be_decoded_backwards_says_so(predictor, asked, message):
    with pytest.raises(ValueError, match=message):
        Reverse(make_decoder("greedy")).search(predictor(), asked)
