"""What learned atoms mean in real states."""

from statewise.strips.model.model import Action, ActionModel
from statewise.strips.trace_data.domains import domain
from statewise.strips.verification.mapping import LIMIT, meaning


def negated(model):
    """A model whose second half of atoms are opposites of the first: q is false where p is true."""
    width = len(model.atoms)
    names = (*model.atoms, *(f"not {name}" for name in model.atoms))
    actions = tuple(
        Action(each.name, each.pre, each.add | each.delete << width, each.delete | each.add << width)
        for each in model.actions
    )
    return ActionModel(names, actions)


def test_true_atoms_mean_themselves():
    world = domain("blocksworld:3")
    for initial in world.states[:5]:
        found = meaning(world.model, world, initial)
        assert found.initial == initial
        for atom in range(len(world.model.atoms)):
            assert found.of(1 << atom) == 1 << atom


def test_atoms_that_are_opposites_are_told_apart_from_the_state():
    world = domain("ferry:2x1")
    learned = negated(world.model)
    width = len(world.model.atoms)
    for initial in world.states:
        found = meaning(learned, world, initial)
        assert found.initial & (1 << width) - 1 == initial
        assert found.initial >> width == (1 << width) - 1 & ~initial


def test_a_goal_is_said_by_other_atoms_where_its_own_is_missing():
    world = domain("blocksworld:2")
    kept = [at for at, name in enumerate(world.model.atoms) if name != "handempty"]
    learned = world.model.with_atoms(kept)
    goal = 1 << world.model.atoms.index("on b1 b2") | 1 << world.model.atoms.index("handempty")
    said = meaning(learned, world, world.start[0]).of(goal)
    assert learned.spelled(said) == ["on b1 b2"]  # while b1 is on b2 nothing is held


def test_a_goal_that_cannot_be_reached_is_not_said():
    world = domain("blocksworld:2")
    both = sum(1 << world.model.atoms.index(name) for name in ("holding b1", "holding b2"))
    assert meaning(world.model, world, world.start[0]).of(both) is None


def test_a_goal_that_no_atom_expresses_is_not_always_true():
    world = domain("blocksworld:2")
    goal = 1 << world.model.atoms.index("on b1 b2")
    assert meaning(world.model.with_atoms([]), world, world.start[0]).of(goal) is None
    assert meaning(world.model.with_atoms([]), world, world.start[0]).of(0) == 0


def test_too_many_states_are_not_gone_through():
    world = domain("gripper:12")
    assert len(world.model.reachable(world.start, limit=LIMIT + 1)) > LIMIT
    assert meaning(world.model, world, world.start[0]) is None
