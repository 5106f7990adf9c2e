"""Verdicts from partly observed states against all models and all hidden values, enumerated one by one."""

from itertools import chain, combinations, product

from hypothesis import given, settings
from hypothesis import strategies as st

from statewise.strips.model.schemas import Schema, applied
from statewise.strips.model.states import Observed, State
from statewise.strips.model.traces import Traces
from statewise.strips.observed.learning import bounds_of, learn_observed

OBJECTS = ("a", "b")
ATOMS = [" ".join(("p", each)) for each in OBJECTS]
LITERALS = [("p", (0,)), ("p", (1,))]
SETS = [frozenset(each) for size in range(3) for each in combinations(LITERALS, size)]
SCHEMAS = [Schema(pre, add, delete) for pre, add, delete in product(SETS, repeat=3) if not add & delete]
STATES = [frozenset(each) for size in range(3) for each in combinations(ATOMS, size)]


def after(schema, objects, true):
    pre, add, delete = (frozenset(applied(each, objects) for each in part) for part in schema.parts)
    return None if pre - true else true - delete | add


def run(schema, row, state):
    """The states of a walk from `state`, or None if an action is not applicable."""
    states = [state]
    for objects in row:
        state = after(schema, objects, state)
        if state is None:
            return None
        states.append(state)
    return states


@st.composite
def walks(draw):
    """Walks of a random schema `act x1 x2`, with the atoms that are observed at each state."""
    schema, walks = draw(st.sampled_from(SCHEMAS)), []
    for _ in range(draw(st.integers(1, 3))):
        row = draw(st.lists(st.tuples(st.sampled_from(OBJECTS), st.sampled_from(OBJECTS)), min_size=1, max_size=4))
        states = run(schema, row, draw(st.sampled_from(STATES)))
        if states is not None:
            shown = [draw(st.frozensets(st.sampled_from(ATOMS))) for _ in states]
            walks.append((row, states, shown))
    return schema, walks


@settings(max_examples=80, deadline=None)
@given(walks())
def test_no_verdict_is_wrong_and_all_are_decided_that_can_be(case):
    schema, walks = case
    if not any(any(shown) for _, _, shown in walks):
        return
    names = sorted({" ".join(("act", *objects)) for row, _, _ in walks for objects in row})
    rows = tuple(tuple(names.index(" ".join(("act", *objects))) for objects in row) for row, _, _ in walks)
    observed = Observed(
        Traces(tuple(names), rows, (0,) * len(rows)),
        tuple(
            tuple(State(mine & true, mine - true) for true, mine in zip(states, shown)) for _, states, shown in walks
        ),
    )
    models = [
        each
        for each in SCHEMAS
        if all(
            any(
                (found := run(each, row, start)) is not None
                and all(mine & one == mine & other for mine, one, other in zip(shown, found, states))
                for start in STATES
            )
            for row, states, shown in walks
        )
    ]
    assert schema in models
    bounds = bounds_of(observed)[0]["act"]
    for part, found in (("pre", bounds.pre), ("add", bounds.add), ("delete", bounds.delete)):
        for literal in LITERALS:
            having = [literal in getattr(each, part) for each in models]
            expected = "certain" if all(having) else "possible" if any(having) else "excluded"
            assert found.verdict(literal) == expected, (part, literal)
    assert Schema(*bounds.chosen.parts) in models


def test_states_that_list_only_some_atoms_are_read_as_such():
    """Without the predicate that contradicts itself as a complete one, the others stay complete."""
    states = [({"p a"}, {"q"}), ({"q", "p a"}, {"q"}), (set(), {"q"})]  # p a is deleted once, and once it is missing
    observed = Observed(
        Traces(("go a",), ((0,), (0,), (0,)), (0, 0, 0)),
        tuple(tuple(State(frozenset(each)) for each in pair) for pair in states),
        frozenset({"p", "q"}),
    )
    learned = learn_observed(observed, hidden=False)
    assert learned.schemas["go"].parts == (frozenset(), {("q", ())}, {("p", (0,))})
    assert learned.report["states"] == {"observed": 6, "complete": ["p", "q"], "partial": [], "hidden": 0}
    noisy = Observed(
        Traces(("go a", "stop a"), ((0,), (1,), (1,)), (0, 0, 0)),
        (
            (State(frozenset({"p a"})), State(frozenset({"p a", "q"}))),
            (State(frozenset({"q"})), State(frozenset({"p a"}))),
            (State(frozenset({"q"})), State(frozenset())),
        ),
        frozenset({"p", "q"}),
    )
    learned = learn_observed(noisy, hidden=True, seconds=5.0)
    assert learned.report["states"]["partial"] == ["p"]
    assert ("q", ()) in chain(*learned.schemas["stop"].parts)
