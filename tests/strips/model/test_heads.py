"""What heads say about traces, which heads the traces support, and the smallest covers of negative traces."""

from itertools import product

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from random_heads import NAMES, grouped, joined, language, random_heads, true_and_junk

from statewise.strips.model.heads import Candidates, Heads, Judge, evidence, smallest_cover, sound
from statewise.strips.model.model import Action, ActionModel
from statewise.strips.model.traces import Traces
from statewise.strips.neural.learning import pool
from statewise.strips.trace_data.domains import domain
from statewise.strips.trace_data.random_traces import traces


@st.composite
def some_traces(draw, actions=3):
    numbers = st.integers(0, actions - 1)
    rows = draw(st.lists(st.lists(numbers, min_size=1, max_size=7).map(tuple), min_size=1, max_size=8))
    return Traces(NAMES[:actions], tuple(rows), tuple(draw(st.integers(0, 1)) for _ in rows))


def slow_verdicts(model: ActionModel, given: Traces):
    """(alarms, catches, at_risk) of a model of one atom."""
    alarms, catches, at_risk = [], [], 0
    for row, label in zip(given.rows, given.labels):
        known_false, alarm, catch = 0, False, False
        for at, number in enumerate(row):
            rejected = bool(model.actions[number].pre & known_false)
            if label and at == len(row) - 1:
                catch = rejected
            else:
                alarm |= rejected
                at_risk += bool(known_false)
            known_false = model.after([number], known_false)
        alarms.append(alarm)
        catches.append(catch)
    return alarms, catches, at_risk


@settings(max_examples=50, deadline=None)
@given(some_traces(), st.integers(0, 10**6), st.integers(0, 5))
def test_verdicts_are_those_of_a_plain_loop(given_traces, seed, count):
    heads = random_heads(seed, count)
    judge = Judge(given_traces)
    found = judge.verdicts(heads)
    assert found.alarms.shape == found.catches.shape == (count, len(given_traces))
    for place in range(count):
        alarms, catches, at_risk = slow_verdicts(heads.only([place]).model(NAMES), given_traces)
        assert found.alarms[place].tolist() == alarms
        assert found.catches[place].tolist() == catches
        assert found.at_risk[place] == at_risk
    model = heads.model(NAMES)
    right = [
        model.first_rejected(row) == (len(row) - 1 if label else None)
        for row, label in zip(given_traces.rows, given_traces.labels)
    ]
    assert judge.right(found.alarms, found.catches).tolist() == right
    assert judge.valid == sum(len(row) - label for row, label in zip(given_traces.rows, given_traces.labels))


def test_several_models_are_judged_at_once():
    given_traces = traces(domain("simple"), 40, 8, 1)
    judge, heads = Judge(given_traces), joined(random_heads(1, 6), Heads.of_model(domain("simple").model))
    found = judge.verdicts(heads)
    shaped = [each.reshape(3, 3, -1) for each in (found.alarms, found.catches)]
    together = judge.right(*shaped)
    assert together.shape == (3, 40)
    for place in range(3):
        assert np.array_equal(together[place], judge.right(shaped[0][place], shaped[1][place]))
    assert together[2].all()
    assert not together[0].all()


def test_unique_heads_are_the_first_of_each_kind_that_can_reject():
    one, other, mute, harmless = (
        Heads(*(np.array([part], dtype=bool) for part in parts))
        for parts in (
            ([1, 0, 0], [0, 1, 0], [0, 0, 1]),
            ([1, 0, 0], [0, 0, 0], [0, 0, 1]),
            ([0, 0, 0], [0, 1, 0], [0, 0, 1]),  # requires nothing
            ([1, 0, 0], [0, 1, 0], [0, 0, 0]),  # nothing deletes it
        )
    )
    heads = joined(mute, other, one, other, harmless, one)
    assert heads.unique().tolist() == [1, 2]
    assert heads.size().tolist() == [2, 2, 3, 2, 2, 3]
    assert len(heads.only([]).unique()) == 0


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_unique_heads_keep_the_language(seed):
    heads = random_heads(seed, 6, actions=2)
    assert language(heads.only(heads.unique())) == language(heads)


def test_a_model_and_its_heads_are_two_ways_to_write_one_thing():
    model = ActionModel(("p", "q"), (Action("a", 1, 2, 1), Action("b", 2, 3, 0)))
    heads = Heads.of_model(model)
    assert heads.pre.tolist() == [[True, False], [False, True]]
    assert heads.add.tolist() == [[False, True], [True, True]]
    assert heads.delete.tolist() == [[True, False], [False, False]]
    assert heads.model(("a", "b"), ("p", "q")) == model
    assert heads.theta().tolist() == [[[1, 1, 1], [0, 1, 0]], [[0, 1, 0], [1, 1, 0]]]
    assert len(Heads.of_model(ActionModel((), model.actions[:0]))) == 0
    many = ActionModel(tuple(f"x{at}" for at in range(80)), (Action("a", 1 << 79, 0, 1 << 64),))
    assert Heads.of_model(many).model(("a",), many.atoms) == many


def test_a_sound_head_rejects_no_valid_action_and_catches_something():
    _, given_traces, heads, true = true_and_junk("ferry:2x1", 300, 300)
    judge = Judge(given_traces)
    found = judge.verdicts(heads)
    expected = ~found.alarms.any(1) & found.catches.any(1)
    places = sound(Candidates.alone(heads), judge)
    assert places.tolist() == np.flatnonzero(expected).tolist()
    assert set(true) <= set(places)
    assert 0 < len(places) < len(heads)


