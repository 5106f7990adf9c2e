"""Goal search against Algorithm 1 as it stands: a queue of all tokens of all steps, every prefix read anew."""

import functools
import heapq
import itertools

import numpy as np
import pytest
import torch
from doubles import JointPredictor, MarkovPredictor, Remembered, spread_weights, tiny_objective, tiny_two_stream
from hypothesis import example, given, settings
from hypothesis import strategies as st

from statewise.backbones.nn.cache import SLACK
from statewise.data_types import Completion
from statewise.decoding import make_decoder
from statewise.decoding.base import Request
from statewise.decoding.goal_search import ranked
from statewise.decoding.predictor import GoalScorer
from statewise.objectives.belief_state.predictors import GoalPredictor

NOTHING = np.zeros(0, np.int64)


def search(predictor, prompt, goal=None, limit=None, end=None, **fields):
    room = max(1, predictor.context - len(prompt) - len([] if goal is None else goal))
    return make_decoder("goal_search", **fields).search(
        predictor,
        Request([np.array(prompt)], room if limit is None else limit, end, None if goal is None else np.array(goal)),
    )


def algorithm_1(predictor, prompt, goal, limit, end, rollouts):
    """(tokens, log-probability) of every candidate in the order in which it is found."""

    @functools.cache
    def log_probs(*tokens):
        prefix = torch.tensor([[*prompt, *tokens]])
        return predictor.start_with_goal(prefix, torch.tensor(NOTHING if goal is None else goal))[1][0].log_softmax(-1)

    numbers = itertools.count()
    queue = [(0.0, next(numbers), [])]
    candidates = []
    while queue and len(candidates) < rollouts:
        cost, _, s = heapq.heappop(queue)
        while len(s) < limit and not (goal is None and s[-1:] == [end]):
            choices = log_probs(*s).clone()
            if goal is not None and end is not None:
                choices[end] = -np.inf
            greedy = int(choices.argmax())
            for token in range(predictor.vocabulary):
                if token != greedy and choices[token] > -np.inf:
                    heapq.heappush(queue, (cost + float(choices[greedy] - choices[token]), next(numbers), [*s, token]))
            s = [*s, greedy]
        candidates.append((s, sum(float(log_probs(*s[:place])[token]) for place, token in enumerate(s))))
    return candidates


def assert_found_in_order(found, slow):
    """Of candidates with one score: by probability, then in the order in which Algorithm 1 finds them."""
    assert {tuple(one.tokens.tolist()) for one in found} == {tuple(tokens) for tokens, _ in slow}
    assert [one.log_probability for one in found] == pytest.approx(sorted((p for _, p in slow), reverse=True))
    numbers = {tuple(tokens): number for number, (tokens, _) in enumerate(slow)}
    for first, second in itertools.pairwise(found):
        if first.log_probability == second.log_probability:
            assert numbers[tuple(first.tokens.tolist())] < numbers[tuple(second.tokens.tolist())]


def goal_score(predictor, prompt, goal, tokens):
    cursor, _ = predictor.start_with_goal(torch.tensor([[*prompt, *tokens]]), torch.tensor(goal))
    return float(predictor.score_goal(cursor, torch.tensor(goal)))


def ending_score(predictor, prompt, tokens, count, head):
    own = min(count, len(prompt) + len(tokens) - 1)
    return float(predictor.score_ending(torch.tensor([[*prompt, *tokens]]), own, head)) * count / own


def assert_scored(found, slow, score, tie=0.01):
    """`found` are the slow way's candidates, with their scores, ranked by the definition of a tie."""
    expected = {tuple(tokens): [log_prob, score(tokens)] for tokens, log_prob in slow}
    mine = {tuple(one.tokens.tolist()): [one.log_probability, one.score] for one in found}
    assert len(expected) == len(mine) == len(found)
    for tokens, values in expected.items():
        assert mine[tokens] == pytest.approx(values, abs=1e-9)
    assert_ranked(found, tie)


