"""Bounds from full states against all models of small domains, enumerated one by one."""

from itertools import chain, combinations, product

from hypothesis import given, settings
from hypothesis import strategies as st

from statewise.strips.model.schemas import Schema, applied
from statewise.strips.model.states import Observed, State
from statewise.strips.model.traces import Traces
from statewise.strips.observed.learning import bounds_of

OBJECTS = ("a", "b", "c")
PREDICATES = {"p": 1, "q": 0, "r": 2}
LITERALS = {name: [(name, places) for places in product(range(2), repeat=arity)] for name, arity in PREDICATES.items()}
EVERY = list(chain.from_iterable(LITERALS.values()))


def subsets(of):
    return [frozenset(each) for size in range(len(of) + 1) for each in combinations(of, size)]


def after(schema: Schema, objects, true: frozenset[str]) -> frozenset[str] | None:
    """The state after an action as PDDL says, or None if it is not applicable."""
    pre, add, delete = (frozenset(applied(each, objects) for each in part) for part in schema.parts)
    return None if pre - true else true - delete | add


@st.composite
def walks(draw):
    """A random schema `act x1 x2`, and walks with their states."""
    literals = st.frozensets(st.sampled_from(EVERY), max_size=3)
    schema = Schema(draw(literals), draw(literals), draw(literals))
    atoms = [
        applied((name, tuple(range(n))), objects)
        for name, n in PREDICATES.items()
        for objects in product(OBJECTS, repeat=n)
    ]
    rows, states = [], []
    for _ in range(draw(st.integers(1, 3))):
        state = draw(st.frozensets(st.sampled_from(atoms)))
        row, seen = [], [state]
        for objects in draw(st.lists(st.tuples(*[st.sampled_from(OBJECTS)] * 2), min_size=1, max_size=4)):
            new = after(schema, objects, state)
            if new is not None:
                row.append(objects)
                seen.append(state := new)
        if row:
            rows.append(row)
            states.append(seen)
    return schema, rows, states


def observed_of(rows, states) -> Observed:
    names = sorted({" ".join(("act", *objects)) for row in rows for objects in row})
    numbered = tuple(tuple(names.index(" ".join(("act", *objects))) for objects in row) for row in rows)
    traces = Traces(tuple(names), numbered, (0,) * len(rows))
    return Observed(traces, tuple(tuple(State(each) for each in of) for of in states), frozenset(PREDICATES))


def consistent(name, rows, states):
    """All schemas over one predicate that explain the states, without literals that are both added and deleted."""
    for pre, add, delete in product(subsets(LITERALS[name]), repeat=3):
        if add & delete:
            continue
        schema = Schema(pre, add, delete)
        mine = [[frozenset(atom for atom in state if atom.split()[0] == name) for state in of] for of in states]
        if all(
            after(schema, objects, of[at]) == of[at + 1]
            for row, of in zip(rows, mine)
            for at, objects in enumerate(row)
        ):
            yield schema


@settings(max_examples=60, deadline=None)
@given(walks())
def test_bounds_are_those_of_all_models(case):
    schema, rows, states = case
    if not rows:
        return
    bounds = bounds_of(observed_of(rows, states))[0]["act"]
    shown = {
        literal
        for literal in EVERY
        for row, of in zip(rows, states)
        for at, objects in enumerate(row)
        if applied(literal, objects) in of[at] | of[at + 1]
    }
    for name in PREDICATES:
        models = list(consistent(name, rows, states))
        for part, found in (("pre", bounds.pre), ("add", bounds.add), ("delete", bounds.delete)):
            for literal in LITERALS[name]:
                if literal not in shown:
                    assert found.verdict(literal) == "excluded"  # or to be deleted, about which nothing is known
                    continue
                having = [literal in getattr(each, part) for each in models]
                expected = "certain" if all(having) else "possible" if any(having) else "excluded"
                assert found.verdict(literal) == expected, (part, literal)
    chosen = bounds.chosen
    for row, of in zip(rows, states):
        for at, objects in enumerate(row):
            assert after(chosen, objects, of[at]) == of[at + 1]
    assert schema.pre <= chosen.pre
