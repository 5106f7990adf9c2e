import dataclasses
import sys
import time

import pytest
from doubles import lives

from statewise.strips.model.model import Action, ActionModel
from statewise.strips.pddl.pddl import Problem, write_pddl
from statewise.strips.planning import planner as planner_module
from statewise.strips.planning.metrics import problem_solving
from statewise.strips.planning.planner import PLANNERS, PlannerTimeout, find_plan, installed
from statewise.strips.planning.plans import Plan, UnmatchedGoal, plan
from statewise.strips.trace_data.domains import domain

pytestmark = pytest.mark.usefixtures("forked")  # test_certain_plans.py starts planners as users do


def stacked(blocks=2):
    """Blocksworld with everything on the table; b1 shall stand on b2."""
    bw = domain(f"blocksworld:{blocks}")
    return Problem(bw, bw.start[0], 1 << bw.model.atoms.index("on b1 b2"))


def unnamed(model):
    return ActionModel(tuple(f"p{place}" for place in range(len(model.atoms))), model.actions).with_atoms(
        range(len(model.atoms) - 1, -1, -1)
    )


@pytest.mark.parametrize("name", sorted(PLANNERS))
def test_a_plan_in_learned_atoms_solves_the_true_problem(name):
    if name not in installed():
        pytest.skip(f"{name} is not installed here")
    task = stacked()
    found = plan(unnamed(task.domain.model), problem=task, planner=name)
    assert found.actions == ("pickup b1", "stack b1 b2")
    assert found.valid_in_model
    assert found.valid_in_problem
    assert found.mapping == {"on b1 b2": "p0"}
    assert found.planner == name
    by_names = plan(unnamed(task.domain.model), problem=task, mapping="names", planner=name)
    assert by_names.actions == found.actions
    assert by_names.mapping["p0"] == "on b1 b2"


def test_what_is_known_false_after_a_history_decides_the_plan():
    simple = domain("simple").model
    assert plan(simple, goal=["q"]).actions == ()  # nothing is known false
    found = plan(simple, goal=["p"], after=["a"])
    assert found.actions == ("c", "b")
    assert (found.valid_in_model, found.valid_in_problem, found.mapping) == (True, None, {})


def test_no_plan_is_a_result():
    simple = domain("simple").model
    found = plan(simple, goal=["p", "q"], after=["a"])
    assert (found.actions, found.valid_in_model) == (None, None)


def test_a_plan_that_only_the_learned_model_allows_is_told_apart():
    task = stacked()
    free = ActionModel(
        task.domain.model.atoms,
        tuple(Action(each.name, 0, each.add, each.delete) for each in task.domain.model.actions),
    )
    found = plan(free, problem=task)
    assert found.actions == ("stack b1 b2",)
    assert found.valid_in_model
    assert found.valid_in_problem is False
    assert problem_solving(free, [task])["false_plan_ratio"] == 1


def test_a_problem_read_from_pddl_is_checked_by_the_validator_as_well(tmp_path, monkeypatch):
    from statewise.strips.pddl.pddl import read_problem
    from statewise.strips.planning import plans as plan_module

    task = stacked()
    write_pddl(task.domain.model, tmp_path / "d.pddl", "blocks", problem=task)
    read = read_problem(tmp_path / "d.pddl", tmp_path / "d-problem.pddl")
    asked = []

    def spy(files, actions):
        from statewise.strips.pddl.pddl import validated

        asked.append((files, actions, validated(files, actions)))
        return asked[-1][-1]

    monkeypatch.setattr(plan_module, "validated", spy)
    assert plan(unnamed(read.domain.model), problem=read).valid_in_problem
    assert asked == [((tmp_path / "d.pddl", tmp_path / "d-problem.pddl"), ("pickup-b1", "stack-b1-b2"), True)]


def test_a_goal_atom_without_a_partner_is_named():
    task = stacked()
    kept = [at for at, name in enumerate(task.domain.model.atoms) if name != "on b1 b2"]
    with pytest.raises(UnmatchedGoal, match="'on b1 b2'"):
        plan(task.domain.model.with_atoms(kept), problem=task, mapping="names")


@pytest.mark.parametrize("mapping", ["auto", "meanings", "names"])
def test_a_goal_that_no_atom_expresses_is_an_error(mapping):
    task = stacked()
    with pytest.raises(UnmatchedGoal, match="no learned atom"):
        plan(task.domain.model.with_atoms([]), problem=task, mapping=mapping)


def test_a_mapping_can_be_given():
    task = stacked()
    learned = unnamed(task.domain.model)
    right = plan(learned, problem=task, mapping="names").mapping
    crossed = {**right, "p0": "on b2 b1", "p1": "on b1 b2"}
    assert plan(learned, problem=task, mapping=crossed).valid_in_problem is False
    with pytest.raises(ValueError, match="'nowhere' is not an atom"):
        plan(learned, problem=task, mapping={"p0": "nowhere"})
    with pytest.raises(ValueError, match="to two learned atoms"):
        plan(learned, problem=task, mapping={"p0": "handempty", "p1": "handempty"})
    with pytest.raises(ValueError, match="auto, meanings, names"):
        plan(learned, problem=task, mapping="by-heart")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "planning needs one goal"),
        ({"goal": ["p"], "problem": stacked()}, "planning needs one goal"),
        ({"problem": stacked(), "after": ["a"]}, "has its own initial state"),
        ({"goal": ["z"]}, "'z' is not an atom of the model; the model has p, q, r"),
        ({"goal": ["p"], "after": ["d"]}, "'d' is not an action of the model; the model has a, b, c"),
        ({"goal": ["p"], "planner": "oracle"}, "no planner 'oracle' is installed; choices: auto, "),
        ({"goal": ["p"], "timeout": 0}, "above 0 seconds"),
        ({"problem": stacked()}, "different actions"),
    ],
)
def test_what_cannot_be_planned_is_said(arguments, said):
    with pytest.raises(ValueError, match=said):
        plan(domain("simple").model, **arguments)


