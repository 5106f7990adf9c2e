"""Plans of certain steps: planned with an independent search in the learned model."""

from collections import deque

import pytest

from statewise.strips.exact.ground import learn_exact
from statewise.strips.exact.lifted import learn_lifted_exact
from statewise.strips.exact.verdicts import Seen
from statewise.strips.planning.plans import Plan, certain_plan, certain_steps, plan
from statewise.strips.trace_data.domains import domain
from statewise.strips.trace_data.random_traces import traces

WORLD = domain("ferry:2x2")
DRAWN = traces(WORLD, 60, 20, 1)
AFTER = ["board c0 l0", "sail l0 l1"]


def shortest_to(model, last):
    """A planner for `a plan that ends in this action, after AFTER`, by breadth-first search over the known-false sets
    of a model and its guards."""

    def planned(guards, seconds, without):
        so_far = [model.number[name] for name in AFTER]
        begin = (model.after(so_far), guards.after(so_far))
        seen, waiting = {begin}, deque([(begin, ())])
        while waiting:
            (false, guarded), done = waiting.popleft()
            for number in sorted({*model.possible(false)} & {*guards.possible(guarded)}):
                if model.names[number] == last:
                    return Plan((*done, last), True, None, {}, 0.0, "search")
                after = model.after([number], false), guards.after([number], guarded)
                if after not in seen:
                    seen.add(after)
                    waiting.append((after, (*done, model.names[number])))
        return Plan(None, None, None, {}, 0.0, "search")

    return planned


def ground_model(count):
    drawn = DRAWN.only(range(count))
    return learn_exact(DRAWN).model, Seen.of(drawn), WORLD.model


def schemas(count):
    larger = domain("ferry:3x2")
    drawn = traces(WORLD, count, 12, 1, negatives=0.0)
    return learn_lifted_exact(drawn).ground(larger.model.names), Seen.of(drawn, arity=2), larger.model


@pytest.mark.parametrize(("learned", "count"), [(ground_model, 60), (schemas, 40)])
def test_a_certain_plan_has_no_guess_and_is_valid(learned, count):
    model, seen, true = learned(count)
    planned = 0
    for last in true.names:
        found = certain_plan(model.names, seen, shortest_to(model, last), after=AFTER)
        if found.plan.actions is not None:
            assert found.certain == certain_steps(seen, AFTER, found.plan) == [True] * len(found.plan.actions)
            row = [true.number[name] for name in (*AFTER, *found.plan.actions)]
            assert true.first_rejected(row) is None
            planned += 1
    assert planned


def every_certain_row(seen, names, depth):
    """All continuations of AFTER of so many actions whose every step is certain."""
    rows = [()]
    for _ in range(depth):
        rows = [(*row, name) for row in rows for name in names if all(seen.certain_steps([*AFTER, *row, name])[2:])]
        yield from rows


@pytest.mark.parametrize(("learned", "count", "none"), [(ground_model, 6, True), (schemas, 15, False)])
def test_guesses_are_avoided_and_no_certain_plan_is_missed(learned, count, none):
    """Against all certain continuations of up to three actions: if one that the model accepts ends in the action, a
    plan is found."""
    model, few, _ = learned(count)
    certain = [
        row
        for row in every_certain_row(few, model.names, 3)
        if model.first_rejected([model.number[name] for name in (*AFTER, *row)]) is None
    ]
    outcomes = set()
    for last in model.names:
        plain = shortest_to(model, last)(model.with_atoms([]), 1.0, ())
        found = certain_plan(model.names, few, shortest_to(model, last), after=AFTER)
        if not all(certain_steps(few, AFTER, plain)):
            outcomes.add(found.plan.actions is None)
            assert found.plan.actions != plain.actions
        if any(row[-1] == last for row in certain):
            assert found.plan.actions is not None
    assert none in outcomes


def test_a_guard_is_taken_to_hold_at_the_start():
    """A planner gets the guards as atoms that nothing has deleted yet, and lists none of them as an assumption."""
    pytest.importorskip("up_pyperplan")
    model, seen, _ = schemas(40)

    def planned(guards, seconds, without):
        return plan(model, goal_possible="debark c0 l2", after=AFTER, guards=guards, without=without, timeout=seconds)

    found = certain_plan(model.names, seen, planned, after=AFTER)
    assert found.plan.actions is not None
    assert found.plan.valid_in_model
    assert not any("guard" in atom for atom in (*found.plan.assumed, *found.plan.goal))


def test_a_schema_that_was_not_seen_is_in_no_certain_plan():
    model, seen, _ = schemas(40)
    unseen = Plan(("fly c0",), True, None, {}, 0.0, "search")
    found = certain_plan(model.names, seen, lambda guards, seconds, without: unseen, after=AFTER)
    assert found.plan.actions is None