def assert_ranked(found, tie):
    """Best score first; of those that lie at most `tie` below the best of the rest, the most probable one first."""
    rest = list(found)
    while rest:
        best = max(one.score for one in rest)
        equal = [one for one in rest if one.score >= best - tie]
        assert {id(one) for one in equal} == {id(one) for one in rest[: len(equal)]}
        likely = [one.log_probability for one in rest[: len(equal)]]
        assert likely == sorted(likely, reverse=True)
        rest = rest[len(equal) :]


class Indifferent:
    """Finds all candidates equally good, so that the most probable comes first."""

    def score_goal(self, cursor, goal):
        return torch.zeros(len(cursor.rows if isinstance(cursor, Remembered) else cursor.recent))

    def score_ending(self, sequences, count, head):
        return torch.zeros(len(sequences))


class IndifferentJoint(Indifferent, JointPredictor):
    pass


class IndifferentBelief(Indifferent, GoalPredictor):
    pass


@given(st.integers(0, 10**6), st.sampled_from([1, 2, 5, 17, 99]), st.sampled_from([1, 3, 16]), st.booleans())
@settings(max_examples=20, deadline=None)
@example(0, 99, 16, True)
def test_towards_a_goal_it_is_algorithm_1_with_equation_7(seed, rollouts, batch, ends):
    prompt, goal, end = [1], [0, 2], 1 if ends else None
    predictor = JointPredictor.drawn(seed, vocabulary=3, length=7)
    found = search(predictor, prompt, goal, end=end, rollouts=rollouts, batch=batch)
    slow = algorithm_1(predictor, prompt, goal, 4, end, rollouts)
    assert_scored(found, slow, lambda tokens: goal_score(predictor, prompt, goal, tokens))
    assert len(found) == min(rollouts, 2**4 if ends else 3**4)  # that is all there is
    found = search(IndifferentJoint(predictor.joint), prompt, goal, end=end, rollouts=rollouts, batch=batch)
    assert_found_in_order(found, slow)


@given(
    st.integers(0, 10**6),
    st.sampled_from([1, 2, 5, 17, 99]),
    st.sampled_from([1, 3, 16]),
    st.sampled_from([1, 3, 50]),
    st.sampled_from(["previous", "next", None]),
)
@settings(max_examples=20, deadline=None)
@example(0, 99, 16, 50, None)
def test_without_a_goal_it_ends_at_the_end_and_scores_by_equation_8(seed, rollouts, batch, scored_tokens, head):
    prompt, fields = [1, 0], {"rollouts": rollouts, "batch": batch}
    predictor = JointPredictor.drawn(seed, vocabulary=3, length=6, end=2)
    head_given = {} if head is None else {"score": head}
    found = search(predictor, prompt, end=2, scored_tokens=scored_tokens, **head_given, **fields)
    slow = algorithm_1(predictor, prompt, None, 4, 2, rollouts)
    count = min(scored_tokens, max(len(tokens) for tokens, _ in slow))
    assert_scored(found, slow, lambda tokens: ending_score(predictor, prompt, tokens, count, head or "previous"))
    assert len(found) == min(rollouts, 1 + 2 + 4 + 8 + 16)
    found = search(IndifferentJoint(predictor.joint), prompt, end=2, **fields)
    assert_found_in_order(found, slow)


@given(st.integers(0, 10**6), st.sampled_from([1, 7, 20]), st.sampled_from([1, 4, 16]), st.booleans())
@settings(max_examples=8, deadline=None)
def test_a_real_cache_gives_what_reading_anew_gives(seed, rollouts, batch, has_goal):
    model = tiny_objective("belief_state", seed=seed).double()
    spread_weights(model, seed)
    predictor, prompt, goal, limit, end = model.predictor(), [1, 2], [3, 4, 5] if has_goal else None, 9, 7
    fields = {"rollouts": rollouts, "batch": batch, **({} if has_goal else {"scored_tokens": 4})}

    def score(tokens):
        if has_goal:
            return goal_score(predictor, prompt, goal, tokens)
        return ending_score(predictor, prompt, tokens, min(4, longest), "previous")

    with torch.no_grad():
        slow = algorithm_1(predictor, prompt, goal, limit, end, rollouts)
        longest = max(len(tokens) for tokens, _ in slow)
        assert_scored(search(predictor, prompt, goal, limit, end, **fields), slow, score)
    found = search(IndifferentBelief(model), prompt, goal, limit, end, **fields)
    assert_found_in_order(found, slow)


