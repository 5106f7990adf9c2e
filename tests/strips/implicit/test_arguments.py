"""Implicit arguments against the full states of known domains, and against random small domains."""

from itertools import product

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from statewise.strips.implicit.alignment import compared
from statewise.strips.implicit.arguments import with_arguments
from statewise.strips.implicit.learning import learn_implicit
from statewise.strips.model.schemas import Schema, applied, arguments, ground
from statewise.strips.model.states import Observed, State
from statewise.strips.model.traces import Traces
from statewise.strips.pddl.pddl import read_domain
from statewise.strips.trace_data.domains import FAMILIES, domain
from statewise.strips.trace_data.implicit_logs import implicit_log, named_arguments, with_states, without_implicit
from statewise.strips.trace_data.random_traces import traces
from statewise.strips.verification.verification import verify

NAMED = [name for name, family in FAMILIES.items() if family.named]


def log(spec, num=30, predicates=None, seed=1, length=30):
    world = domain(spec)
    drawn = traces(world, num, length, seed, negatives=0, start="both")
    return implicit_log(with_states(world, drawn, predicates), named_arguments(world))


@pytest.mark.parametrize("family", NAMED)
def test_a_log_without_implicit_arguments_still_says_which_action_it_was(family):
    world = domain(FAMILIES[family].example)
    named, schemas = named_arguments(world), {arguments(name)[0] for name in world.model.names}
    assert set(named) <= schemas
    for state in world.some_states(150):
        labels = [without_implicit(world.model.actions[at].name, named) for at in world.model.applicable(state)]
        assert len(set(labels)) == len(labels)


@pytest.mark.parametrize("family", NAMED)
def test_full_states_give_the_domain(family):
    world = domain(FAMILIES[family].example)
    model = learn_implicit(log(FAMILIES[family].example), hidden=False)
    learned = compared(model.schemas, model.report["implicit"], world)
    assert verify(learned, world, drawn_only=True, seconds=30).outcome == "equivalent"


