"""Lifted learning: sorts, shared weights and where ground heads read them, and schemas that hold at any size."""

import numpy as np
import pytest
from schemas_by_hand import BLOCKSWORLD, FERRY, as_schemas

from statewise.strips import learn_schemas
from statewise.strips.model.heads import Candidates, Heads
from statewise.strips.model.model import ActionModel
from statewise.strips.model.schemas import Schema, arguments, ground, sorts_of
from statewise.strips.model.traces import Traces
from statewise.strips.neural.learning import Settings
from statewise.strips.neural.lifted import COPIES, Space, _schemas, learn_lifted
from statewise.strips.trace_data.domains import domain
from statewise.strips.trace_data.random_traces import traces
from statewise.strips.verification.verification import verify

BY_HAND = [("ferry:3x2", FERRY), ("blocksworld:3", BLOCKSWORLD), ("blocksworld:2", BLOCKSWORLD), ("ferry:2x1", FERRY)]


def in_space(space: Space, by_hand) -> list[tuple[int, np.ndarray]]:
    """The predicates of a hand-made model as weights: each takes the first free copy of its signature. Of a binary
    predicate over two sorts the space has one order of arguments alone."""
    weights, taken = [], set()
    for name in sorted({name for parts in by_hand.values() for part in parts for name, _ in part}):
        uses = {
            (schema, which, at)
            for schema, parts in by_hand.items()
            for which, part in enumerate(parts)
            for of, at in part
            if of == name
        }
        for number, predicate in enumerate(space.predicates):
            for order in ((0, 1), (1, 0)):
                turned = {
                    (schema, which, tuple(at[place] for place in order) if len(at) == 2 else at)
                    for schema, which, at in uses
                }
                if number not in taken and {(schema, at) for schema, _, at in turned} <= set(predicate.uses):
                    break
            else:
                continue
            break
        else:
            raise AssertionError(f"no predicate for {name}")
        taken.add(number)
        on = np.zeros((len(predicate.uses), 3), dtype=bool)
        for place, (schema, at) in enumerate(predicate.uses):
            pre, add, delete = ((schema, which, at) in turned for which in range(3))
            on[place] = pre, add or delete, delete
        weights.append((number, on))
    return weights


def columns(heads: Heads) -> set[bytes]:
    """Heads as a set, whatever their order. Those that nothing requires or changes are no atoms."""
    flat = np.concatenate((heads.pre, heads.add, heads.delete), axis=1)
    return {row.tobytes() for row in flat if row.any()}


# sorts


def test_sorts_are_what_the_arguments_show():
    parameters, objects = sorts_of(domain("ferry:3x2").model.names)
    assert parameters["sail", 0] == parameters["sail", 1] == parameters["board", 1] == parameters["debark", 1]
    assert parameters["board", 0] == parameters["debark", 0] != parameters["sail", 0]
    assert {name for name, sort in objects.items() if sort == parameters["sail", 0]} == {"l0", "l1", "l2"}
    assert {name for name, sort in objects.items() if sort == parameters["board", 0]} == {"c0", "c1"}


def test_objects_that_stand_in_one_place_are_of_one_sort_by_way_of_others():
    parameters, objects = sorts_of(["see a b", "see c d", "meet b", "meet c", "rest"])
    assert len(set(objects.values())) == 1
    assert set(parameters) == {("see", 0), ("see", 1), ("meet", 0)}
    assert len(set(sorts_of(["see a b", "see c d"])[1].values())) == 2
    assert sorts_of(["object 0 x"])[1].keys() == {"0", "x"}


def test_a_schema_has_one_number_of_arguments():
    with pytest.raises(ValueError, match="the schema 'sail' occurs with 2 and with 1 arguments"):
        sorts_of(["sail a b", "rest", "sail a"])


# an action that mentions an object twice

TRUCKS = {
    "drive": ({("at", (0, 1))}, {("at", (0, 2))}, {("at", (0, 1))}),
    "load": ({("at", (0, 1))}, {("full", (0,))}, set()),
}


