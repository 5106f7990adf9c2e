"""What the comparison with other learners rests on: grounding of learned schemas, and the enumeration of atoms."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from peers.enumeration import enumerate_features

from statewise.strips.model.model import ActionModel
from statewise.strips.model.schemas import Schema, ground
from statewise.strips.model.traces import Traces
from statewise.strips.trace_data.domains import domain
from statewise.strips.trace_data.random_traces import traces


def schema(pre: dict, add: dict, delete: dict) -> Schema:
    return Schema(*(frozenset(part.items()) for part in (pre, add, delete)))


FERRY = {
    "sail": schema({"at-ferry": (0,)}, {"at-ferry": (1,)}, {"at-ferry": (0,)}),
    "board": schema(
        {"at": (0, 1), "empty-ferry": (), "at-ferry": (1,)}, {"on": (0,)}, {"at": (0, 1), "empty-ferry": ()}
    ),
    "debark": schema({"on": (0,), "at-ferry": (1,)}, {"at": (0, 1), "empty-ferry": ()}, {"on": (0,)}),
}


def by_names(model: ActionModel) -> dict[str, tuple[set[str], set[str], set[str]]]:
    return {
        action.name: (set(model.spelled(action.pre)), set(model.spelled(action.add)), set(model.spelled(action.delete)))
        for action in model.actions
    }


def difference(one: ActionModel, other: ActionModel) -> list[str] | None:
    """A shortest trace on which two models differ under Definition 1, by search over pairs of known-false sets."""
    known: dict[tuple[int, int], tuple[int, ...]] = {(0, 0): ()}
    queue = [(0, 0)]
    for pair in queue:  # grows while it is gone through
        trace = known[pair]
        accepted = [set(model.possible(false)) for model, false in zip((one, other), pair)]
        for number in sorted(accepted[0] ^ accepted[1]):
            return [one.names[at] for at in (*trace, number)]
        for number in sorted(accepted[0]):
            after = (one.after([number], pair[0]), other.after([number], pair[1]))
            if after not in known:
                known[after] = (*trace, number)
                queue.append(after)
    return None


def test_schemas_ground_to_the_domain():
    for spec in ("ferry:2x1", "ferry:3x2"):
        reference = domain(spec).model
        assert by_names(ground(FERRY, reference.names)) == by_names(reference)


def test_literals_differ_by_the_positions_of_their_arguments():
    swap = Schema(frozenset({("at", (0,)), ("at", (1,))}), frozenset({("at", (0, 1))}), frozenset())
    model = ground({"swap": swap}, ["swap x y"])
    assert by_names(model)["swap x y"] == ({"at x", "at y"}, {"at x y"}, set())


def test_an_action_of_an_unknown_schema_is_never_rejected():
    model = ground(FERRY, ["sail l0 l1", "paint c0"])
    assert by_names(model)["paint c0"] == (set(), set(), set())


def test_too_few_arguments_are_an_error():
    with pytest.raises(ValueError, match=r"'sail l0' has 1 argument"):
        ground(FERRY, ["sail l0"])


def test_enumeration_recovers_simple_exactly():
    simple = domain("simple")
    learned = enumerate_features(traces(simple, 200, 10, seed=1))
    assert difference(learned, simple.model) is None
    assert len(learned.atoms) == 3


@pytest.mark.parametrize("alternating", [False, True])
@pytest.mark.parametrize("spec", ["ferry:2x1", "blocksworld:2"])
def test_enumeration_judges_unseen_traces_right(spec, alternating):
    of = domain(spec)
    learned = enumerate_features(traces(of, 500, 20, seed=1), alternating=alternating)
    test = traces(of, 600, 50, seed=2, negatives=0.5, split="test")
    for row, label in zip(test.rows, test.labels):
        assert learned.first_rejected(row) == (len(row) - 1 if label else None)


def test_atoms_that_take_turns_miss_the_one_that_simple_adds_twice():
    simple = domain("simple")
    learned = enumerate_features(traces(simple, 200, 10, seed=1), alternating=True)
    assert difference(learned, simple.model) == ["a", "b"]


def test_the_last_action_of_a_negative_trace_teaches_nothing():
    data = traces(domain("simple"), 100, 10, seed=3)
    shorter = Traces(data.actions, tuple(r[: len(r) - at] for r, at in zip(data.rows, data.labels)), (0,) * len(data))
    assert enumerate_features(data) == enumerate_features(shorter)


def test_too_many_actions_are_an_error_that_counts_the_candidates():
    with pytest.raises(ValueError, match=r"18 actions make 3\^18 = 387,420,489"):
        enumerate_features(traces(domain("blocksworld:3"), 10, 10, seed=0))


def one_by_one(rows: list[tuple[int, ...]], count: int, alternating: bool) -> ActionModel:
    """The slow twin: candidate after candidate, none left out."""
    effects: dict[str, tuple[list[str], list[str], list[str]]] = {str(at): ([], [], []) for at in range(count)}
    atoms = []
    for candidate in product(("none", "add", "delete"), repeat=count):
        required, consistent = set(range(count)), True
        for row in rows:
            last = "none"
            for action in row:
                if last == "delete":
                    required.discard(action)
                    consistent &= candidate[action] != "delete"
                if alternating and last == "add":
                    consistent &= candidate[action] != "add"
                if candidate[action] != "none":
                    last = candidate[action]
        if consistent:
            name = " ".join(candidate)
            atoms.append(name)
            for action, effect in enumerate(candidate):
                pre, add, delete = effects[str(action)]
                if action in required:
                    pre.append(name)
                if effect != "none":
                    (add if effect == "add" else delete).append(name)
    return ActionModel.of(atoms, effects)


@given(
    rows=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5).map(tuple), min_size=1, max_size=6),
    alternating=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_enumeration_keeps_the_language_of_all_candidates(rows, alternating):
    data = Traces(("0", "1", "2"), tuple(rows), (0,) * len(rows))
    learned = enumerate_features(data, alternating=alternating)
    assert difference(learned, one_by_one(rows, 3, alternating)) is None
    assert all(learned.first_rejected(row) is None for row in rows)
