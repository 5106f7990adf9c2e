"""Verdicts for all instances, for large ones, and over fewer objects, against the slow product searches."""

from itertools import permutations, product

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from product_search import product_search, real_search
from rewritten import two_of_three
from schemas_by_hand import BLOCKSWORLD, FERRY, as_schemas

from statewise.strips.model.heads import heads
from statewise.strips.model.model import ActionModel
from statewise.strips.model.pairs import closed, pairs_of_states, together
from statewise.strips.model.schemas import Schema, arguments, ground, sorts_of
from statewise.strips.trace_data.domains import Domain, domain
from statewise.strips.verification import verification
from statewise.strips.verification.pair_proof import PairBound, after, cut_off, shape_of
from statewise.strips.verification.search import Limits
from statewise.strips.verification.verification import verify

ARITIES = {"p": 0, "q": 1, "r": 1, "s": 2}
KINDS = ("pre", "add", "delete")


def slots(schemas):
    """Every place where a literal may stand: schema, predicate with argument places."""
    return [
        (name, (predicate, at))
        for name, arity in schemas.items()
        for predicate, places in ARITIES.items()
        for at in permutations(range(arity), places)
    ]


def with_slot(schemas, name, literal, wanted):
    """The schemas with a literal in just these parts of a schema."""
    parts = [
        getattr(schemas[name], kind) | {literal} if kind in wanted else getattr(schemas[name], kind) - {literal}
        for kind in KINDS
    ]
    return {**schemas, name: Schema(*parts)}


@st.composite
def lifted_pairs(draw):
    """Schemas, the same with one slot changed, and their arities."""
    arities = {name: draw(st.integers(0, 2)) for name in "abc"[: draw(st.integers(2, 3))]}
    parts = st.sampled_from([(), (), ("pre",), ("add",), ("delete",), ("pre", "delete"), ("pre", "add")])
    true = {name: Schema(frozenset(), frozenset(), frozenset()) for name in arities}
    for name, literal in slots(arities):
        true = with_slot(true, name, literal, draw(parts))
    name, literal = draw(st.sampled_from(slots(arities)))
    return true, with_slot(true, name, literal, draw(parts)), arities


def over(arities, objects):
    """The ground actions over so many objects of the one sort, without equal arguments."""
    names = "xyz"[:objects]
    return [" ".join((name, *chosen)) for name, arity in arities.items() for chosen in permutations(names, arity)]


@settings(max_examples=80, deadline=None)
@given(lifted_pairs())
def test_one_changed_slot_is_judged_as_by_the_product_search(pair):
    true, learned, arities = pair
    actions = over(arities, 2)  # every schema occurs: a proof for all instances is one for those that do
    one, other = ground(learned, actions), ground(true, actions)
    verdict = verify(one, other)
    found, _ = product_search(one, other)
    assert verdict.outcome == ("equivalent" if found is None else "different")
    assert (verdict.proven is None) == (found is not None)
    if found is not None:
        assert (len(verdict.counterexample), verdict.shortest) == (len(found), True)
    if verdict.proven == "all instances":
        for more in range(1, 4 if sum(arities.values()) < 4 else 3):
            where = over(arities, more)
            assert product_search(ground(learned, where), ground(true, where))[0] is None


@settings(max_examples=80, deadline=None)
@given(lifted_pairs(), st.data())
def test_with_real_states_all_instances_are_those_without_the_excluded_pairs(pair, data):
    true, learned, arities = pair
    actions = over(arities, 2)
    one, other = ground(learned, actions), ground(true, actions)
    start = data.draw(st.integers(0, (1 << len(other.atoms)) - 1))
    where = Domain("random", other, (start,))
    verdict = verify(one, where, drawn_only=True)
    assert verdict.outcome == ("equivalent" if real_search(one, where)[0] is None else "different")
    if verdict.proven != "all instances":
        return
    larger = over(arities, 3)
    one, other = ground(learned, larger), ground(true, larger)
    state = data.draw(st.integers(0, (1 << len(other.atoms)) - 1))
    mine = {excluded_text(pair) for pair in product(other.spelled(state), repeat=2)}
    assume(not mine & set(verdict.excluded))
    assume(len(other.atoms) < 10)
    assert real_search(one, Domain("larger", other, (state,)))[0] is None


def excluded_text(atoms) -> str:
    """As a verdict writes a pair of atoms."""
    names = {}
    said = []
    for atom in dict.fromkeys(atoms):
        predicate, objects = arguments(atom)
        said.append(" ".join((predicate, *("xyz"[names.setdefault(each, len(names))] for each in objects))))
    return " and ".join(said)