@pytest.mark.parametrize(
    ("spec", "predicates", "absent"),
    [
        ("npuzzle:3x3", ["at", "up-of", "left-of"], {"no-at": ["at", 1]}),
        ("gripper:2", ["at", "carry", "at-robby"], {"no-carry": ["carry", 1]}),
        pytest.param(
            "sokoban:3x4",
            ["at", "robot", "up-of", "down-of", "left-of", "right-of"],
            {"no-at": ["at", 1]},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_what_no_state_shows_is_where_nothing_is(spec, predicates, absent):
    model = learn_implicit(log(spec, predicates=predicates), hidden=False)
    assert model.report["implicit"]["nothing_there"] == absent
    learned = compared(model.schemas, model.report["implicit"], domain(spec))
    assert verify(learned, domain(spec), drawn_only=True, seconds=30).outcome == "equivalent"


def test_a_larger_instance_is_proven_from_a_smaller_one():
    model = learn_implicit(log("npuzzle:2x3"), hidden=False)
    learned = compared(model.schemas, model.report["implicit"], domain("npuzzle:3x3"))
    verdict = verify(learned, domain("npuzzle:3x3"), seconds=30)
    assert (verdict.outcome, verdict.proven) == ("equivalent", "all instances")


def test_a_domain_in_pddl_determines_arguments_by_atoms_that_never_change(tmp_path):
    """Grounding leaves these atoms out of the model."""
    known = domain("npuzzle:2x3")
    objects = {name for atom in known.model.atoms for name in arguments(atom)[1]}
    schemas = "".join(
        f"(:action {verb} :parameters (?t ?x ?y) :precondition (and (at ?t ?x) (empty ?y) ({verb}-of ?y ?x))"
        " :effect (and (at ?t ?y) (empty ?x) (not (at ?t ?x)) (not (empty ?y))))"
        for verb in ("up", "down", "left", "right")
    )
    beside = "(up-of ?x ?y) (down-of ?x ?y) (left-of ?x ?y) (right-of ?x ?y)"
    (tmp_path / "d.pddl").write_text(f"(define (domain tile) (:predicates (at ?t ?x) (empty ?x) {beside}) {schemas})")
    initial = " ".join(f"({atom})" for atom in known.model.spelled(known.start[0]))
    (tmp_path / "p.pddl").write_text(
        f"(define (problem p) (:domain tile) (:objects {' '.join(sorted(objects))}) (:init {initial}) (:goal (and)))"
    )
    world = read_domain(tmp_path / "d.pddl", tmp_path / "p.pddl")
    assert not any("-of " in atom for atom in world.model.atoms)
    assert {atom for atom in known.model.atoms if "-of " in atom} == {*world.always}
    for predicates in (None, ["at", "up-of", "left-of"]):
        model = learn_implicit(log("npuzzle:2x3", num=15, predicates=predicates), hidden=False)
        learned = compared(model.schemas, model.report["implicit"], world)
        assert verify(learned, world, drawn_only=True, seconds=30).outcome == "equivalent"


def test_unknown_states_cut_traces():
    whole = log("ferry:3x2", num=20)
    states = tuple(tuple(None if at % 4 == 2 else each for at, each in enumerate(of)) for of in whole.states)
    explicit = with_arguments(Observed(whole.traces, states, whole.complete))
    rest = with_arguments(whole)
    assert explicit.left_out == rest.left_out
    steps = sum(map(len, rest.observed.traces.rows))
    assert sum(map(len, explicit.observed.traces.rows)) == steps - explicit.unresolved
    assert explicit.unresolved == sum(len(range(2, len(row), 4)) for row in whole.traces.rows)
    stretches = {tuple(explicit.observed.traces.actions[at] for at in row) for row in explicit.observed.traces.rows}
    walks = [tuple(rest.observed.traces.actions[at] for at in row) for row in rest.observed.traces.rows]
    for stretch in stretches:
        assert any(walk[at : at + len(stretch)] == stretch for walk in walks for at in range(len(walk)))


OBJECTS = ("a", "b", "c")
PREDICATES = {"p": 1, "q": 0, "r": 2}
LITERALS = [(name, places) for name, arity in PREDICATES.items() for places in product(range(2), repeat=arity)]
FIXED = ("r", (0, 1))
"""The atom that determines the second argument."""


def after(schema, objects, true):
    pre, add, delete = (frozenset(applied(each, objects) for each in part) for part in schema.parts)
    return None if pre - true else true - delete | add


@st.composite
def logs(draw):
    """A schema whose second argument is the only object of which r x1 x2 is true, and walks with all arguments."""
    some = st.frozensets(st.sampled_from(LITERALS), max_size=2)
    schema = Schema(draw(some) | {FIXED}, draw(some), draw(some))
    atoms = [
        applied((name, tuple(range(n))), objects)
        for name, n in PREDICATES.items()
        for objects in product(OBJECTS, repeat=n)
    ]
    walks = []
    for _ in range(draw(st.integers(1, 4))):
        state = draw(st.frozensets(st.sampled_from(atoms), max_size=8))
        row, states = [], [state]
        for one in draw(st.lists(st.sampled_from(OBJECTS), max_size=4)):
            found = [other for other in OBJECTS if f"r {one} {other}" in state]
            if len(found) == 1 and (new := after(schema, (one, found[0]), state)) is not None:
                row.append((one, found[0]))
                states.append(state := new)
        if row:
            walks.append((row, states))
    return schema, walks


NAMED_BY_CHANCE = [
    (
        [("a", "a"), ("c", "a")],
        [
            frozenset({"p b", "r a a", "r c a"}),
            frozenset({"p a", "p b", "r a a", "r c a"}),
            frozenset({"p a", "p b", "r a a", "r c a"}),
        ],
    )
]
"""The only change is of an object that the action names, too; that of the other action is not changed."""


@settings(max_examples=80, deadline=None)
@example((None, NAMED_BY_CHANCE))
@given(logs())
def test_learned_schemas_repeat_the_walks(case):
    _, walks = case
    if not walks:
        return
    names = tuple(sorted({f"act {one}" for row, _ in walks for one, _ in row}))
    rows = tuple(tuple(names.index(f"act {one}") for one, _ in row) for row, _ in walks)
    states = tuple(tuple(State(each) for each in of) for _, of in walks)
    observed = Observed(Traces(names, rows, (0,) * len(rows)), states, frozenset(PREDICATES))
    explicit = with_arguments(observed)
    model = learn_implicit(observed, hidden=False)
    replayed = ground(model.schemas, explicit.observed.traces.actions)
    assert explicit.unresolved == 0
    assert len(explicit.observed.traces) == len(walks)
    bit = {atom: 1 << at for at, atom in enumerate(replayed.atoms)}
    for place, (row, of) in enumerate(walks):
        for at, number in enumerate(explicit.observed.traces.rows[place]):
            action = replayed.actions[number]
            true = sum(bit[atom] for atom in of[at] if atom in bit)
            absent = {atom for atom in replayed.atoms if arguments(atom)[0] not in PREDICATES}
            assert not [atom for atom in replayed.spelled(action.pre & ~true) if atom not in absent]
            new = replayed.spelled((true & ~action.delete) | action.add)
            kept = {atom for atom in of[at] if atom not in bit}
            assert {atom for atom in new if atom not in absent} | kept == of[at + 1]
        named = [arguments(explicit.observed.traces.actions[at])[1][0] for at in explicit.observed.traces.rows[place]]
        assert named == [one for one, _ in row]


def test_what_cannot_be_read_is_said():
    with pytest.raises(ValueError, match="neither the action nor the state before it determines"):
        with_arguments(log("grid:3x3", predicates=["at"]))
    some = log("ferry:3x2", num=5)
    with pytest.raises(ValueError, match="list all true atoms"):
        with_arguments(some.with_complete(frozenset()))
    names = (*some.traces.actions, "board c0 l0")
    more = Traces(names, (*some.traces.rows, (len(names) - 1,)), (*some.traces.labels, 0))
    with pytest.raises(ValueError, match="leave out the same arguments"):
        with_arguments(Observed(more, (*some.states, (None, None)), some.complete))
    empty = Observed(some.traces, tuple((None,) * len(of) for of in some.states), some.complete)
    with pytest.raises(ValueError, match="no state determines"):
        with_arguments(empty)