def test_an_atom_that_a_ground_action_adds_and_deletes_is_added_as_in_pddl():
    actions = [f"drive t {a} {b}" for a in "ab" for b in "ab"] + ["load t a", "load t b"]
    model = ground(as_schemas(TRUCKS), actions)
    stays = model.actions[model.number["drive t a a"]]
    assert model.spelled(stays.pre) == model.spelled(stays.add) == ["at t a"]
    assert not stays.delete
    space = Space(actions, COPIES)
    assert columns(space.candidates(in_space(space, TRUCKS)).heads) == columns(Heads.of_model(model))


# the space of predicates


def test_predicates_have_the_slots_of_their_signature():
    space = Space(domain("ferry:2x1").model.names, {0: 1, 1: 1, 2: 1})
    by_uses = {frozenset(predicate.uses) for predicate in space.predicates}
    assert by_uses == {
        frozenset({("sail", ()), ("board", ()), ("debark", ())}),
        frozenset({("board", (0,)), ("debark", (0,))}),
        frozenset({("sail", (0,)), ("sail", (1,)), ("board", (1,)), ("debark", (1,))}),
        frozenset({("board", (0, 1)), ("debark", (0, 1))}),
        frozenset({("sail", (0, 1)), ("sail", (1, 0))}),
    }
    assert space.first.tolist() == np.cumsum([0, *(len(each.uses) for each in space.predicates)]).tolist()
    # heads: one; a car; two ports; a car at a port; from port to port
    assert np.bincount(space.owner).tolist() == [1, 1, 2, 2, 2]
    copied = Space(domain("ferry:2x1").model.names, {1: 3})
    assert len(copied.predicates) == 6
    assert copied.predicates[0] == copied.predicates[1] == copied.predicates[2] != copied.predicates[3]


@pytest.mark.parametrize("spec", ["ferry:3x2", "blocksworld:3", "gripper:2", "miconic:3x1"])
def test_each_ground_head_reads_the_weights_of_its_objects(spec):
    actions = domain(spec).model.names
    space = Space(actions, {0: 1, 1: 2, 2: 1})
    none = space.first[-1]
    assert space.places.shape == (len(space.owner), len(actions))
    seen: dict[int, set[tuple[str, ...]]] = {number: set() for number in range(len(space.predicates))}
    for row, number in zip(space.places, space.owner):
        uses, first = space.predicates[number].uses, space.first[number]
        read = {}
        for action, place in zip(actions, row):
            schema, objects = arguments(action)
            if place != none:
                of, at = uses[place - first]
                assert of == schema
                read[action] = tuple(objects[position] for position in at)
        (head_objects,) = set(read.values())  # all the same objects
        assert head_objects not in seen[number]
        seen[number].add(head_objects)
        for action in set(actions) - set(read):  # and where none is read, they do not stand at a use's positions
            schema, objects = arguments(action)
            assert all(tuple(objects[position] for position in at) != head_objects for of, at in uses if of == schema)


@pytest.mark.parametrize(("spec", "by_hand"), BY_HAND)
def test_the_true_lifted_model_grounds_to_the_true_model(spec, by_hand):
    world = domain(spec)
    space = Space(world.model.names, COPIES)
    weights = in_space(space, by_hand)
    candidates = space.candidates(weights)
    assert columns(candidates.heads) == columns(Heads.of_model(world.model))
    assert verify(candidates.heads.model(world.model.names), world)
    assert candidates.group.tolist() == sorted(candidates.group)
    assert set(candidates.group) == set(range(len(weights)))
    assert candidates.size.tolist() == [on[:, :2].sum() for _, on in weights]
    assert candidates.places.tolist() == [on.size for _, on in weights]
    schemas = _schemas(space, weights, world.model.names)
    assert not any(schema.add & schema.delete for schema in schemas.values())
    assert columns(Heads.of_model(ground(schemas, world.model.names))) == columns(Heads.of_model(world.model))


