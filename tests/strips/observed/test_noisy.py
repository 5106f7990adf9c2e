"""Votes over noisy states against worlds whose schemas are known, simulated here."""

from itertools import product
from math import comb

import numpy as np
import pytest

from statewise.strips import Names, Settings, learn_observed, learn_schemas
from statewise.strips.exact.frame import Clock
from statewise.strips.model.states import Observed, State
from statewise.strips.model.traces import Traces
from statewise.strips.observed import noisy

ARITY = {"p": 1, "q": 0, "r": 2}
OBJECTS = ("a", "b", "c")
LITERALS = [(name, places) for name, arity in ARITY.items() for places in product(range(2), repeat=arity)]
ATOMS = [" ".join((name, *objects)) for name, arity in ARITY.items() for objects in product(OBJECTS, repeat=arity)]


def atom(literal, objects):
    return " ".join((literal[0], *(objects[at] for at in literal[1])))


def world(seed, wrong, misread, walks=12, length=30):
    """Two random schemas `go x1 x2` and `do x1 x2`, and walks with damaged states and actions."""
    rng = np.random.default_rng(seed)
    truth = {}
    for schema in ("go", "do"):
        chosen = [LITERALS[at] for at in rng.permutation(len(LITERALS))[:4]]
        truth[schema] = (set(chosen[:1]), set(chosen[1:3]), set(chosen[3:]) | set(chosen[:1]))
    names = [f"{schema} {x} {y}" for schema in truth for x, y in product(OBJECTS, repeat=2)]
    rows, states = [], []
    for _ in range(walks):
        state, row, seen = frozenset(each for each in ATOMS if rng.random() < 0.6), [], []
        for _ in range(length):
            possible = [name for name in names if not required(truth, name) - state]
            if not possible:
                break
            name = possible[rng.integers(len(possible))]
            seen.append(state)
            row.append(names.index(name))
            schema, *objects = name.split()
            add, delete = ({atom(each, objects) for each in part} for part in truth[schema][1:])
            state = state - delete | add
        if row:
            rows.append(tuple(int(rng.integers(len(names))) if rng.random() < misread else each for each in row))
            every = (frozenset(each for each in ATOMS if rng.random() < wrong) ^ each for each in [*seen, state])
            states.append(tuple(State(each) for each in every))
    return truth, Observed(Traces(tuple(names), tuple(rows), (0,) * len(rows)), tuple(states), frozenset(ARITY))


def required(truth, name):
    schema, *objects = name.split()
    return {atom(each, objects) for each in truth[schema][0]}


@pytest.mark.parametrize(("wrong", "misread", "least"), [(0.05, 0.05, 0.3), (0.15, 0.0, 0.08), (0.0, 0.1, 0.25)])
def test_verdicts_of_damaged_walks_are_right(wrong, misread, least):
    noise, decided, right, total = max(wrong, misread), 0, 0, 0
    for seed in range(25):
        truth, observed = world(seed, wrong, misread)
        found, rate = noisy.noisy_bounds(observed, Clock(60), noise=noise)
        assert rate == noise
        for schema, bounds in found.items():
            pre, add, delete = truth[schema]
            delete = delete - add
            assert pre <= bounds.pre.possible
            assert bounds.add.certain <= add <= bounds.add.possible
            assert bounds.delete.certain <= delete <= bounds.delete.possible
            assert bounds.chosen.pre <= bounds.pre.possible
            decided += len(bounds.add.certain) + len(bounds.delete.certain)
            total += len(add) + len(delete)
            right += len(bounds.chosen.add & add) + len(bounds.chosen.delete & delete)
    assert decided > least * total  # many of these effects change nothing in most states, and nothing decides them
    assert right > 0.6 * total


def test_a_test_is_the_tail_of_the_binomial_distribution():
    for against, of, rate, misread in ((3, 10, 0.1, 0), (7, 10, 0.1, 2), (2, 40, 0.01, 0), (5, 5, 0.3, 5)):
        left = against - misread
        tail = sum(comb(of, k) * rate**k * (1 - rate) ** (of - k) for k in range(left, of + 1))
        for alpha in (tail * 0.99, tail * 1.01):
            refuted = noisy._refuted(np.array([against]), np.array([of]), rate, misread, alpha)
            assert refuted[0] == (left > 0 and tail <= alpha)


def test_the_share_of_wrong_atoms_is_estimated_from_what_no_action_names():
    clean, damaged = (noisy.estimated_noise(world(3, wrong, 0.0)[1], Clock(60)) for wrong in (0.0, 0.1))
    assert clean == noisy.LEAST
    assert 0.05 < damaged < 0.2


def test_unknown_values_do_not_vote():
    names = ("go a",)
    traces = Traces(names, ((0,),) * 9, (0,) * 9)
    states = ((State(frozenset(), frozenset({"p a"})), State(frozenset({"p a", "q a"}))),) * 9
    found, _ = noisy.noisy_bounds(Observed(traces, states), Clock(60), noise=0.01)
    assert found["go"].add.certain == {("p", (0,))}
    assert found["go"].add.possible == {("p", (0,)), ("q", (0,))}
    assert found["go"].pre.possible == {("q", (0,))}  # nothing was seen of q before, and p was false
    nothing, _ = noisy.noisy_bounds(Observed(traces, ((None, None),) * 9), Clock(60))
    assert not nothing["go"].add.possible


def test_the_learner_says_at_which_noise_and_confidence(tmp_path):
    truth, observed = world(0, 0.05, 0.05)
    model = learn_schemas(observed.traces, observed=observed, noisy=True, folder=tmp_path / "m")
    assert model.report["states"]["confidence"] == noisy.CONFIDENCE
    assert 0.02 < model.report["states"]["noise"] < 0.2
    assert "misread" in model.report["chosen"]
    assert model.schemas["go"].add == truth["go"][1]
    stated = learn_schemas(observed.traces, Settings(noise=0.3), observed=observed)
    assert stated.report["states"]["noise"] == 0.3
    few = learn_observed(observed, noisy=True, noise=0.05, names=Names(fits=lambda schema, literal: literal[0] == "q"))
    assert {each[0] for part in few.schemas["go"].parts for each in part} <= {"q"}
    for share in (0.41, -1.0, float("nan")):
        with pytest.raises(ValueError, match="share of noise"):
            learn_observed(observed, noisy=True, noise=share)


def test_a_misspelt_option_of_the_learner_is_an_error():
    _, observed = world(0, 0.0, 0.0, walks=1)
    with pytest.raises(TypeError, match=r"learn_observed\(\).*'secnds'"):
        learn_observed(observed, secnds=3)
