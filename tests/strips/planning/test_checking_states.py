"""Verdicts on traces with states against all models of tiny worlds, enumerated one by one."""

from itertools import chain, combinations, product

import numpy as np
import pytest

from statewise.strips import check_states, learn_schemas, read_state_bounds
from statewise.strips.model.schemas import Schema, applied
from statewise.strips.model.states import Observed, State
from statewise.strips.model.traces import Traces

LITERALS = [("p", (0,)), ("p", (1,)), ("q", ())]
ATOMS = ["p a", "p b", "q"]
ACTIONS = ("act a b", "act b a", "act a a")
PARTS = [frozenset(each) for each in chain.from_iterable(combinations(LITERALS, size) for size in range(4))]


def after(schema, action, true):
    """The state after an action as PDDL says, or None if it is not applicable."""
    objects = action.split()[1:]
    pre, add, delete = (frozenset(applied(each, objects) for each in part) for part in schema.parts)
    return None if pre - true else true - delete | add


def explains(schema, walk):
    actions, states = walk
    return all(after(schema, action, before) == new for action, before, new in zip(actions, states, states[1:]))


def observed_of(walks):
    rows = tuple(tuple(ACTIONS.index(each) for each in actions) for actions, _ in walks)
    states = tuple(tuple(State(each) for each in of) for _, of in walks)
    return Observed(Traces(ACTIONS, rows, (0,) * len(rows)), states, frozenset({"p", "q"}))


def walk(rng, schema, length, jump):
    """A walk; with probability `jump` it goes on to any state."""
    state = frozenset(each for each in ATOMS if rng.random() < 0.5)
    actions, states = [], [state]
    while len(actions) < length and len(states) < 50:
        action = ACTIONS[rng.integers(3)]
        new = after(schema, action, state)
        if rng.random() < jump:
            new = frozenset(each for each in ATOMS if rng.random() < 0.5)
        if new is None:
            return None
        actions.append(action)
        states.append(state := new)
    return actions, states


def test_verdicts_are_those_of_all_models(tmp_path):
    found = {"valid": 0, "invalid": 0, "undecided": 0}
    for seed in range(40):
        rng = np.random.default_rng(seed)
        truth = Schema(*(PARTS[rng.integers(len(PARTS))] for _ in range(3)))
        training = [each for each in (walk(rng, truth, 4, 0.0) for _ in range(6)) if each is not None]
        if not training:
            continue
        folder = tmp_path / str(seed)
        learn_schemas(observed_of(training).traces, observed=observed_of(training), hidden=False, folder=folder)
        models = [
            each
            for each in map(Schema, *zip(*product(PARTS, repeat=3)))
            if all(explains(each, one) for one in training)
        ]
        tests = [each for each in (walk(rng, truth, 1, jump) for jump in (0.0, 0.5, 1.0) * 4) if each is not None]
        checked = check_states(read_state_bounds(folder), observed_of(tests))
        for one, verdict in zip(tests, checked.verdicts):
            found[verdict.outcome] += 1
            said = {explains(each, one) for each in models}
            if verdict.outcome != "undecided":
                assert said == {verdict.outcome == "valid"}, (truth, one, verdict)
    assert min(found.values()) >= 10, found


def test_what_no_state_shows_is_undecided(tmp_path):
    walks = [(["act a b"], [frozenset({"p a"}), frozenset({"p b"})])] * 2
    learn_schemas(observed_of(walks).traces, observed=observed_of(walks), hidden=False, folder=tmp_path / "m")
    bounds = read_state_bounds(tmp_path / "m")
    first, second = observed_of(walks).states[0]
    row = Traces((*ACTIONS, "go a"), ((0,), (0,), (3,), (0,)), (0,) * 4)
    states = ((first, None), (None, second), (first, second), (State(frozenset({"p a", "q"})), second))
    said = check_states(bounds, Observed(row, states, frozenset({"p", "q"}))).verdicts
    assert [each.outcome for each in said] == ["valid", "undecided", "undecided", "undecided"]
    assert "no state was observed" in said[1].why
    assert "'go'" in said[2].why
    assert "'q' is false after it" in said[3].why  # it was never true in training: nothing says whether it is deleted


def test_damaged_reports_are_refused(tmp_path):
    assert read_state_bounds(tmp_path) is None
    for text in ('{"bounds": 3, "states": {}}', '{"bounds": {"a": {"pre": []}}, "states": {}}', "[]"):
        (tmp_path / "report.json").write_text(text)
        with pytest.raises(ValueError, match=r"report\.json"):
            read_state_bounds(tmp_path)
    (tmp_path / "report.json").write_text('{"seconds": 1}')
    assert read_state_bounds(tmp_path) is None
