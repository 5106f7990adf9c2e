"""Three-valued verdicts: never wrong on clean traces, and exactly what all consistent models agree on."""

import json
import math
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strips_oracle import can_require, effects, false_before

from statewise.strips.exact.verdicts import Seen, Verdict, apart
from statewise.strips.model.model import Action, ActionModel
from statewise.strips.model.schemas import sorts_of
from statewise.strips.model.traces import Traces
from statewise.strips.planning.checking import check, described, read_seen
from statewise.strips.trace_data.domains import Domain, domain
from statewise.strips.trace_data.random_traces import traces


def labelled(model: ActionModel, rows) -> Traces:
    """Each row up to its first rejected action."""
    kept = []
    for row in rows:
        rejected = model.first_rejected(row)
        kept.append((row if rejected is None else row[: rejected + 1], int(rejected is not None)))
    return Traces(model.names, tuple(row for row, _ in kept), tuple(label for _, label in kept))


@st.composite
def models(draw, actions, atoms):
    masks = st.integers(0, (1 << atoms) - 1)
    made = [Action("abcdef"[place], draw(masks), draw(masks), draw(masks)) for place in range(actions)]
    return ActionModel(tuple(f"p{atom}" for atom in range(atoms)), tuple(made))


def some_rows(actions, most=12, longest=8):
    return st.lists(
        st.lists(st.integers(0, actions - 1), min_size=1, max_size=longest).map(tuple), min_size=1, max_size=most
    )


@settings(max_examples=90, deadline=None)
@given(models(4, 3), some_rows(4), some_rows(4))
def test_no_decided_verdict_is_wrong_on_clean_traces(model, rows, others):
    seen = Seen.of(labelled(model, rows))
    for row in others:
        names = [model.names[at] for at in row]
        found, truth = seen.verdict(names), model.first_rejected(row)
        if found.outcome == "valid":
            assert truth is None
        if found.outcome == "invalid":
            assert truth is not None
            assert truth <= found.step
        for step, certain in enumerate(seen.certain_steps(names)):
            if certain and (truth is None or truth >= step):
                assert truth != step


ATOMS = [(delete, add, pre) for delete, add in effects(3) for pre in range(8) if delete and pre]


def all_models(given_traces):
    """The sound atoms, and for each the negatives that it catches: the models are the sets that catch all."""
    sound = [(delete, add, pre) for delete, add, pre in ATOMS if not pre & ~can_require(given_traces, delete, add)]
    negatives = [row for row, label in zip(given_traces.rows, given_traces.labels) if label]
    return sound, negatives


def rejects(atom, row, step):
    delete, add, pre = atom
    return bool(pre >> row[step] & 1 and false_before(row, delete, add)[step])


@settings(max_examples=100, deadline=None)
@given(models(3, 2), some_rows(3, 6, 6), some_rows(3, 4, 5))
def test_verdicts_are_what_all_models_that_explain_the_traces_agree_on(model, rows, others):
    given_traces = labelled(model, rows)
    seen = Seen.of(given_traces)
    sound, negatives = all_models(given_traces)
    for row in others:
        # Every model accepts it iff no sound atom rejects an action. Every model rejects it iff the sound atoms that
        # accept it do not catch all negatives.
        accepting = [atom for atom in sound if not any(rejects(atom, row, step) for step in range(len(row)))]
        explained = all(any(rejects(atom, end, len(end) - 1) for atom in accepting) for end in negatives)
        known = {at for row, label in zip(given_traces.rows, given_traces.labels) for at in row[: len(row) - label]}
        accepted = len(accepting) == len(sound) and known.issuperset(row)  # what never happened may be impossible
        wanted = "valid" if accepted else "undecided" if explained else "invalid"
        assert seen.verdict([model.names[at] for at in row]).outcome == wanted


@pytest.mark.parametrize(
    ("name", "arity"), [("ferry:3x2", 2), ("blocksworld:3", 2), ("gripper:2", 2), ("ferry:2x2", None)]
)
def test_verdicts_on_drawn_traces_are_right(name, arity):
    world = domain(name)
    found = check(
        Seen.of(traces(world, 300, 20, 1), arity=arity), traces(world, 60, 40, 2, negatives=0.5, split="test")
    )
    judged = found.against_labels()
    assert judged["right"] == 1
    assert judged["decided"] > (0.9 if arity else 0.5)


