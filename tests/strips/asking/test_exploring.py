"""Exploring a simulator: what is certain is true, traces have labels of Definition 1, few steps are enough."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statewise.strips.asking.exploring import DomainSimulator, _Explorer, explore, simulator_of
from statewise.strips.exact.lifted import learn_lifted_exact
from statewise.strips.model.model import Action, ActionModel
from statewise.strips.trace_data.domains import Domain, domain
from statewise.strips.verification.verification import verify


def labelled_as_defined(found, model):
    for row, label in zip(found.traces.rows, found.traces.labels):
        assert model.first_rejected(row) == (len(row) - 1 if label else None)


@st.composite
def small_domains(draw):
    sets = st.integers(0, 15)
    actions = []
    for name in "abcde"[: draw(st.integers(1, 5))]:
        delete = draw(sets)
        actions.append(Action(name, draw(sets) & draw(sets), draw(sets) & ~delete, delete))
    return Domain("any", ActionModel(("p", "q", "r", "s"), tuple(actions)), (draw(sets),))


@settings(max_examples=60, deadline=None)
@given(small_domains(), st.booleans(), st.integers(0, 3))
def test_what_is_certain_is_true_of_the_hidden_state(world, tells, seed):
    simulator = DomainSimulator(world, tells=tells)
    explorer = _Explorer(simulator, simulator.actions, False, np.random.default_rng(seed))
    step = simulator.step

    def checked(action):
        for at in range(len(explorer.names)):
            options = explorer.options(at)
            possible = not world.model.actions[at].pre & ~simulator.state
            assert possible or options
            assert not (possible and explorer.impossible_for_sure(options))
        return step(action)

    simulator.step = checked
    while explorer.steps < 25 and explorer.walk(25, 8):
        pass


@settings(max_examples=40, deadline=None)
@given(small_domains(), st.booleans())
def test_traces_are_labelled_as_defined(world, tells):
    found = explore(DomainSimulator(world, tells=tells), 30, max_length=9)
    assert explore(DomainSimulator(world, tells=tells), 30, max_length=9).traces == found.traces
    labelled_as_defined(found, world.model)
    assert found.steps == 30 or not any(label == 0 for label in found.traces.labels)
    assert not (tells and found.impossible)


@pytest.mark.parametrize("spec", ["ferry:3x2", "blocksworld:3"])
def test_schemas_are_exact_after_few_steps(spec):
    world = domain(spec)
    found = explore(DomainSimulator(world), 30, lifted=True)
    labelled_as_defined(found, world.model)
    assert (found.steps, found.impossible, found.resets) == (30, 0, 1)
    assert verify(learn_lifted_exact(found.traces).ground(world.model.names), world, drawn_only=True)


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["ferry:3x2", "blocksworld:3"])
def test_without_being_told_what_is_possible_schemas_are_exact_later(spec):
    world = domain(spec)
    found = explore(DomainSimulator(world, tells=False), 100, lifted=True)
    labelled_as_defined(found, world.model)
    assert verify(learn_lifted_exact(found.traces).ground(world.model.names), world, drawn_only=True)


class Lamp:
    """A lamp that is switched on and off, and whatever a test sets."""

    actions = ("on", "off")

    def __init__(self, **other):
        self.__dict__.update(other)

    def reset(self):
        self.lit = False

    def step(self, name):
        done = (name == "on") != self.lit
        self.lit ^= done
        return done


def lamp():
    return Lamp()


def test_a_function_of_a_module_gives_a_simulator():
    found = explore(simulator_of(f"{__name__}:lamp"), 12)
    assert (found.steps, found.resets) == (12, 1)
    assert (1, 0, 1) in [row[:3] for row in found.traces.rows] or (0, 1, 0) in [row[:3] for row in found.traces.rows]
    assert sum(found.traces.labels) == found.impossible == 2  # neither twice in a row


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nowhere.at_all:make", "'nowhere.at_all:make' is not a function of a module"),
        ("json:nothing", "is not a function of a module"),
        ("json", "is not a function of a module"),
        (":", "is not a function of a module"),
        ("math:pi", "what math:pi returns is no simulator: it has no actions, no reset, no step"),
    ],
)
def test_what_is_no_simulator_is_refused(name, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        simulator_of(name)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"actions": ()}, "a simulator needs actions with different names"),
        ({"actions": ("on", "on")}, "a simulator needs actions with different names"),
        ({"actions": ("on", 3)}, "a simulator needs actions with different names"),
        ({"step": lambda name: None}, r"step\('o.*'\) must return True or False, not None"),
        ({"possible": lambda: ["dim"]}, r"possible\(\) of the simulator names 'dim', which is not one of its actions"),
    ],
)
def test_wrong_answers_of_a_simulator_are_named(other, said):
    with pytest.raises(ValueError, match=said):
        explore(Lamp(**other), 3)


def test_where_nothing_is_possible_exploring_ends():
    found = explore(Lamp(possible=lambda: []), 5)
    assert (found.traces.rows, found.impossible) == ((), 0)
    with pytest.raises(ValueError, match="steps and max_length must be at least 1"):
        explore(Lamp(), 0)
