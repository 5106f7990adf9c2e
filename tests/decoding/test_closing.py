"""Completions of free length before a goal, against every completion there is, each prefix read anew."""

import itertools

import numpy as np
import pytest
import torch
from doubles import VOCABULARY, MarkovPredictor, spread_weights, tiny_objective
from torch.nn import functional as F

from statewise.data_types import Batch
from statewise.decoding import make_decoder
from statewise.decoding.base import Request
from statewise.decoding.predictor import closing_symbol
from statewise.evaluation.infilling import fill_gaps
from statewise.tasks.base import Infill

CLOSING = VOCABULARY
PROMPT, GOAL = [1, 5, 2], [4, 7]

pytestmark = pytest.mark.usefixtures("float64")


@pytest.fixture
def objective():
    made = tiny_objective("belief_state", head="mlp", min_gap=1, backbone={"layers": 1}).eval()
    spread_weights(made)
    return made


def next_log_probs(objective, prefix, suffix, choices=VOCABULARY + 1):
    """(choices,) of the next-token head, as it is usually written, both encoders run afresh."""
    f = objective.prefix_encoder.encode(Batch.plain(torch.tensor([prefix]))).state[0, -1]
    read = suffix[::-1] or [objective.end]
    b = objective.suffix_encoder.encode(Batch.plain(torch.tensor([read]))).state[0, -1]
    head = objective.head
    x = F.relu(head.second(F.relu(head.first(torch.cat((f, b))))))
    return head.third(x)[: VOCABULARY + 1][:choices].log_softmax(-1).detach()


def every_fill(objective, limit, end=None):
    """(tokens, whether it is closed) -> log-probability: all that the model can put into the gap."""
    tokens = [token for token in range(VOCABULARY) if token != end]
    found = {}
    for length in range(limit + 1):
        for fill in itertools.product(tokens, repeat=length):
            chosen = [*fill, CLOSING] if length < limit else fill
            found[fill, length < limit] = sum(
                float(next_log_probs(objective, [*PROMPT, *chosen[:place]], GOAL)[symbol])
                for place, symbol in enumerate(chosen)
            )
    return found


def request(limit, end=None, **fields):
    return Request([np.array(PROMPT)], limit, end, np.array(GOAL), **{"closing": CLOSING, **fields})


def as_dict(completions):
    return {(tuple(one.tokens.tolist()), one.closed): one.log_probability for one in completions}


@pytest.mark.parametrize("end", [None, 3])
def test_the_probability_of_a_fill_is_that_of_its_tokens_and_of_its_stop(objective, end):
    predictor = objective.predictor()
    slow = every_fill(objective, 2, end)
    found = as_dict(make_decoder("beam", beams=1000).search(predictor, request(2, end)))
    assert set(found) == set(slow)
    for fill, log_prob in slow.items():
        assert found[fill] == pytest.approx(log_prob, abs=1e-9)
    if end is None:  # these are all that can happen
        assert sum(map(np.exp, found.values())) == pytest.approx(1)


def test_goal_search_finds_the_same_fills_and_scores_them_by_equation_7(objective):
    predictor, slow = objective.predictor(), every_fill(objective, 2)
    found = make_decoder("goal_search", rollouts=1000, batch=7, tie=0).search(predictor, request(2))
    assert as_dict(found) == pytest.approx(slow, abs=1e-9)
    for one in found:
        before = [*PROMPT, *one.tokens.tolist()]
        expected = sum(
            float(next_log_probs(objective, before + GOAL[:place], GOAL[place + 1 :], VOCABULARY)[token])
            for place, token in enumerate(GOAL)
        )
        assert one.score == pytest.approx(expected, abs=1e-9)
    assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
    first = make_decoder("goal_search", rollouts=1, batch=7).search(predictor, request(6))[0]
    greedy = make_decoder("greedy").decode(predictor, request(6))[0]
    assert (first.tokens.tolist(), first.closed) == (greedy.tokens.tolist(), greedy.closed)


@pytest.mark.parametrize("favour", [-1000.0, 30.0])
def test_rows_close_by_themselves(objective, favour):
    """Rows of several lengths, some of which close at once, later, or never."""
    with torch.no_grad():
        objective.head.third.bias[CLOSING] += favour
    predictor, prompts = objective.predictor(), [np.array(row) for row in ([1], [2, 9], [3, 3, 0], [8], [6, 10, 4, 5])]
    several = Request(prompts, 5, 3, np.array(GOAL), closing=CLOSING)
    found = make_decoder("greedy").decode(predictor, several)
    for prompt, one in zip(prompts, found):
        chosen, total = [], 0.0
        while len(chosen) < 5 and CLOSING not in chosen:
            log_probs = next_log_probs(objective, [*prompt.tolist(), *chosen], GOAL)
            allowed = log_probs.index_fill(0, torch.tensor(3), -torch.inf)  # the end is no choice
            chosen.append(int(allowed.argmax()))
            total += float(log_probs[chosen[-1]])
        assert one.closed == (chosen[-1] == CLOSING)
        assert one.tokens.tolist() == [token for token in chosen if token != CLOSING]
        assert one.log_probability == pytest.approx(total, abs=1e-9)
    assert any(one.closed for one in found) == (favour > 0)