@pytest.mark.parametrize("has_goal", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_window_is_no_bar_to_going_back_to_the_prompt(has_goal):
    """Nor to reading a goal that is longer than what the window's store keeps beyond what it reads."""
    limit = 3 + 2 * SLACK + 20
    backbone = functools.partial(tiny_two_stream, context=limit + SLACK + 20)
    model = tiny_objective("belief_state", make_backbone=backbone, backbone={"layers": 1}).double()
    spread_weights(model)
    predictor, prompt, rollouts = model.predictor(), [1, 2], 4
    goal = [place % 7 for place in range(SLACK + 10)] if has_goal else None
    with torch.no_grad():
        slow = algorithm_1(predictor, prompt, goal, limit, 7, rollouts)
        found = search(predictor, prompt, goal, limit, 7, rollouts=rollouts, batch=2)
        assert max(len(tokens) for tokens, _ in slow) > 3 + 2 * SLACK
        count = min(50, max(len(tokens) for tokens, _ in slow))
        assert_scored(
            found,
            slow,
            lambda tokens: (
                goal_score(predictor, prompt, goal, tokens)
                if has_goal
                else ending_score(predictor, prompt, tokens, count, "previous")
            ),
        )


@pytest.mark.parametrize("batch", [1, 2, 16])
@pytest.mark.parametrize("end", [None, 0, 1])
def test_equal_candidates_stay_in_the_order_in_which_they_were_found(batch, end):
    class Even(Indifferent, MarkovPredictor, GoalScorer):
        def start_with_goal(self, prompts, goal, counts=None):
            return self.start(prompts)

    predictor = Even(torch.full((3, 3), 1 / 3), context=5)  # every token is as likely as any other
    found = search(predictor, [0], end=end, rollouts=11, batch=batch)
    slow = algorithm_1(predictor, [0], None, 4, end, 11)
    assert_found_in_order(found, slow)


def test_a_model_that_knows_its_goal_gets_there():
    """From 0 one may go round 1 or round 2; only by 2 one comes to the goal, which is the unlikely way."""
    joint = torch.full((4,) * 4, 1e-6, dtype=torch.float64)
    joint[0, 1, 1, 1], joint[0, 2, 2, 3], joint[0, 1, 2, 3] = 0.9, 0.08, 0.02
    predictor = JointPredictor(joint)
    best, *_ = search(predictor, [0], [3], rollouts=5)
    assert best.tokens.tolist() == [2, 2]
    assert best.log_probability == pytest.approx(np.log(0.8), abs=1e-3)
    assert search(predictor, [0], rollouts=5, score="next")[0].tokens.tolist() == [1, 1, 1]
    assert [
        one.tokens.tolist()
        for one in make_decoder("goal_search", rollouts=5).decode(
            predictor, Request(np.array([[0], [0]]), 2, goal=np.array([3]))
        )
    ] == [[2, 2], [2, 2]]


@given(
    st.lists(
        st.tuples(st.sampled_from([0.0, -1e-9, -4e-3, -9e-3, -1.5e-2, -0.5, -np.inf]), st.floats(-20, 0)),
        min_size=1,
        max_size=12,
    ),
    st.sampled_from([0.0, 1e-6, 0.01]),
)
def test_of_equal_scores_the_most_probable_completion_is_best(candidates, tie):
    found = [Completion(np.array([place]), log_prob) for place, (_, log_prob) in enumerate(candidates)]
    given_back = ranked(found, [score for score, _ in candidates], tie)
    assert {int(one.tokens[0]): one.score for one in given_back} == dict(enumerate(s for s, _ in candidates))
    assert_ranked(given_back, tie)
    for first, second in itertools.pairwise(given_back):
        if (first.score, first.log_probability) == (second.score, second.log_probability):
            assert first.tokens[0] < second.tokens[0]


def test_where_the_goal_is_certain_after_every_completion_the_likely_completion_is_found():
    """The goal 3 follows whatever is between it and 0, all but surely; rounding must not choose among completions."""
    joint = torch.full((4,) * 4, 1e-12, dtype=torch.float64)
    # The goal is the most certain after the least likely completion.
    for first, (likely, missed) in enumerate(((0.1, 1e-3), (0.6, 2e-3), (0.25, 1e-3), (0.05, 1e-9))):
        joint[0, first, 2, 3] = likely
        joint[0, first, 2, 0] = likely * missed
    predictor = JointPredictor(joint / joint.sum())
    best, *_ = found = search(predictor, [0], [3], rollouts=16)
    assert best.tokens.tolist() == [1, 2]
    assert max(found, key=lambda one: one.score).tokens.tolist() == [3, 2]
    assert search(predictor, [0], [3], rollouts=16, tie=0)[0].tokens.tolist() == [3, 2]


def test_a_beam_may_make_the_candidates():
    predictor, prompt, goal = JointPredictor.drawn(4, vocabulary=3, length=7), [1], [0, 2]
    found = search(predictor, prompt, goal, end=1, rollouts=6, candidates_from="beam")
    beam = make_decoder("beam", beams=6).search(predictor, Request([np.array(prompt)], 4, 1, np.array(goal)))
    assert {tuple(one.tokens) for one in found} == {tuple(one.tokens) for one in beam}
    slow = [(one.tokens.tolist(), one.log_probability) for one in beam]
    assert_scored(found, slow, lambda tokens: goal_score(predictor, prompt, goal, tokens))


def test_few_positions_are_read_more_than_once():
    """The point of the cache: by far most reading is one token a row, and the prompt is read once a search."""
    model = tiny_objective("belief_state").double()
    spread_weights(model)
    read = {"starts": 0, "steps": 0}

    class Counting(GoalPredictor):
        def start_with_goal(self, prompts, goal, counts=None):
            read["starts"] += 1
            return super().start_with_goal(prompts, goal, counts)

        def extend(self, cursor, tokens, counts=None):
            read["steps"] += 1
            return super().extend(cursor, tokens, counts)

    search(Counting(model), [1, 2], [3, 4, 5], 10, rollouts=32, batch=8)
    assert read["starts"] == 2  # one to find candidates, one to judge them
    assert read["steps"] <= 9 + 8 * 10 + 2 * 4  # the first rollout, at most eight batches, four batches of scores


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rollouts": 0}, "rollouts must be at least 1, not 0"),
        ({"batch": 0}, "batch must be at least 1"),
        ({"scored_tokens": 0}, "scored_tokens must be at least 1"),
        ({"tie": -0.1}, "tie must be at least 0"),
        ({"tie": float("nan")}, "tie must be at least 0"),
        ({"candidates_from": "quue"}, "candidates_from"),
        ({"score": "both"}, "score"),
    ],
)
def test_wrong_settings_are_named(fields, message):
    with pytest.raises(ValueError, match=message):
        make_decoder("goal_search", **fields)


def test_what_cannot_be_searched_is_named():
    predictor = JointPredictor.drawn(0, vocabulary=3, length=5)
    with pytest.raises(ValueError, match="the goal is empty: give at least one symbol, or omit `goal`"):
        search(predictor, [0], NOTHING)
    with pytest.raises(ValueError, match="leaves no room in the context of 5"):
        search(predictor, [0], [1, 1, 1, 1])
    with pytest.raises(ValueError, match="score goal needs a goal"):
        search(predictor, [0], score="goal")
    for score in ("previous", "next"):
        with pytest.raises(ValueError, match=f"score {score} is for a search without a goal"):
            search(predictor, [0], [1], score=score)
    with pytest.raises(ValueError, match="scored_tokens is for a search without a goal"):
        search(predictor, [0], [1], scored_tokens=3)
    for goal in (None, [1]):
        with pytest.raises(ValueError, match=r"goal.* needs a model that can"):
            search(MarkovPredictor(torch.full((3, 3), 1 / 3)), [0], goal)
