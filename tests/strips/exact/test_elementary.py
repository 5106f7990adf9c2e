"""Predicates that need not alternate: their definitions by brute force, satellite, and what traces leave open."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statewise.strips.exact.elementary import elementary, merged, smallest_meeting, weigh, with_complements
from statewise.strips.exact.frame import Clock, Listed
from statewise.strips.exact.lifted import ARITY, all_predicates, few_objects, learn_lifted_exact, windows_of_slots
from statewise.strips.exact.predicates import Predicate, Signature, as_schemas, grounded
from statewise.strips.exact.windows import valid_rows
from statewise.strips.model.heads import Heads
from statewise.strips.model.model import bits
from statewise.strips.model.schemas import arguments, ground
from statewise.strips.planning.metrics import trace_accuracy
from statewise.strips.trace_data.domains import domain
from statewise.strips.trace_data.random_traces import traces
from statewise.strips.verification.verification import verify

WALKS = traces(domain("satellite:2x3"), 20, 20, 1, negatives=0.0)


def listed(given_traces):
    """Alternating and elementary predicates, with the windows."""
    clock, rows, windows, found = Clock(60.0), valid_rows(given_traces), {}, []
    for arity in range(ARITY + 1):
        new = windows_of_slots(given_traces.actions, rows, arity, clock)
        found += all_predicates(new, clock, Listed(), "listing")
        windows |= new
    return found, elementary(windows, clock), windows


@given(st.lists(st.integers(0, 31), max_size=6), st.integers(0, 4))
@settings(max_examples=60, deadline=None)
def test_smallest_meeting_sets(windows, x):
    others = [1 << slot for slot in range(5) if slot != x]
    sets = [sum(chosen) for count in range(5) for chosen in combinations(others, count)]
    able = [each for each in sets if all(window & each for window in windows)]
    minimal = {each for each in able if not any(other != each and other & each == other for other in able)}
    assert set(smallest_meeting(windows, x)) == minimal
    assert len(smallest_meeting(windows, x, most=1)) <= 1


def test_elementary_predicates_accept_all_valid_traces_and_reject_what_any_other_does():
    _, offered, windows = listed(WALKS)
    model = ground(as_schemas(offered, WALKS.actions), WALKS.actions)
    assert trace_accuracy(model, WALKS)["positives"] == 1
    rng = np.random.default_rng(1)
    for signature, seen in windows.items():
        count = len(signature.slots)
        for _ in range(5):  # each slot of a predicate that accepts the traces is that of a stricter elementary one
            delete, add = (int(each) for each in rng.integers(1 << count, size=2))
            add &= ~delete
            for x in bits(delete):
                for c in bits(seen.required(delete, add)):
                    assert any(
                        each.add & ~add == 0 and (each.delete, each.pre) == (1 << x, 1 << c)
                        for each in offered
                        if each.signature == signature
                    )


def test_weights_are_those_of_a_walk_through_the_traces():
    found, offered, _ = listed(WALKS)
    weighed = weigh(found[:3], offered, WALKS, Clock(60.0))
    actions = WALKS.actions
    inner = ground(as_schemas(with_complements(found[:3]), actions), actions)

    def rejected(model, false):
        return {place for place, action in enumerate(model.actions) if action.pre & false}

    expected = {}
    for each in offered:
        model = ground(as_schemas([each], actions), actions)
        schema = each.signature.slots[next(bits(each.pre))][0]
        count = occurs = allowed = 0
        for row in WALKS.rows:
            for at, act in enumerate(row):
                others = rejected(inner, inner.after(row[:at]))
                count += len(rejected(model, model.after(row[:at])) - others)
                allowed += sum(
                    arguments(name)[0] == schema and place not in others for place, name in enumerate(actions)
                )
                occurs += arguments(actions[act])[0] == schema
        if count:
            expected[each] = count, count * occurs / allowed
    assert set(weighed.offered) == set(expected)
    for each, *found in zip(weighed.offered, weighed.places, weighed.expected):
        assert found == pytest.approx(expected[each])


def test_complements_make_each_other_false():
    signature = Signature((0,), (("on", (0,)), ("off", (0,)), ("use", (0,)), ("see", (0,))))
    on, off = Predicate(signature, 0b0110, 0b0001, 0b0010), Predicate(signature, 0b1001, 0b0010, 0b0001)
    assert [each.delete for each in with_complements([on, off])] == [0b1010, 0b0101]
    assert with_complements([on]) == [on]


def test_merged_predicates_reject_the_same():
    signature = Signature((0,), tuple((name, (0,)) for name in "abcd"))
    some = [Predicate(signature, 1 << c, 0b0001, 1 << x) for x, c in ((1, 2), (1, 3), (2, 2), (2, 3), (3, 2))]
    joined = merged(some)
    assert len(joined) == 2
    actions = [f"{name} o" for name in "abcd"]
    one, other = (ground(as_schemas(each, actions), actions) for each in (some, joined))
    assert verify(one, other).outcome == "equivalent"


def test_grounded_predicates_are_those_of_their_schemas():
    found, _, _ = listed(WALKS)
    heads, owner = grounded(found, WALKS.actions)
    slow = Heads.of_model(ground(as_schemas(found, WALKS.actions), WALKS.actions))
    assert {each.tobytes() for each in np.concatenate((heads.pre, heads.add, heads.delete), 1)} == {
        each.tobytes() for each in np.concatenate((slow.pre, slow.add, slow.delete), 1)
    }
    assert (np.diff(owner) >= 0).all()


@pytest.mark.parametrize(("name", "negatives"), [("satellite:1x3", 0.0), ("satellite:2x3", 0.8)])
def test_what_does_not_alternate_is_learned(name, negatives):
    """An instrument may be calibrated twice, so that no alternating predicate says that it must be."""
    world = domain(name)
    learned = learn_lifted_exact(traces(world, 100, 40, 1, negatives=negatives))
    assert learned.report["not_alternating"] > 0
    assert learned.report["open"] == []
    assert verify(learned.ground(world.model.names), world, drawn_only=True).outcome == "equivalent"


def test_what_too_few_traces_leave_open_is_asked():
    world = domain("satellite:1x3")
    learned = learn_lifted_exact(traces(world, 20, 40, 1, negatives=0.0))
    assert verify(learned.ground(world.model.names), world, drawn_only=True).outcome == "different"
    question = learned.report["open"][0]
    assert (question["action"].split()[0], question["without"][0].split()[0]) == ("take-image", "calibrate")
    assert question["places"] > question["expected"] > 1


def test_few_objects_and_little_time():
    assert few_objects(["go a b", "go b c", "load p a", "load q a"]) == [["p", "q"]]
    stopped = Clock(60.0, lambda: True)
    _, offered, windows = listed(WALKS)
    assert elementary(windows, stopped) == []
    assert weigh([], offered, WALKS, stopped).offered == []
    assert len(stopped.cut) == 2
