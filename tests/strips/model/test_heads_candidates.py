"""Which heads the traces support, and the smallest covers of negative traces."""

from itertools import product

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from random_heads import NAMES, grouped, random_heads, true_and_junk

from statewise.strips.model.heads import Candidates, Heads, Judge, evidence, smallest_cover, sound
from statewise.strips.model.traces import Traces
from statewise.strips.neural.learning import pool


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