@settings(max_examples=80, deadline=None)
@given(lifted_pairs(), st.integers(0, 63))
def test_pairs_and_bounds_are_sound(pair, start):
    true, learned, arities = pair
    actions = over(arities, 2)
    one, other = ground(learned, actions), ground(true, actions)
    where = Domain("random", other, (start & (1 << len(other.atoms)) - 1,))
    limits = Limits()
    pairs = closed(pairs_of_states(where.start, len(other.atoms)), other.actions, limits.look_at_the_clock)
    for state in where.states:
        for at in range(len(other.atoms)):
            assert not state >> at & 1 or not state & ~pairs[at]
        for number in other.applicable(state):
            then = after(pairs, other.actions[number])
            assert together(then, other.result(state, number)) is not None
    bounds = [
        PairBound(accepting, (other, pairs), limits, last_is_done=accepting is other).shortest(head)
        for accepting, rejecting in ((other, one), (one, other))
        for head in heads(rejecting)
    ]
    found, _ = real_search(one, where)
    if found is not None:
        assert min(bound for bound in bounds if bound is not None) <= len(found)


def test_the_shapes_of_atoms():
    sorts = {"x": 0, "y": 0, "z": 1}
    assert shape_of(["on x y", "on y x"], sorts) == shape_of(["on y x", "on x y"], sorts)
    assert shape_of(["on x y", "on y x"], sorts) != shape_of(["on x y", "on x y"], sorts)
    assert shape_of(["at x"], sorts) != shape_of(["at z"], sorts)


def test_the_cut_off_has_the_objects_of_one_action_and_two_atoms():
    actions = domain("ferry:2x1").model
    cut = cut_off(actions, actions)
    _, sorts = sorts_of(actions.names)
    counts = [list(cut.sorts.values()).count(sort) for sort in (sorts["l0"], sorts["c0"])]
    assert counts == [4, 3]  # sail names two ports, at one of each
    assert len(cut.reference.actions) == 4 * 3 + 2 * 3 * 4
    assert verify(cut.reference, ground(as_schemas(FERRY), cut.reference.names)).proven == "all instances"


@pytest.mark.parametrize(
    ("atoms", "effects"),
    [
        ("p", {"a": ([], [], ["p"]), "b": (["p"], [], [])}),  # no objects
        ("p", {"a x": ([], [], ["p"]), "a y": (["p"], [], [])}),  # a schema that is two
        ("p x", {"a y": ([], [], ["p x"]), "b x": (["p x"], [], [])}),  # an atom of another object
        ("p x", {"a x": ([], [], ["p x"]), "a x y": (["p x"], [], [])}),  # two arities
        ("p  x", {"a x": ([], [], ["p  x"]), "b x": (["p  x"], [], [])}),  # names that are no words
    ],
)
def test_models_that_are_not_lifted_have_no_cut_off(atoms, effects):
    model = ActionModel.of([atoms], effects)
    assert cut_off(model, model) is None
    assert verify(model, model).proven == "this instance"


def test_two_ports_are_not_all_instances():
    """`the other port` explains a ferry between two ports, and is wrong for three."""
    (at,) = [("not-here", (1,))]
    true = {"sail": FERRY["sail"]}
    learned = {"sail": Schema(frozenset({at}), frozenset({("not-here", (0,))}), frozenset({at}))}
    two, three = (["sail " + " ".join(pair) for pair in permutations(ports, 2)] for ports in ("xy", "xyz"))
    start = (1, 2)
    small = ground(as_schemas(true), two)
    verdict = verify(ground(learned, two), Domain("two", small, start), drawn_only=True)
    assert (verdict.outcome, verdict.proven) == ("equivalent", "this instance")
    large = ground(as_schemas(true), three)
    verdict = verify(ground(learned, three), Domain("three", large, (1, 2, 4)), drawn_only=True)
    assert verdict.outcome == "different"
    assert real_search(ground(learned, three), Domain("three", large, (1, 2, 4)))[0] is not None


# Two hundred actions


@pytest.mark.parametrize(("spec", "by_hand"), [("blocksworld:10", BLOCKSWORLD), ("ferry:8x8", FERRY)])
def test_large_instances_are_proven_at_the_level_of_schemas(spec, by_hand):
    where = domain(spec)
    for kind in ({}, {"real_states": True}, {"drawn_only": True}):
        verdict = verify(ground(as_schemas(by_hand), where.model.names), where, **kind)
        assert (verdict.outcome, verdict.proven, verdict.states) == ("equivalent", "all instances", 0)


def complements(by_hand):
    """The schemas with a second predicate `no-P` for each P that is false just where P is true, required wherever it
    must be: equivalent on real states alone."""
    parts = {name: [set(part) for part in each] for name, each in by_hand.items()}
    for pre, add, delete in parts.values():
        gained, lost = {(f"no-{name}", at) for name, at in delete}, {(f"no-{name}", at) for name, at in add}
        pre |= lost
        add |= gained
        delete |= lost
    return as_schemas(parts)