def test_schemas_decide_about_larger_instances():
    small, large = domain("blocksworld:3"), domain("blocksworld:4")
    seen = Seen.of(traces(small, 300, 30, 1), arity=2)
    found = check(seen, traces(large, 40, 30, 2, negatives=0.5))
    assert found.against_labels()["right"] == 1
    assert found.counts()["valid"] == 20
    assert found.counts()["invalid"] > 0


def test_what_was_not_seen_is_not_decided():
    seen = Seen.of(Traces(("a", "b"), ((0, 1, 0),), (0,)))
    assert seen.verdict(["a", "b", "a"]) == Verdict("valid", None)
    assert seen.verdict(["a", "z"]) == Verdict("undecided", 1, "no action 'z' was seen in training")
    assert seen.verdict(["z"]) == Verdict("undecided", 0, "no action 'z' was seen in training")
    assert seen.certain_steps(["z", "a"]) == [False, False]
    refused = Seen.of(Traces(("a", "b"), ((0,), (0, 1)), (0, 1)))
    assert refused.verdict(["b"]) == Verdict("undecided", 0, "no action 'b' was ever valid in training")
    assert refused.verdict(["a", "b"]) == Verdict("invalid", 1)
    lifted = Seen.of(Traces(("go a", "go b"), ((0, 1, 0),), (0,)), arity=1)
    assert lifted.verdict(["go c", "go a", "go c"]) == Verdict("valid", None)
    assert lifted.verdict(["go c", "fly c"]) == Verdict("undecided", 1, "no action 'fly' was seen in training")


def test_nothing_is_certain_after_what_was_not_seen():
    """An unknown action may add what a deletes and b requires, or delete what b requires."""
    rows = Traces(("a x", "b x", "c x"), ((0, 2, 1), (0, 1), (1, 1)), (0, 1, 0))
    seen = Seen.of(rows, arity=1)
    assert seen.verdict(["a y", "b y"]) == Verdict("invalid", 1)
    assert seen.verdict(["a y", "new y", "b y"]).outcome == "undecided"
    assert seen.verdict(["a y", "new y", "b y"]).step == 1
    assert seen.certain_steps(["b y", "b y"]) == [True, True]
    assert seen.certain_steps(["b y", "new y", "b y"]) == [True, False, False]


def kitchens(places=("kitchen", "hall", "yard"), trays=("t1", "t2")) -> Domain:
    """As in childsnack, a tray is filled in the kitchen, which the action does not name; another action brings it
    there."""
    atoms = [f"at {t} {p}" for t in trays for p in places] + [f"{what} {t}" for t in trays for what in ("free", "full")]
    actions = {
        f"move {t} {p} {q}": ([f"at {t} {p}"], [f"at {t} {q}"], [f"at {t} {p}"])
        for t in trays
        for p in places
        for q in places
        if p != q
    }
    for t in trays:
        actions[f"fill {t}"] = ([f"free {t}", f"at {t} kitchen"], [f"full {t}"], [f"free {t}"])
        for p in places:
            actions[f"serve {t} {p}"] = ([f"full {t}", f"at {t} {p}"], [f"free {t}"], [f"full {t}"])
            if p != "kitchen":
                actions[f"call {t} {p}"] = ([f"free {t}", f"at {t} {p}"], [f"at {t} kitchen"], [f"at {t} {p}"])
    model = ActionModel.of(atoms, actions)
    bit = {name: 1 << place for place, name in enumerate(atoms)}
    return Domain("kitchens", model, (sum(bit[f"at {t} kitchen"] | bit[f"free {t}"] for t in trays),))


