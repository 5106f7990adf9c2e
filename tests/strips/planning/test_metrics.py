import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statewise.strips.model.model import Action, ActionModel
from statewise.strips.model.traces import Traces
from statewise.strips.pddl.pddl import Problem
from statewise.strips.planning import plans as plan_module
from statewise.strips.planning.metrics import applicability, first_rejected, problem_solving, syntactic, trace_accuracy
from statewise.strips.planning.planner import PlannerTimeout
from statewise.strips.planning.plans import Plan, UnmatchedGoal
from statewise.strips.trace_data.domains import domain
from statewise.strips.trace_data.random_traces import traces


@st.composite
def models(draw):
    atoms = draw(st.sampled_from([1, 3, 64, 65, 130]))
    masks = st.integers(0, 2**atoms - 1)
    made = []
    for number in range(draw(st.integers(1, 5))):
        sparse = draw(masks) & draw(masks) & draw(masks)
        made.append(Action(f"a{number}", sparse & draw(masks), draw(masks), draw(masks)))
    return ActionModel(tuple(f"p{place}" for place in range(atoms)), tuple(made))


@given(models(), st.data())
@settings(max_examples=100, deadline=None)
def test_many_traces_at_once_are_judged_as_one_by_one(model, data):
    numbers = st.integers(0, len(model.actions) - 1)
    rows = data.draw(st.lists(st.lists(numbers, min_size=1, max_size=8).map(tuple), min_size=1, max_size=6))
    padded, _, _ = Traces(model.names, tuple(rows), (0,) * len(rows)).padded()
    expected = [model.first_rejected(row) for row in rows]
    assert first_rejected(model, padded).tolist() == [-1 if at is None else at for at in expected]


def test_a_true_model_is_right_on_its_traces_under_any_names():
    bw = domain("blocksworld:3")
    drawn = traces(bw, 60, 15, seed=1, negatives=0.5)
    turned = bw.model.with_actions(bw.model.names[::-1])
    assert trace_accuracy(turned, drawn) == {"accuracy": 1.0, "positives": 1.0, "negatives": 1.0}


def test_a_trace_rejected_too_early_or_too_late_is_wrong():
    model = domain("simple").model  # a needs p and r, which it deletes; b needs q and r
    rows = (("a", "b"), ("a", "a", "a"), ("a", "c", "b"), ("a", "c"))
    given_traces = Traces(model.names, tuple(tuple(model.number[name] for name in row) for row in rows), (1, 1, 1, 0))
    # the second is rejected at its second action already, the third not at all
    scores = trace_accuracy(model, given_traces)
    assert scores == {"accuracy": 0.5, "positives": 1.0, "negatives": pytest.approx(1 / 3)}
    with pytest.raises(ValueError, match="none of the traces' actions, such as 'jump', is an action of the model"):
        trace_accuracy(model, Traces(("jump",), ((0,),), (0,)))


def test_an_action_unseen_in_training_is_always_possible_and_changes_nothing():
    true = domain("simple")
    model = true.model
    rows = Traces(("jump", "a", "c"), ((1, 0, 0, 1), (1, 2, 0, 1), (0,)), (1, 1, 1))
    # a deletes r and p: the first a after it is rejected, with a jump in between or not; a jump never is
    assert trace_accuracy(model, rows)["accuracy"] == pytest.approx(2 / 3)
    known = ActionModel(model.atoms, model.actions[:2])
    assert 0 < applicability(known, true, num=5, length=5, seed=0)["definition_recall"] < 1  # c's adds are missing
    assert syntactic(known, model)["precision"] == 1
    assert syntactic(known, model)["add_recall"] == pytest.approx(2 / 3)


def test_syntactic_scores_count_matched_bits_per_action():
    true = ActionModel.of(["p", "q"], {"a": (["p"], ["q"], ["p"]), "b": (["q"], ["p"], [])})
    assert set(syntactic(ActionModel(("x", "y"), true.actions), true).values()) == {1.0}
    learned = ActionModel.of(["x", "y"], {"b": (["x", "y"], ["x"], []), "a": (["x"], [], ["x"])})
    scores = syntactic(learned, true)  # x is p, y is q
    assert scores["pre_precision"] == pytest.approx((1 + 1 / 2) / 2)
    assert scores["pre_recall"] == 1
    assert scores["add_precision"] == 1  # nothing claimed is no false claim
    assert scores["add_recall"] == pytest.approx((0 + 1) / 2)
    assert scores["delete_precision"] == scores["delete_recall"] == 1  # b deletes nothing in either
    assert scores["precision"] == pytest.approx((0.75 + 1 + 1) / 3)