def test_one_false_alarm_is_enough():
    """c requires what a deletes: right in all traces but one."""
    head = Heads(*(np.array([part], dtype=bool) for part in ([0, 0, 1], [0, 1, 0], [1, 0, 0])))
    rows = [(0, 2), (0, 0, 2), (0, 1, 0, 2), (1, 0, 2)]
    good = Traces(NAMES, tuple(rows), (1, 1, 1, 1))
    assert sound(Candidates.alone(head), Judge(good)).tolist() == [0]
    bad = Judge(Traces(NAMES, (*rows, (0, 2, 1)), (1, 1, 1, 1, 0)))
    assert sound(Candidates.alone(head), bad).tolist() == []
    assert sound(Candidates.alone(head), bad, noise=0.01).tolist() == [0]  # one may be noisy
    found = pool(Candidates.alone(head), bad)
    assert (len(found.heads), found.sound, found.supported, found.caught, found.accuracy) == (0, 0, 0, 0.0, 1 / 5)
    several = Judge(Traces(NAMES, (*rows, (0, 2, 1), (0, 2, 2), (0, 2, 0)), (1, 1, 1, 1, 0, 0, 0)))
    assert sound(Candidates.alone(head), several, noise=0.1).tolist() == []
    assert sound(Candidates.alone(head), several, noise=0.3).tolist() == [0]


def test_evidence_is_the_chance_of_no_alarm_over_the_cost_of_the_head():
    from math import comb, log

    _, given_traces, heads, true = true_and_junk("blocksworld:2", 200, 0)
    judge = Judge(given_traces)
    found = evidence(Candidates.alone(heads), judge)
    for place in range(len(heads)):
        model = heads.only([place]).model(given_traces.actions)
        would = valid = 0
        for row, label in zip(given_traces.rows, given_traces.labels):
            for at in range(len(row) - label):
                valid += 1
                would += 8 - len(model.possible(model.after(row[:at])))
        size = sum(bool(part) for action in model.actions for part in (action.pre, action.add, action.delete))
        expected = -valid * log(1 - would / valid / 8) / log(comb(24, size))
        assert found[place] == pytest.approx(expected, rel=1e-6)
    assert found[true].min() > 3


def test_more_traces_are_more_evidence():
    worth = []
    for num in (50, 500):
        _, given_traces, heads, _ = true_and_junk("ferry:2x1", num, 0)
        worth.append(evidence(Candidates.alone(heads), Judge(given_traces)))
    assert (worth[1] > 3 * worth[0]).all()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 9), st.integers(1, 8))
@example(423, 5, 4)  # worths whose difference is below the default tolerance of the solver
def test_the_cover_is_a_smallest_one(seed, count, columns):
    rng = np.random.default_rng(seed)
    catches = rng.random((count, columns)) < 0.4
    catches[rng.integers(count, size=columns), np.arange(columns)] = True  # there is one
    worth = rng.random(count)
    found, proven = smallest_cover(catches, worth)
    assert proven
    assert catches[found].any(0).all()
    subsets = [np.flatnonzero(bits) for bits in product([False, True], repeat=count)]
    covers = [subset for subset in subsets if catches[subset].any(0).all()]
    least = min(map(len, covers))
    assert len(found) == least
    assert worth[found].sum() == pytest.approx(max(worth[one].sum() for one in covers if len(one) == least), abs=1e-6)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 30), st.integers(1, 40))
def test_a_cover_found_without_time_is_never_called_smallest_wrongly(seed, count, columns):
    rng = np.random.default_rng(seed)
    catches = rng.random((count, columns)) < 0.2
    catches[rng.integers(count, size=columns), np.arange(columns)] = True
    worth = 100 * rng.random(count)
    found, proven = smallest_cover(catches, worth, seconds=0.0)
    best, _ = smallest_cover(catches, worth)
    assert catches[found].any(0).all()
    assert len(set(found)) == len(found)
    assert len(found) >= len(best)
    if proven:
        assert len(found) == len(best)
        assert worth[found].sum() == pytest.approx(worth[best].sum())


def test_a_cover_too_hard_for_its_time_is_not_proven():
    """In a projective plane of order 7 any two of the 57 lines meet in one point: presolving does not help."""
    points = [(1, y, z) for y in range(7) for z in range(7)] + [(0, 1, z) for z in range(7)] + [(0, 0, 1)]
    catches = np.array(points) @ np.array(points).T % 7 == 0
    found, proven = smallest_cover(catches, np.ones(len(points)), seconds=0.0)
    assert not proven
    assert catches[found].any(0).all()


def test_some_candidates_keep_their_heads():
    heads = random_heads(3, 6)
    some = grouped(heads, [0, 0, 1, 2, 2, 2]).only(np.array([0, 2]))
    assert some.group.tolist() == [0, 0, 1, 1, 1]
    assert np.array_equal(some.heads.pre, heads.pre[[0, 1, 3, 4, 5]])
    assert len(some) == 2
    assert some.size.tolist() == [heads.size()[:2].sum(), heads.size()[3:].sum()]
    assert some.places.tolist() == [18, 27]