@pytest.mark.parametrize("negatives", [0.0, 0.5])
def test_no_decided_verdict_is_wrong_where_an_action_has_a_constant(tmp_path, negatives):
    world = kitchens()
    drawn = traces(world, 200, 12, 1, negatives=negatives)
    seen = Seen.of(drawn, arity=3, constants=sorted(sorts_of(drawn.actions)[1]))
    fresh = traces(world, 120, 12, 2, negatives=0.5, without=drawn)
    found = check(seen, fresh)
    assert found.against_labels()["right"] == 1
    assert found.counts()["valid"] > 20
    assert bool(found.counts()["invalid"]) == (negatives > 0)
    assert check(seen.with_constants([]), fresh).against_labels()["right"] < 1
    only = check(seen.with_constants(["kitchen"]), fresh)
    assert only.against_labels()["right"] == 1
    assert only.counts()["undecided"] < found.counts()["undecided"]
    larger = check(seen, traces(kitchens(("kitchen", "hall", "attic")), 80, 12, 3, negatives=0.5))
    assert larger.against_labels()["right"] == 1  # also of objects that training lacks
    (tmp_path / "seen.json").write_bytes(seen.as_json())
    assert check(read_seen(tmp_path), fresh).verdicts == found.verdicts
    assert check(read_seen(tmp_path, "kitchen"), fresh).verdicts == only.verdicts
    with pytest.raises(ValueError, match="`constants` cellar: 'cellar' is not an object of the training traces"):
        read_seen(tmp_path, "cellar")


def test_what_was_seen_of_the_constant_says_nothing_about_other_objects():
    """A called tray leaves the kitchen twice in a row; no tray leaves another place twice."""
    row = ("move t kitchen hall", "call t hall", "move t kitchen hall")
    actions = tuple(sorted(set(row)))
    seen = Seen.of(Traces(actions, (tuple(map(actions.index, row)),), (0,)), arity=3, constants=["kitchen", "hall"])
    twice = ["move t attic hall", "call t hall", "move t attic hall"]
    assert seen.with_constants([]).verdict(twice).outcome == "valid"
    assert seen.verdict(twice).outcome == "undecided"
    assert seen.with_constants(["kitchen"]).verdict(twice).outcome == "undecided"


def test_a_constant_is_named_where_it_leaves_a_trace_undecided():
    row = ("fill t", "move t a b", "move t b a", "fill t", "move t a b", "move t b c")
    actions = tuple(sorted(set(row)))
    seen = Seen.of(Traces(actions, (tuple(map(actions.index, row)),), (0,)), arity=3, constants=["a", "b"])
    assert seen.with_constants([]).verdict(["move t a b", "fill t"]) == Verdict("valid", None)
    why = "a model in which 'a' is a constant may reject it"
    assert seen.verdict(["move t a b", "fill t"]) == Verdict("undecided", 1, why)
    assert described(check(seen, Traces(("fill t", "move t a b"), ((1, 0),), (0,))), 0).endswith(f"fill t: {why}")


def test_constants_that_there_was_no_time_for_leave_all_undecided(tmp_path):
    world = kitchens()
    drawn = traces(world, 100, 12, 1, negatives=0.5)
    objects = sorted(sorts_of(drawn.actions)[1])
    left = iter(range(1))
    seen = Seen.of(drawn, arity=3, constants=objects, has_time=lambda: next(left, None) is not None)
    assert list(seen.constants) == objects
    assert set(check(seen, drawn).counts().values()) == {0, 100}
    (tmp_path / "seen.json").write_bytes(seen.as_json())
    again = read_seen(tmp_path)
    assert check(again, drawn).verdicts == check(seen, drawn).verdicts
    assert check(read_seen(tmp_path, objects[0]), drawn).counts()["undecided"] < 100


def test_names_with_signs_of_constants_stay_distinct():
    assert apart("move@1 a b", "a") == "move@@1@0 b"
    assert apart("move a b a", "a") == "move@0,2 b"
    assert apart("move a b", "c") == "move a b"
    assert len({apart(name, "a") for name in ("go a", "go@0", "go@ a", "go")}) == 4


