"""What heads say about traces."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from random_heads import NAMES, joined, language, random_heads

from statewise.strips.model.heads import Heads, Judge
from statewise.strips.model.model import Action, ActionModel
from statewise.strips.model.traces import Traces
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


@settings(max_examples=150, deadline=None)
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