def test_spare_and_missing_atoms_count_against():
    true = ActionModel.of(["p", "q"], {"a": (["p", "q"], [], []), "b": ([], ["q"], [])})
    spare = ActionModel.of(["p", "q", "s"], {"a": (["p", "q", "s"], [], []), "b": ([], ["q"], [])})
    assert syntactic(spare, true)["pre_precision"] == pytest.approx((2 / 3 + 1) / 2)
    assert syntactic(spare, true)["pre_recall"] == 1
    missing = true.with_atoms([1])
    assert syntactic(missing, true)["pre_recall"] == pytest.approx((1 / 2 + 1) / 2)
    assert syntactic(missing, true)["pre_precision"] == 1


def test_applicability_of_the_true_model():
    bw = domain("blocksworld:2")
    scores = applicability(bw.model, bw, num=20, length=10, seed=0)
    assert scores["definition_precision"] == scores["definition_recall"] == scores["state_recall"] == 1
    assert 0.5 < scores["state_precision"] < 1  # what cannot be known without the initial state
    assert scores["states"] == 200
    assert applicability(bw.model, bw, num=20, length=10, seed=0) == scores


def test_applicability_of_models_that_accept_too_much_and_too_little():
    bw = domain("blocksworld:2")
    free = ActionModel(bw.model.atoms, tuple(Action(each.name, 0, 0, 0) for each in bw.model.actions))
    loose = applicability(free, bw, num=20, length=10, seed=0)
    assert loose["definition_recall"] == loose["state_recall"] == 1
    assert loose["state_precision"] < loose["definition_precision"] < 1
    everything = (1 << len(bw.model.atoms)) - 1
    tight = ActionModel(bw.model.atoms, tuple(Action(each.name, everything, 0, 1) for each in bw.model.actions))
    strict = applicability(tight, bw, num=20, length=10, seed=0)
    assert strict["definition_recall"] == strict["state_recall"] == 0
    assert strict["definition_precision"] == 1  # nothing accepted is nothing accepted wrongly
    with pytest.raises(ValueError, match="at least 1"):
        applicability(bw.model, bw, num=0, length=1, seed=0)


def test_applicability_is_the_share_over_all_states_of_the_walks():
    """The slow twin: sums over walks that are drawn here with the same generator."""
    bw = domain("blocksworld:2")
    learned = ActionModel(bw.model.atoms, (Action("pickup b1", 0, 0, 0), *bw.model.actions[1:]))
    assert learned.names == bw.model.names
    rng = np.random.default_rng(5)
    begins, both, accepted = bw.states, 0, 0
    for _ in range(10):
        state, walk = begins[int(rng.integers(len(begins)))], []
        for _ in range(6):
            choices = bw.model.applicable(state)
            walk.append(choices[int(rng.integers(len(choices)))])
            state = bw.model.result(state, walk[-1])
            mine = {at for at in range(8) if not learned.actions[at].pre & learned.after(walk)}
            both += len(mine & set(bw.model.applicable(state)))
            accepted += len(mine)
    assert applicability(learned, bw, num=10, length=6, seed=5)["state_precision"] == pytest.approx(both / accepted)


def test_problem_solving_sorts_what_planning_came_to(monkeypatch):
    simple = domain("simple")
    tasks = [Problem(simple, simple.start[0], goal) for goal in (1, 2, 4, 5, 6)]

    def fake(learned, *, problem, planner, timeout):
        assert timeout == 7
        if problem.goal == 1:
            raise PlannerTimeout("late")
        if problem.goal == 2:
            raise UnmatchedGoal("q")
        actions = None if problem.goal == 4 else ("a",)
        return Plan(actions, True, problem.goal == 5 if actions else None, {}, 0.0, "fake")

    monkeypatch.setattr(plan_module, "plan", fake)
    scores = problem_solving(simple.model, tasks, timeout=7)
    assert scores == {
        "solving_ratio": 0.2,
        "false_plan_ratio": 0.2,
        "no_plan_ratio": 0.4,
        "timeout_ratio": 0.2,
        "problems": 5,
    }
    with pytest.raises(ValueError, match="no problems"):
        problem_solving(simple.model, [])