@pytest.mark.parametrize("negatives", [0.0, 0.6])
def test_a_resource_that_runs_out_makes_no_verdict_wrong(negatives):
    """Levels of fuel that only fall: walks from a nearly empty tank never drive twice."""
    levels = [f"f{number}" for number in range(4)]
    atoms = [*(f"at {p}" for p in "ab"), *(f"fuel {level}" for level in levels)]
    actions = {
        f"drive {p} {q} {more} {less}": (
            [f"at {p}", f"fuel {more}"],
            [f"at {q}", f"fuel {less}"],
            [f"at {p}", f"fuel {more}"],
        )
        for p, q in ("ab", "ba")
        for less, more in pairwise(levels)
    }
    model = ActionModel.of(atoms, actions)
    state = {name: 1 << place for place, name in enumerate(atoms)}
    full = Domain("tank", model, (state["at a"] | state["fuel f3"],))
    empty = Domain("tank", model, tuple(state[f"at {p}"] | state[f"fuel f{level}"] for p in "ab" for level in (1, 1)))
    rows = [row for length in (1, 2) for row in product(range(len(model.names)), repeat=length)]
    for world in (full, empty):
        able = [row for row in rows if any(applicable(world, start, row) for start in world.start)]
        ends = [
            (*row, at) for row in able for at in range(len(model.names)) if model.first_rejected((*row, at)) == len(row)
        ]
        given_rows = able + (ends if negatives else [])
        drawn = labelled(model, given_rows)
        seen = Seen.of(drawn, arity=3, constants=sorted(sorts_of(drawn.actions)[1]))
        for row in product(range(len(model.names)), repeat=3):
            found, truth = seen.verdict([model.names[at] for at in row]), model.first_rejected(row)
            assert found.outcome == "undecided" or (found.outcome == "valid") == (truth is None)


def applicable(world, state, row):
    for at in row:
        action = world.model.actions[at]
        if action.pre & ~state:
            return False
        state = (state | action.add) & ~action.delete
    return True


@pytest.mark.parametrize("arity", [None, 2])
def test_windows_from_an_action_on(arity):
    drawn = traces(domain("blocksworld:3"), 20, 12, 1)
    seen = Seen.of(drawn, arity=arity)
    names = [*(drawn.actions[at] for at in drawn.rows[0]), "new b1", drawn.actions[0]]
    every = list(seen.options(names))
    assert len(every) == len(names)
    assert all(list(seen.options(names, start)) == every[start:] for start in range(len(names)))


def test_objects_of_another_sort_are_not_decided():
    rows = [("sail l0 l1", "board c0 l1", "sail l1 l0", "debark c0 l0")]
    actions = tuple(sorted({name for row in rows for name in row}))
    seen = Seen.of(Traces(actions, tuple(tuple(map(actions.index, row)) for row in rows), (0,)), arity=2)
    assert seen.verdict(["board c7 l8"]) == Verdict("valid", None)
    for names, step, said in (
        (["board l0 c0"], 0, "'l0' is in a place of 'c0' in training, which is of another sort"),
        (["sail l8 l9", "board l8 l9"], 1, "'l8' is in a place of 'c0'"),  # new objects have sorts, too
    ):
        found = seen.verdict(names)
        assert (found.outcome, found.step) == ("undecided", step)
        assert said in found.why
    assert not any("sort" in (seen.verdict(row).why or "") for row in rows)


def test_another_number_of_arguments_is_an_error_with_the_line():
    seen = Seen.of(Traces(("go a b", "go b a"), ((0, 1),), (0,)), arity=1)
    for name, said in (("go a", "1 argument"), ("go a b c", "3 arguments"), ("go", "0 arguments")):
        bad = Traces(("go a b", name), ((0,), (0, 1)), (0, 0), (3, 4))
        with pytest.raises(ValueError, match=f"line 4: '{name}' has {said}, but 'go' was learned with 2"):
            check(seen, bad)
        assert seen.verdict([name]).outcome == "undecided"


