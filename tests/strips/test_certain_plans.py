"""Plans of certain steps: planned with an independent search in the learned model."""

from collections import deque

import pytest

from statewise.strips.certain_plans import certain_plan, certain_steps
from statewise.strips.domains import domain
from statewise.strips.exact.ground import learn_exact
from statewise.strips.exact.verdicts import Seen
from statewise.strips.planning import Plan
from statewise.strips.random_traces import traces

WORLD = domain("ferry:2x2")
DRAWN = traces(WORLD, 60, 20, 1)
AFTER = ["board c0 l0", "sail l0 l1"]


def shortest_to(last):
    """A planner for `a plan that ends in this action, after AFTER`, by breadth-first search over known-false sets."""

    def planned(model, seconds):
        begin = model.after([model.number[name] for name in AFTER])
        seen, waiting = {begin}, deque([(begin, ())])
        while waiting:
            false, done = waiting.popleft()
            for number in model.possible(false):
                if model.names[number] == last:
                    return Plan((*done, last), True, None, {}, 0.0, "search")
                after = model.after([number], false)
                if after not in seen:
                    seen.add(after)
                    waiting.append((after, (*done, model.names[number])))
        return Plan(None, None, None, {}, 0.0, "search")

    return planned


def test_a_certain_plan_has_no_guess_and_is_valid():
    learned, seen = learn_exact(DRAWN).model, Seen.of(DRAWN)
    planned = 0
    for last in WORLD.model.names:
        found = certain_plan(learned, seen, shortest_to(last), after=AFTER)
        if found.plan.actions is not None:
            assert found.certain == certain_steps(seen, AFTER, found.plan) == [True] * len(found.plan.actions)
            row = [WORLD.model.number[name] for name in (*AFTER, *found.plan.actions)]
            assert WORLD.model.first_rejected(row) is None
            planned += 1
    assert planned


def test_guesses_are_avoided_or_there_is_no_plan():
    learned, few = learn_exact(DRAWN).model, Seen.of(DRAWN.only(range(6)))
    outcomes = set()
    for last in WORLD.model.names:
        plain = shortest_to(last)(learned, 1.0)
        found = certain_plan(learned, few, shortest_to(last), after=AFTER)
        if not all(certain_steps(few, AFTER, plain)):
            outcomes.add(found.plan.actions is None)
            assert found.plan.actions != plain.actions
    assert True in outcomes


def test_schemas_have_no_guards():
    with pytest.raises(ValueError, match="learn without --lifted"):
        certain_plan(WORLD.model, Seen.of(DRAWN, arity=1), shortest_to("sail l0 l1"))
