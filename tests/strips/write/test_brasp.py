"""Theorem 3, the figures' values, and the two operations on their own."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statewise.strips.model.model import Action, ActionModel
from statewise.strips.trace_data.domains import domain
from statewise.strips.write.brasp import NOWHERE, Attention, PositionWise, Program, program, run

SIMPLE = domain("simple").model


def word(text):
    return [SIMPLE.number[name] for name in text.split()]


@st.composite
def models_and_traces(draw):
    atoms, actions = draw(st.integers(0, 5)), draw(st.integers(1, 5))
    some = st.integers(0, 2**atoms - 1)
    model = ActionModel(
        tuple(f"p{number}" for number in range(atoms)),
        tuple(Action(f"a{number}", draw(some), draw(some), draw(some)) for number in range(actions)),
    )
    return model, draw(st.lists(st.integers(0, actions - 1), min_size=1, max_size=15))


@given(models_and_traces())
def test_theorem_3_the_program_computes_definition_1(case):
    model, trace = case
    done = run(model, trace)
    negative = model.first_rejected(trace) is not None
    assert done.output == negative
    assert done["Z"].tolist() == [negative] * len(trace)


@given(models_and_traces())
def test_y_marks_the_actions_that_are_not_applicable_though_all_take_effect(case):
    model, trace = case
    done = run(model, trace)
    for position, number in enumerate(trace):
        known_false = model.after(trace[:position])
        missing = model.actions[number].pre & known_false
        assert done["Y"][position] == bool(missing)
        for place, atom in enumerate(model.atoms):
            assert done[f"Y_{atom}"][position] == bool(missing >> place & 1)


@given(models_and_traces())
def test_heads_attend_to_the_last_action_that_affects_what_is_required(case):
    model, trace = case
    done = run(model, trace)
    for place, atom in enumerate(model.atoms):
        for i, number in enumerate(trace):
            touching = [
                j for j in range(i) if (model.actions[trace[j]].add | model.actions[trace[j]].delete) >> place & 1
            ]
            required = model.actions[number].pre >> place & 1
            assert done.attended[f"Y_{atom}"][i] == (touching[-1] if required and touching else NOWHERE)


def test_vectors_come_in_the_order_of_the_equations():
    names = list(run(SIMPLE, word("a c")).vectors)
    heads = [f"{letter}_{atom}" for atom in "pqr" for letter in "QKVY"]
    assert names == ["I_a", "I_b", "I_c", *heads, "Y", "Z"]


def test_the_negative_trace_of_figure_1():
    done = run(SIMPLE, word("a c a c b b"))
    assert np.flatnonzero(done["Y_p"]).tolist() == [2]
    assert np.flatnonzero(done["Y_q"]).tolist() == np.flatnonzero(done["Y_r"]).tolist() == [5]
    assert np.flatnonzero(done["Y"]).tolist() == [2, 5]
    assert done["Z"].all()
    assert not run(SIMPLE, word("a c c b c a")).output


@pytest.mark.parametrize(
    ("choice", "mask", "attended", "values"),
    [
        ("leftmost", "all", [1, 1, 1, 1], [0, 0, 0, 0]),
        ("rightmost", "all", [2, 2, 2, 2], [1, 1, 1, 1]),
        ("rightmost", "before", [NOWHERE, NOWHERE, 1, 2], [1, 0, 0, 1]),
        ("leftmost", "after", [1, 2, NOWHERE, NOWHERE], [0, 1, 0, 0]),
    ],
)
def test_attention_of_every_kind(choice, mask, attended, values):
    """Over the word 0 1 2 0: scored where it is not 0; the value is whether it is 2, the default whether i = 0."""
    look = Attention("look", choice, mask, lambda i, j: ~j["zero"], lambda i, j: j["two"], lambda at: np.arange(4) == 0)
    done = Program(("zero", "one", "two"), (look,)).run([0, 1, 2, 0])
    assert done.attended["look"].tolist() == attended
    assert done["look"].tolist() == [bool(value) for value in values]


def test_scores_and_values_may_look_at_both_positions():
    same = Attention(
        "same", "rightmost", "before", lambda i, j: i["x"] == j["x"], lambda i, j: i["x"] & j["x"], lambda at: at["y"]
    )
    twice = PositionWise("twice", lambda at: at["same"] & at["x"])
    done = Program(("x", "y"), (same, twice)).run([0, 1, 0, 1])
    assert done.attended["same"].tolist() == [NOWHERE, NOWHERE, 0, 1]
    assert done["same"].tolist() == [False, True, True, False]
    assert done["twice"].tolist() == [False, False, True, False]


def test_words_that_are_none():
    with pytest.raises(ValueError, match="one symbol or more"):
        run(SIMPLE, [])
    with pytest.raises(ValueError, match="symbol 7 is not in the alphabet of 3"):
        program(SIMPLE).run([0, 7])