def test_they_come_back_from_the_folder(tmp_path):
    drawn = traces(domain("ferry:2x2"), 100, 20, 1)
    for arity in (None, 2):
        seen = Seen.of(drawn, arity=arity)
        (tmp_path / "seen.json").write_bytes(seen.as_json())
        again = read_seen(tmp_path)
        assert (again.actions, again.lifted, again.arity) == (seen.actions, seen.lifted, seen.arity)
        assert (again.minimal, again.negatives) == (seen.minimal, seen.negatives)
    content = {**json.loads(seen.as_json()), "format": "statewise seen windows 1"}
    (tmp_path / "seen.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"by an earlier version, whose verdicts may be wrong: learn again"):
        read_seen(tmp_path)
    (tmp_path / "seen.json").unlink()
    with pytest.raises(ValueError, match=r"has no seen\.json"):
        read_seen(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"windows": [[1, 2]]},
        {"windows": [[math.inf, 0, 0, "0x1"]]},
        {"windows": [[9, 0, 0, "0x1"]]},
        {"windows": [[0, 99, 0, "0x1"]]},
        {"windows": [[0, 0, 0, "-0x1"]]},
        {"windows": [[0, 0, 0, "0xfffffffffff"]]},
        {"negatives": [[[0, math.inf, 0, "0x1"]]]},
        {"negatives": [[[0, 0, 0, "0x1", "0x2"]]]},
        {"negatives": [[[0, 0]]]},
        {"ends": []},
        {"ends": [[[10**9]]]},
        {"happened": [7]},
        {"constants": {"c0": {"signatures": [], "windows": [[0, 0, 0, "0x1"]]}}},
        {"constants": {"c0": {"signatures": [[[0], [["sail", [0]]]]], "windows": [[9, 0, 0, "0x1"]]}}},
        {"signatures": []},
        {"signatures": ["ab"]},
        {"signatures": [[[0], "ab"]]},
        {"signatures": [[[0], [["sail", [-5]]]]]},
        {"signatures": [[[0], [["sail", [math.inf]]]]]},
        {"signatures": [[[0], [[7, [0]]]]]},
    ],
)
def test_damaged_windows_are_named(tmp_path, change):
    content = json.loads(Seen.of(traces(domain("ferry:2x2"), 20, 10, 1), arity=1).as_json())
    (tmp_path / "seen.json").write_text(json.dumps({**content, **change}))
    with pytest.raises(ValueError, match=r"seen\.json: "):
        read_seen(tmp_path)


def test_verdicts_in_words():
    seen = Seen.of(Traces(("a", "b"), ((0, 1, 0), (1, 1)), (0, 1)))
    found = check(seen, Traces(("a", "b"), ((0, 1), (0, 0), (1, 1)), (0, 0, 1)))
    assert [described(found, place) for place in range(3)] == [
        "valid",
        "undecided from action 2, a",
        "invalid by action 2, b",
    ]
    assert found.counts() == {"valid": 1, "invalid": 1, "undecided": 1}
    assert found.against_labels() == {
        "decided": pytest.approx(2 / 3),
        "decided_positives": 0.5,
        "decided_negatives": 1.0,
        "right": 1.0,
    }


def test_a_guard_rejects_the_guess_and_explains_the_valid_traces():
    drawn = traces(domain("ferry:2x2"), 40, 15, 1)
    seen, rng = Seen.of(drawn), np.random.default_rng(1)
    tried = 0
    for _ in range(200):
        row = rng.integers(len(drawn.actions), size=6)
        names = [drawn.actions[at] for at in row]
        certain = seen.certain_steps(names)
        if all(certain):
            continue
        tried += 1
        (guard,) = seen.guards(names, certain.index(False), drawn.actions)
        assert guard.pre == 1 << row[certain.index(False)]
        assert not guard.pre & ~can_require(drawn, guard.delete, guard.add)
        assert false_before(row, guard.delete, guard.add)[certain.index(False)]
    assert tried > 50


def test_guards_of_schemas_reject_guesses_alone():
    """They accept the valid traces, over other objects too, and reject no step that is certain."""
    small, large = domain("ferry:2x2"), domain("ferry:3x2")
    drawn = traces(small, 12, 10, 1, negatives=0.0)
    seen = Seen.of(drawn, arity=2)
    tried = 0
    for row in traces(large, 100, 8, 2).rows:
        names = [large.model.names[at] for at in row]
        certain = seen.certain_steps(names)
        if all(certain):
            continue
        step = certain.index(False)
        guards = seen.guards(names, step, large.model.names)
        assert any(false_before(row, each.delete, each.add)[step] and each.pre >> row[step] & 1 for each in guards)
        for each in guards:
            false = false_before(row, each.delete, each.add)
            assert not any(false[at] and each.pre >> row[at] & 1 for at, sure in enumerate(certain) if sure)
        for each in seen.guards(names, step, drawn.actions):
            assert not each.pre & ~can_require(drawn, each.delete, each.add)
        tried += 1
    assert tried > 30
    assert seen.guards(["fly c0"], 0, ["fly c0"]) == []
