"""Reading traces with states: each form gives the same, and what is wrong is named with its line."""

import contextlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statewise.strips.model.states import State
from statewise.strips.trace_data.state_files import read_observed

TRUE = [["on b1 b2", "handempty"], ["holding b1"], ["ontable b1", "handempty"]]
ACTIONS = ["unstack b1 b2", "putdown b1"]
CALLS = [["on(b1:block,b2:block)", "handempty()"], ["holding(b1:block)"], ["ontable(b1:block)", "handempty()"]]
ACTION = "(unstack block b1 block b2)"
TRAJECTORY = """(:trajectory (:objects b1 b2 - block) ; of a comment (:state)
(:init (on b1 b2) (HANDEMPTY)) (:action (unstack b1 b2)) (:state (and (holding b1)))
(:action (putdown b1))
(:state (ontable b1) (handempty)))"""
CSV = """trace_id,action,state,next_state
1,unstack b1 b2,(on b1 b2) (handempty),
1,putdown b1,holding b1,"ontable(b1), handempty"
"""


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t", TRAJECTORY),
        ("t.jsonl", json.dumps({"actions": ACTIONS, "states": TRUE})),
        ("t.json", json.dumps([{"actions": ACTIONS, "states": [[each.split() for each in one] for one in TRUE]}])),
        ("t.jsonl", json.dumps({"actions": ACTIONS, "observations": CALLS})),
        ("t.csv", CSV),
    ],
)
def test_all_forms_give_the_same(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    observed = read_observed(tmp_path / name)
    assert [observed.traces.actions[at] for at in observed.traces.rows[0]] == ACTIONS
    assert observed.states == (tuple(State(frozenset(each)) for each in TRUE),)
    assert observed.complete == {"on", "handempty", "holding", "ontable"}
    assert read_observed(tmp_path).states == observed.states  # a folder
    assert read_observed(tmp_path / name, "some").complete == frozenset()


def test_steps_as_macq_writes_them(tmp_path):
    steps = [
        {"index": 1, "state": {"(on block b1 block b2)": True, "(handempty)": True}, "action": ACTION},
        {"index": 2, "state": {"fluents": {"(holding block b1)": True, "(handempty)": False}}, "action": None},
    ]
    (tmp_path / "t.json").write_text(json.dumps([steps, steps]))
    observed = read_observed(tmp_path / "t.json")
    last = State(frozenset({"holding b1"}), frozenset({"handempty"}))
    assert observed.traces.actions == ("unstack b1 b2",)
    assert observed.states == ((State(frozenset(TRUE[0])), last),) * 2
    (tmp_path / "t.json").write_text(json.dumps([{"state": ["p"], "action": None}, {"state": ["p"]}]))
    with pytest.raises(ValueError, match="step 1 of trace 1 has no action"):
        read_observed(tmp_path / "t.json")


def test_false_and_unknown_atoms(tmp_path):
    states = [{"p a": True, "(q)": False, "r": None}, None, ["(not (p a))", "not q()", "~ s(a)"]]
    (tmp_path / "t.json").write_text(json.dumps({"actions": ["go a", "go a"], "states": states}))
    observed = read_observed(tmp_path / "t.json")
    first = State(frozenset({"p a"}), frozenset({"q"}))
    assert observed.states == ((first, None, State(frozenset(), frozenset({"p a", "q", "s a"}))),)
    assert not observed.complete
    assert observed.count == 2
    (tmp_path / "t").write_text("((:state (p a) (not (q))) (:action (go a)) (:action go a))")
    assert read_observed(tmp_path / "t").states == ((first, None, None),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(:trajectory (:state (p a)) (:state (q)))", "a second state without an action"),
        ("(:trajectory (:state (p a)) (:action))", "expected one action"),
        ("(:trajectory\n(:state (p (a))))", ":2: the atoms of"),
        ("(:trajectory (:state (= (f) 3)) (:action (go)))", "cannot be read"),
        ("(:trajectory (:state (p a)) (:action (go))", "not closed"),
        ("(:trajectory (:state (p a)))", "empty trace"),
        ("(:trajectory (:what))", "not a part of a trajectory"),
        (
            "(:trajectory (:action (go)) (:state (p)) (:action (go)) (:state (p a)))",
            "0 arguments in 'p', and 1 in 'p a'",
        ),
        ('{"actions": ["go"], "states": [["p"], ["p"], ["p"]]}', "3 states for 1 actions"),
        ('{"actions": ["go"], "states": 7}', "a list with a state"),
        ('{"actions": ["go"], "states": [[1e999], []]}', "written like on a b"),
        ('{"actions": ["go"], "states": [{"p": 2}, []]}', "true, false or null"),
        ('{"actions": ["go"], "states": [["p", "not p"], []]}', "as true and as false"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, text, message):
    (tmp_path / "t").write_text(text)
    with pytest.raises(ValueError, match=message) as error:
        read_observed(tmp_path / "t")
    assert str(tmp_path) in str(error.value)


PIECES = st.sampled_from(
    ["(", ")", ":trajectory", ":state", ":action", "(not (p))", "(p a)", "and", "=", ";", "\n", "go"]
)
JSONS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["p a", "p(a", "not ", "", "(", "<b>"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["p", "fluents", ""]), inner, max_size=2)
    ),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None)
@given(st.lists(PIECES, max_size=12).map(" ".join), JSONS)
def test_bad_input_is_a_value_error(tmp_path_factory, text, states):
    folder = tmp_path_factory.mktemp("bad")
    (folder / "t").write_text(f"(:trajectory {text})")
    (folder / "t.json").write_text(json.dumps({"actions": ["go a"], "states": states}))
    (folder / "t.csv").write_text(f'trace_id,action,state\n1,go a,"{text}"\n')
    for name in ("t", "t.json", "t.csv"):
        with contextlib.suppress(ValueError):
            assert read_observed(folder / name).traces.rows