def test_every_decoder_says_the_probability_under_the_model(objective):
    """Also where the end is likely, which is no choice before a goal."""
    end = 3
    with torch.no_grad():
        objective.head.third.bias[end] += 2.0
    asked = request(4, end, closing=None)
    predictor = objective.predictor()
    one_by_one = ("greedy", {}), ("sample", {"top_k": 1}), ("speculative", {"drafter": "prompt_lookup"})
    for name, fields in (*one_by_one, ("beam", {"beams": 1}), ("goal_search", {"rollouts": 1})):
        (one,) = make_decoder(name, **fields).decode(predictor, asked)
        total = sum(
            float(next_log_probs(objective, [*PROMPT, *one.tokens[:place].tolist()], GOAL, VOCABULARY)[token])
            for place, token in enumerate(one.tokens)
        )
        assert one.log_probability == pytest.approx(total, abs=1e-9), name


def test_steps_hold_the_closing_symbol_and_completions_do_not(objective):
    with torch.no_grad():
        objective.head.third.bias[CLOSING] += 100.0
    for decoder in (make_decoder("greedy"), make_decoder("beam"), make_decoder("goal_search", rollouts=1)):
        (step,) = decoder.steps(objective.predictor(), request(4))
        assert step.tokens.tolist() == [[CLOSING]]
        (one,) = decoder.decode(objective.predictor(), request(4))
        assert (one.tokens.tolist(), one.closed) == ([], True)


def test_completions_of_a_fixed_length_know_no_closing(objective):
    with torch.no_grad():
        objective.head.third.bias[CLOSING] += 100.0
    (one,) = make_decoder("greedy").decode(objective.predictor(), request(4, closing=None))
    assert (len(one.tokens), one.closed) == (4, False)
    expected = sum(
        float(next_log_probs(objective, [*PROMPT, *one.tokens[:place].tolist()], GOAL, VOCABULARY)[token])
        for place, token in enumerate(one.tokens)
    )
    assert one.log_probability == pytest.approx(expected, abs=1e-9)


def test_who_cannot_say_so_says_what_to_train(objective):
    assert closing_symbol(objective.predictor()) == CLOSING
    with pytest.raises(ValueError, match="min_gap 1"):
        closing_symbol(tiny_objective("belief_state").predictor())
    with pytest.raises(ValueError, match="condition on a goal"):
        closing_symbol(tiny_objective("next_token").predictor())
    for fields in ({"goal": None}, {"exact": True}):
        with pytest.raises(ValueError, match="free length"):
            Request(**{"prompts": [np.array(PROMPT)], "limit": 3, "goal": np.array(GOAL), "closing": CLOSING, **fields})


class GoalFirst:
    """Goal, separator 3, prompt; 2 is the end."""

    end, context = 2, 9

    def with_goal(self, prompt, goal):
        return np.concatenate([goal, [3], prompt]), None

    def decode(self, tokens):
        return "".join(map(str, tokens))

    def continuation(self, before, tokens):
        return self.decode(tokens)


@pytest.mark.parametrize("limit", [2, 3, None])
def test_models_that_read_goals_first_end_fills_by_the_end_token(limit):
    table = torch.tensor([[0.2, 0.4, 0.3, 0.1], [0.3, 0.1, 0.5, 0.1], [0.25] * 4, [0.25] * 4])
    predictor = MarkovPredictor(table, context=9)
    missing = [Infill(np.array([0, 1, 0]), np.array([1]), np.array([1, 0]))]
    (found,) = fill_gaps(
        predictor, GoalFirst(), make_decoder("beam", beams=10**4), missing, free_length=True, limit=limit
    )
    most = limit or 9 - 6
    slow = {}
    for length in range(1, most + 1):
        for fill in itertools.product([0, 1, 3], repeat=length - 1):
            for last in [2] if length < most else range(4):
                path = [0, *fill, last]
                slow[fill, last] = np.prod([table[one, two] for one, two in itertools.pairwise(path)])
    fill, last = max(slow, key=slow.__getitem__)
    assert sum(slow.values()) == pytest.approx(1)
    assert found.completion == "".join(map(str, fill if last == 2 else (*fill, last)))
    assert found.ended_by == ("model" if last == 2 else "length")
    assert (found.prompt, found.goal, found.original) == ("010", "10", "1")
