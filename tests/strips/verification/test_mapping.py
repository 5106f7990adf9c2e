import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statewise.strips.model.model import Action, ActionModel
from statewise.strips.trace_data.domains import domain
from statewise.strips.verification.mapping import LIMIT, as_table, match_atoms, meaning, renamed


def shuffled(model, seed):
    """The model with unnamed atoms and its actions in another order; and the true name of each atom."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(model.atoms)).tolist()
    moved = model.with_atoms(order, [f"p{place}" for place in range(len(order))])
    return moved.with_actions(rng.permutation(model.names).tolist()), [model.atoms[at] for at in order]


@pytest.mark.parametrize("spec", ["simple", "blocksworld:3", "ferry:3x2", "hanoi:3"])
def test_a_permuted_model_gets_its_names_back(spec):
    true = domain(spec).model
    learned, names = shuffled(true, 3)
    match = match_atoms(learned, true)
    assert match.as_names() == dict(zip(learned.atoms, names))
    assert set(match.scores) == {1.0}
    assert (
        renamed(learned, match).with_actions(true.names).with_atoms([names.index(name) for name in true.atoms]) == true
    )


@given(st.integers(0, 10_000), st.integers(0, 8))
@settings(max_examples=40, deadline=None)
def test_a_few_wrong_bits_do_not_change_the_matching(seed, wrong):
    true = domain("blocksworld:3").model
    learned, names = shuffled(true, seed)
    rng = np.random.default_rng(seed)
    actions = list(learned.actions)
    for at in rng.choice(len(actions), wrong, replace=False):  # one bit in each of some actions
        old, bit = actions[at], 1 << int(rng.integers(len(names)))
        actions[at] = Action(old.name, old.pre ^ bit, old.add, old.delete)
    match = match_atoms(ActionModel(learned.atoms, tuple(actions)), true)
    right = sum(names[mine] == true.atoms[theirs] for mine, theirs in match.pairs)
    # atoms share no more than half of their places here, so a pair is only lost when several errors meet in it
    assert right >= len(names) - wrong


def test_atoms_more_and_fewer_stay_unmatched():
    true = domain("simple").model
    spare = ActionModel(("x", "y", "z", "spare"), true.actions)  # occurs nowhere
    match = match_atoms(spare, true)
    assert match.unmatched_learned == (3,)
    assert match.unmatched_reference == ()
    assert "spare = nothing in the reference" in match.as_text()
    fewer = match_atoms(true.with_atoms([0, 2]), true)
    assert [true.atoms[at] for at in fewer.unmatched_reference] == ["q"]
    assert "nothing learned = q" in fewer.as_text()


def test_a_model_without_atoms_matches_nothing():
    true = domain("simple").model
    for one, other in ((true.with_atoms([]), true), (true, true.with_atoms([]))):
        match = match_atoms(one, other)
        assert (match.pairs, match.scores) == ((), ())
        assert len(match.unmatched_learned) == len(one.atoms)
        assert len(match.unmatched_reference) == len(other.atoms)


def test_atoms_without_overlap_are_not_paired():
    one = ActionModel.of(["x"], {"a": (["x"], [], []), "b": ([], [], [])})
    other = ActionModel.of(["y"], {"a": ([], [], []), "b": ([], ["y"], [])})
    assert match_atoms(one, other).pairs == ()


def test_an_unmatched_atom_never_takes_a_name_twice():
    true = domain("simple").model
    learned = ActionModel(("r", "p0", "q", "p"), true.actions)  # the last occurs nowhere
    named = renamed(learned, match_atoms(learned, true))
    assert named.atoms == ("p", "q", "r", "p1")


def test_an_atom_that_is_hardly_the_same_keeps_its_name():
    true = ActionModel.of(["x"], {"a": (["x"], [], []), "b": ([], ["x"], []), "c": ([], [], ["x"])})
    near = ActionModel.of(["p0"], {"a": (["p0"], [], []), "b": ([], ["p0"], []), "c": ([], [], [])})
    far = ActionModel.of(["p0"], {"a": (["p0"], [], []), "b": ([], [], ["p0"]), "c": ([], ["p0"], [])})
    assert renamed(near, match_atoms(near, true)).atoms == ("x",)  # 2 of 3 places: 0.8
    assert match_atoms(far, true).pairs == ((0, 0),)  # 1 of 3: 0.33
    assert renamed(far, match_atoms(far, true)).atoms == ("p0",)


def test_other_actions_and_another_model_are_refused():
    with pytest.raises(ValueError, match="different actions"):
        match_atoms(domain("simple").model, domain("blocksworld:2").model)
    match = match_atoms(domain("simple").model, domain("simple").model)
    with pytest.raises(ValueError, match="another model"):
        renamed(domain("simple").model.with_atoms([0]), match)


def test_the_table_holds_the_model():
    table = as_table(domain("simple").model)
    assert table.shape == (3, 3, 3)
    assert table[2].tolist() == [[True, False, True], [True, False, True], [False, True, False]]  # r at a, b, c


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