def test_the_planner_is_killed_when_its_time_is_over(tmp_path, monkeypatch):
    """The child starts a program of its own, as some planners do; both are gone afterwards."""
    script = tmp_path / "slow"
    script.write_text(
        f"#!/bin/sh\ncd {tmp_path}\nsleep 600 &\necho $! > grandchild.tmp\nmv grandchild.tmp grandchild\nwait\n"
    )
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    simple = domain("simple").model
    with pytest.raises(PlannerTimeout, match="found nothing within 4 seconds"):
        find_plan(simple, 0b101, 0b010, "pyperplan", 4)
    process, end = int((tmp_path / "grandchild").read_text()), time.monotonic() + 20
    while lives(process) and time.monotonic() < end:  # a kill takes effect when the system gets round to it
        time.sleep(0.05)
    assert not lives(process)


def test_a_planner_that_fails_is_quoted(tmp_path, monkeypatch):
    script = tmp_path / "broken"
    script.write_text("#!/bin/sh\ncat > /dev/null\necho out of luck >&2\nexit 3\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    with pytest.raises(ValueError, match="pyperplan failed: out of luck"):
        find_plan(domain("simple").model, 0b101, 0b010, "pyperplan", 30)


def test_without_the_extra_it_is_named(monkeypatch):
    simple = domain("simple").model
    monkeypatch.setattr(planner_module, "PLANNERS", {})
    with pytest.raises(ValueError, match=r"needs a planner.*-m pip install .*up-pyperplan"):
        plan(simple, goal=["p"])
    monkeypatch.setitem(sys.modules, "unified_planning", None)
    with pytest.raises(ValueError, match=r"needs unified-planning: .*-m pip install .*unified-planning"):
        plan(simple, goal=["p"])


def test_a_result_cannot_be_changed():
    found = plan(domain("simple").model, goal=["q"])
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.actions = None


# Goals by example, with a search in place of the planner


@pytest.fixture
def breadth_first(monkeypatch):
    """A shortest plan, found here: no planner is needed."""

    def search(model, initial, goal, planner, timeout):
        plans = {initial: []}
        waiting = [initial]
        for state in waiting:  # grows during the loop
            if not goal & ~state:
                return plans[state]
            for number in model.applicable(state):
                after = model.result(state, number)
                if after not in plans:
                    plans[after] = [*plans[state], number]
                    waiting.append(after)
        return None

    monkeypatch.setattr("statewise.strips.planning.plans.find_plan", search)
    monkeypatch.setattr("statewise.strips.planning.plans.chosen", lambda name: name)


BLOCKS = domain("blocksworld:3").model


def test_a_goal_by_example_is_reached_from_where_the_example_begins(breadth_first):
    example = ["unstack b1 b2", "putdown b1", "pickup b2", "putdown b2", "pickup b2", "stack b2 b1"]
    found = plan(BLOCKS, goal_after=example)
    assert found.actions == ("unstack b1 b2", "putdown b1", "pickup b2", "stack b2 b1")
    assert set(found.goal) == {"on b2 b1", "clear b2", "ontable b1", "handempty"}
    assert (found.assumed, found.valid_in_model) == ((), True)


def test_other_actions_say_where_the_plan_begins(breadth_first):
    example = ["pickup b2", "stack b2 b1"]
    found = plan(BLOCKS, goal_after=example, after=["pickup b1", "putdown b1", "unstack b2 b3"])
    assert found.actions == ("stack b2 b1",)
    assert found.assumed == ()


def test_what_is_not_known_is_assumed_only_where_it_must_be_and_said(breadth_first):
    """Nothing shows that b2 is clear; but what the example achieves is never assumed."""
    found = plan(BLOCKS, goal_after=["pickup b2", "stack b2 b1"], after=["pickup b1", "putdown b1"])
    assert found.actions[-1] == "stack b2 b1"
    assert found.assumed
    assert "on b2 b1" not in found.assumed
    possible = plan(BLOCKS, goal_possible="pickup b1", after=["unstack b1 b2"])
    assert (possible.actions, possible.assumed) == (("putdown b1",), ())
    assert set(possible.goal) == {"clear b1", "ontable b1", "handempty"}


def test_an_example_that_the_model_rejects_is_no_goal(breadth_first):
    with pytest.raises(ValueError, match="rejects action 2, 'pickup b2', which requires handempty"):
        plan(BLOCKS, goal_after=["pickup b1", "pickup b2"])


def test_the_lines_of_a_goal_fit_their_width_and_break_between_atoms():
    mapping = {f"true {at} is here": f"learned {at}" for at in range(20)}
    goal = tuple(f"atom {at}" for at in range(30))
    lines = Plan(("go",), True, True, mapping, 0.1, "none", goal=goal).goal_lines(60)
    assert all(len(line) <= 60 for line in lines)
    text = " ".join(line.strip() for line in lines)
    assert text.startswith("the problem in learned atoms: true 0 is here = learned 0, true 1 is here = learned 1, ")
    assert text.endswith(f"goal: {', '.join(goal)}")
    assert all(f"{one} = {other}" in "\n".join(lines) for one, other in mapping.items())
    assert Plan(("go",), True, None, {}, 0.1, "none").goal_lines(60) == []