@pytest.mark.parametrize("spec", ["blocksworld:3", "blocksworld:10"])
def test_complements_are_proven_on_real_states_by_the_pairs_that_these_exclude(spec):
    where = domain(spec)
    learned = ground(complements(BLOCKSWORLD), where.model.names)
    verdict = verify(learned, where, drawn_only=True)
    assert (verdict.outcome, verdict.proven, verdict.states) == ("equivalent", "all instances", 0)
    assert "handempty and holding x" in verdict.excluded
    assert "on x y and on z y" in verdict.excluded
    assert verify(learned, where).outcome == "different"


CHANGES = [
    ("stack", ("clear", (1,)), ()),
    ("pickup", ("ontable", (0,)), ("delete",)),
    ("unstack", ("clear", (1,)), ()),
    ("putdown", ("handempty", ()), ()),
    ("stack", ("on", (1, 0)), ("pre",)),
    ("pickup", ("holding", (0,)), ("pre", "add")),
    ("unstack", ("ontable", (0,)), ("delete",)),
]


@pytest.mark.parametrize(("name", "literal", "parts"), CHANGES)
def test_a_wrong_slot_shows_in_the_large_instance_as_in_the_small_one(name, literal, parts):
    wrong = with_slot(as_schemas(BLOCKSWORLD), name, literal, parts)
    small, large = domain("blocksworld:3"), domain("blocksworld:10")
    found, _ = real_search(ground(wrong, small.model.names), small)
    learned = ground(wrong, large.model.names)
    verdict = verify(learned, large, drawn_only=True)
    assert verdict.outcome == ("equivalent" if found is None else "different")
    if found is None:
        return
    assert len(verdict.counterexample) == len(found)
    state = sum(1 << large.model.atoms.index(atom) for atom in verdict.start)
    *done, last = [large.model.number[action] for action in verdict.counterexample]
    for number in done:
        assert number in large.model.applicable(state)
        state = large.model.result(state, number)
    ends = [model.first_rejected([*done, last]) for model in (learned, large.model)]
    assert sorted(end is None for end in ends) == [False, True]
    assert len(done) in ends
    assert (ends[0] is None) == (verdict.accepted_by == "learned")
    assert verdict.accepted_by == "learned" or last in large.model.applicable(state)


# What is not proven


def test_what_pairs_do_not_show_is_searched_and_the_verdict_says_how_far():
    learned, reference = two_of_three()
    verdict = verify(learned, reference)
    assert (verdict.outcome, verdict.proven) == ("equivalent", "this instance")
    assert verdict.states > 100
    assert product_search(learned, reference)[0] is None
    reached = []
    for states in (1, 20, verdict.states - 1):
        cut = verify(learned, reference, max_states=states)
        assert (cut.outcome, cut.proven, cut.reason) == ("unknown", None, f"undecided within {states:,} states")
        reached.append(cut.depth)
    assert reached == sorted(reached)
    assert 1 <= reached[0] < reached[-1]


def test_traces_over_fewer_objects_are_searched_where_all_are_too_many(monkeypatch):
    monkeypatch.setattr(verification, "cut_off", lambda *models: None)
    monkeypatch.setattr(verification, "FEW_STATES", 5)
    where = domain("blocksworld:5")
    wrong = ground(with_slot(as_schemas(BLOCKSWORLD), "stack", ("clear", (1,)), ()), where.model.names)
    verdict = verify(wrong, where, drawn_only=True, max_states=600)
    assert verdict.outcome == "different"
    shortest, _ = real_search(wrong, domain("blocksworld:5"))
    assert len(verdict.counterexample) >= len(shortest)
    assert len({name for action in verdict.counterexample for name in arguments(action)[1]}) < 5
    monkeypatch.setattr(verification._Verification, "_prove_here", lambda *given: None)
    right = ground(complements(BLOCKSWORLD), where.model.names)
    unknown = verify(right, where, drawn_only=True, max_states=400)
    assert (unknown.outcome, unknown.proven) == ("unknown", None)
    assert unknown.objects == ("b1", "b2")


def test_objects_are_taken_where_something_can_happen_first():
    where = domain("ferry:4x2")
    pair = verification._Pair(where.model, where.model, where)
    by_sort = verification._objects_by_sort(pair)
    assert [names[0] for names in by_sort] == ["l0", "c0"]
    towers = domain("hanoi:4")
    (names,) = verification._objects_by_sort(verification._Pair(towers.model, towers.model, towers))
    assert set(names[:4]) == {"d1", "d2", "peg2", "peg3"}
