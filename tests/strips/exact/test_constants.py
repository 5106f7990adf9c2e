"""Preconditions on constants: a robot loads and unloads only at the dock, which these actions do not name."""

from itertools import permutations

import pytest

from statewise.strips import Domain, Names, ground, learn_lifted_exact, learn_schemas, traces, verify
from statewise.strips.model.model import ActionModel

PLACES, BOXES = ("dock", "hall", "yard"), ("b1", "b2")


@pytest.fixture(scope="module")
def world():
    at = {place: f"at {place}" for place in PLACES}
    actions = {f"go {x} {y}": ([at[x]], [at[y]], [at[x]]) for x, y in permutations(PLACES, 2)}
    for box in BOXES:
        actions[f"load {box}"] = ([at["dock"], f"out {box}"], [f"in {box}"], [f"out {box}"])
        actions[f"unload {box}"] = ([at["dock"], f"in {box}"], [f"out {box}"], [f"in {box}"])
    atoms = [*at.values(), *(f"{which} {box}" for box in BOXES for which in ("in", "out"))]
    model = ActionModel.of(atoms, actions)
    return Domain("dock", model, (sum(1 << atoms.index(each) for each in ("at dock", "out b1", "out b2")),))


def test_a_constant_is_required_where_it_is_said_to_be_one(world):
    walks = traces(world, 40, 30, 1, negatives=0.0)
    without, found = learn_lifted_exact(walks), learn_lifted_exact(walks, constants=("dock", "unknown"))
    assert verify(ground(without.schemas, world.model.names), world, drawn_only=True).outcome == "different"
    assert verify(ground(found.schemas, world.model.names), world, drawn_only=True)
    assert found.report["on_constants"] == 2
    assert found.report["training_accuracy"] == 1.0
    assert (found.schemas["load"].constants, found.schemas["load"].arity) == (("dock",), 1)
    assert found.schemas["go"].constants == ()
    # that the robot is not in the hall follows from where it is
    assert learn_lifted_exact(walks, constants=("dock", "hall")).schemas == found.schemas


def test_names_of_a_domain_say_which_objects_are_constants(world, tmp_path):
    walks = traces(world, 40, 30, 1, negatives=0.5)
    found = learn_schemas(walks, names=Names(constants=("dock",)), folder=tmp_path / "learned")
    assert found.schemas["load"].constants == ("dock",)
    assert found.report["training_accuracy"] == 1.0