def test_no_predicates_are_no_candidates():
    space = Space(domain("ferry:2x1").model.names, COPIES)
    assert len(space.candidates([])) == len(space.candidates([]).heads) == 0
    assert isinstance(space.candidates([]), Candidates)


def test_predicates_without_ground_heads_are_left_out():
    """Both arguments of `turn` are of one sort, which has but one object."""
    space = Space(["turn a a", "rest"], {0: 1, 1: 1, 2: 1})
    assert set(space.owner) == set(range(len(space.predicates)))


# schemas


@pytest.mark.parametrize(("spec", "by_hand"), BY_HAND)
def test_schemas_ground_to_the_domain(spec, by_hand):
    world = domain(spec)
    assert verify(ground(as_schemas(by_hand), world.model.names), world)


def test_grounding_names_atoms_and_leaves_the_unknown_alone():
    schemas = {"go": Schema(frozenset({("at", (0,))}), frozenset({("at", (1,))}), frozenset({("at", (0,))}))}
    model = ground(schemas, ["go x y", "jump z"])
    assert model == ActionModel.of(["at x", "at y"], {"go x y": (["at x"], ["at y"], ["at x"]), "jump z": ([], [], [])})
    with pytest.raises(ValueError, match="'go x' has 1 argument, fewer than its schema uses"):
        ground(schemas, ["go x"])


# learning


def test_what_is_learned_from_one_passenger_holds_for_two():
    small, large = domain("miconic:2x1"), domain("miconic:3x2")
    seen = []
    learned = learn_lifted(
        traces(small, 100, 12, 1),
        Settings(restarts=2, steps=600, check_every=100, stay=1, learning_rate=0.05),
        progress=lambda *each: seen.append(each),
    )
    assert set(learned.schemas) == {"ride", "enter", "leave"}
    assert learned.report["training_accuracy"] == 1
    assert learned.report["predicates"] >= 3
    for world in (small, large):
        assert verify(learned.ground(world.model.names), world, drawn_only=True)
    assert [step for step, *_ in seen] == list(range(100, seen[-1][0] + 1, 100))
    best = max(each["accuracy"] for each in learned.report["restarts"])
    assert best == seen[-1][2].max() == 1


def test_lifted_learning_is_the_same_each_time():
    given = traces(domain("ferry:2x1"), 30, 8, 1)
    settings = Settings(restarts=2, steps=75, check_every=50, learning_rate=0.05)
    first, again = (learn_lifted(given, settings, copies={0: 1, 1: 1}) for _ in range(2))
    assert first == again
    assert [each["steps"] for each in first.report["restarts"]] == [75, 75]


def test_lifted_learning_keeps_to_its_time_and_stops_when_it_is_told_to():
    given = traces(domain("ferry:2x1"), 30, 8, 1)
    settings = Settings(restarts=2, steps=10**6, check_every=50, stall=None)
    late = learn_lifted(given, settings, copies={0: 1, 1: 1}, seconds=0.0)
    told = learn_lifted(given, settings, copies={0: 1, 1: 1}, stop=lambda: True)
    by_name = learn_schemas(given, settings, method="neural", stop=lambda: True)
    for found in (late, told, by_name):
        assert found.report["unfinished"] == ["training: 0 of at most 1000000 steps"]
        assert [each["steps"] for each in found.report["restarts"]] == [0, 0]
    assert learn_lifted(given, Settings(restarts=1, steps=2)).report["unfinished"] == []


def test_lifted_learning_needs_negatives_and_steady_schemas():
    with pytest.raises(ValueError, match="no negative traces"):
        learn_lifted(Traces(("go x",), ((0,),), (0,)), Settings())
    with pytest.raises(ValueError, match="'go' occurs with 1 and with 2 arguments"):
        learn_lifted(Traces(("go x", "go x y"), ((0, 1),), (1,)), Settings())
