"""Schemas from positive walks: windows of slots against plain sequences, and models proven on larger instances."""

import pytest

from statewise.strips.exact import lifted
from statewise.strips.exact.frame import READING, Clock
from statewise.strips.exact.ground import Contradiction
from statewise.strips.exact.lifted import learn_lifted_exact
from statewise.strips.exact.predicates import (
    Predicate,
    Signature,
    as_schemas,
    events,
    sequences,
    signatures,
    slot_windows,
)
from statewise.strips.methods import learn_schemas
from statewise.strips.model.learned import read_schemas
from statewise.strips.model.model import ActionModel
from statewise.strips.model.schemas import ground
from statewise.strips.model.traces import Traces
from statewise.strips.planning.metrics import trace_accuracy
from statewise.strips.trace_data.domains import Domain, domain
from statewise.strips.trace_data.random_traces import traces, with_noise
from statewise.strips.verification.verification import verify


@pytest.mark.parametrize(
    ("small", "large", "walks"),
    [
        ("blocksworld:3", "blocksworld:4", 20),
        ("ferry:3x2", "ferry:4x3", 20),
        ("gripper:2", "gripper:3", 20),
        ("miconic:3x2", "miconic:4x2", 20),
        ("hanoi:3", "hanoi:4", 50),
    ],
)
def test_schemas_from_positive_walks_hold_for_larger_instances(small, large, walks):
    learned = learn_lifted_exact(traces(domain(small), walks, 30, 1, negatives=0.0))
    for name in (small, large):
        world = domain(name)
        assert verify(learned.ground(world.model.names), world, drawn_only=True).outcome == "equivalent"


def test_labelled_traces_are_explained(tmp_path):
    drawn = traces(domain("ferry:3x2"), 200, 20, 2)
    learned = learn_schemas(drawn, method="exact", folder=tmp_path / "out")
    assert learned.report["training_accuracy"] == 1
    assert trace_accuracy(learned.ground(drawn.actions), drawn)["accuracy"] == 1
    assert read_schemas(tmp_path / "out") == learned.schemas


def test_the_accuracy_is_that_of_the_model():
    drawn = traces(domain("blocksworld:3"), 6, 12, 2)
    learned = learn_lifted_exact(drawn)
    assert learned.report["training_accuracy"] == pytest.approx(
        trace_accuracy(learned.ground(drawn.actions), drawn)["accuracy"]
    )


def test_a_predicate_of_three_arguments_is_found_where_negatives_need_it():
    places = [f"{x} {y} {z}" for x in "ab" for y in "cd" for z in "ef"]
    model = ActionModel.of(
        [f"{atom} {at}" for atom in ("full", "empty") for at in places],
        {
            f"{verb} {at}": ([f"{one} {at}"], [f"{other} {at}"], [f"{one} {at}"])
            for at in places
            for verb, one, other in (("put", "empty", "full"), ("take", "full", "empty"))
        },
    )
    drawn = traces(Domain("triples", model, (0xFF00, 0xFE01, 0xFC03, 0xF00F)), 300, 12, 1)
    assert learn_lifted_exact(drawn, arity=3).report["training_accuracy"] == 1
    found = learn_lifted_exact(drawn)
    assert found.report["by_arity"].keys() == {0, 1, 2, 3}
    assert found.report["training_accuracy"] == 1


def test_slots_of_a_signature():
    actions = ["go a b", "go b a", "load p a", "wait"]
    assert [each.slots for each in signatures(actions, 0)] == [(("go", ()), ("load", ()), ("wait", ()))]
    assert {each.slots for each in signatures(actions, 1)} == {
        (("go", (0,)), ("go", (1,)), ("load", (1,))),
        (("load", (0,)),),
    }
    pairs = {frozenset(each.slots) for each in signatures(actions, 2)}
    assert {("go", (0, 1)), ("go", (1, 0))} in pairs
    assert len(pairs) == 2
    with pytest.raises(ValueError, match=r"'go' occurs with .* arguments"):
        signatures(["go a b", "go a"], 1)


def test_windows_of_slots_are_those_of_each_tuple_alone():
    drawn = traces(domain("gripper:2"), 30, 20, 1, negatives=0.0)
    for arity in (0, 1, 2):
        for signature in signatures(drawn.actions, arity):
            number = {slot: place for place, slot in enumerate(signature.slots)}
            windows = slot_windows(signature, drawn.actions, drawn.rows)
            seen = set()
            for row in drawn.rows:
                named = [drawn.actions[at].split() for at in row]
                tuples = {
                    tuple(words[1 + at] for at in places)
                    for words in named
                    for schema, places in signature.slots
                    if schema == words[0]
                }
                for objects in tuples:
                    mine = [
                        number[schema, places]
                        for words in named
                        for schema, places in signature.slots
                        if schema == words[0] and tuple(words[1 + at] for at in places) == objects
                    ]
                    for end, c in enumerate(mine):
                        for begin in range(end):
                            x, between = mine[begin], mine[begin + 1 : end]
                            if x not in between:
                                seen.add((x, sum(1 << slot for slot in set(between)), c))
            assert set(windows) <= seen
            assert all(windows.contains_seen(x, between, c) for x, between, c in seen)


def test_additions_win_over_deletions_of_the_same_action():
    signature = Signature((0,), (("move", (0,)), ("move", (1,))))
    actions = ["move a b", "move a a"]
    of_action = events(signature, actions)
    assert of_action == [{("a",): (0,), ("b",): (1,)}, {("a",): (0, 1)}]
    assert sequences([(1, 0)], of_action) == [((0, 1), (0,)), ((1,),)]
    windows = slot_windows(signature, actions, [(1, 0)])
    # what deletes with its first argument and adds with its second leaves `a` true after `move a a`
    assert windows.required(0b01, 0b10) & 0b01
    assert not windows.required(0b01, 0b00) & 0b01


def test_what_covers_what():
    signature = Signature((0, 0), (("on", (0, 1)), ("on", (1, 0)), ("off", (0, 1)), ("off", (1, 0))))
    one = Predicate(signature, 0b0100, 0b0001, 0b0100)
    assert one.mirrored() == {(0b0100, 0b0001, 0b0100), (0b1000, 0b0010, 0b1000)}
    assert Predicate(signature, 0b1100, 0b0001, 0b0100).covers(one)
    assert not one.covers(Predicate(signature, 0b1100, 0b0001, 0b0100))
    lines = as_schemas([one], ["on a b", "off a b"])
    assert lines["off"].pre == lines["off"].delete == {("p0", (0, 1))}
    assert ground(lines, ["on a b", "off a b"]).first_rejected([1, 1]) == 1


def test_contradictions_and_time_limits():
    drawn = traces(domain("ferry:3x2"), 100, 20, 2)
    with pytest.raises(Contradiction):
        learn_lifted_exact(with_noise(drawn, 0.5, "labels", 1))
    stopped = learn_lifted_exact(drawn, stop=lambda: True)
    assert stopped.report["unfinished"] == ["reading all traces", "predicates of 0 arguments"]
    assert stopped.report["predicates"] == 0
    assert stopped.report["training_accuracy"] == pytest.approx(drawn.positives / len(drawn))


def test_the_accuracy_counts_traces_that_there_was_no_time_to_read(monkeypatch):
    """What a few traces speak for may reject the others."""
    drawn = traces(domain("ferry:3x2"), 100, 20, 2)

    def first(clock, rows, share=0.5):
        clock.cut.append(READING)
        yield from rows[:2]

    monkeypatch.setattr(Clock, "reading", first)
    monkeypatch.setattr(lifted, "WEIGHED", 3)
    learned = learn_lifted_exact(drawn)
    assert learned.report["unfinished"] == [READING]
    assert learned.report["training_accuracy"] < 0.9
    assert learned.report["training_accuracy"] == pytest.approx(
        trace_accuracy(learned.ground(drawn.actions), drawn)["accuracy"]
    )


def test_what_is_assumed_says_where_the_traces_begin():
    """Walks from a tank with one unit of fuel never drive twice: nothing in them speaks against a rule of that."""
    rows = tuple((at,) for at in range(4))
    drawn = Traces(("drive a b f1 f0", "drive b a f1 f0", "look a", "look b"), rows, (0,) * 4)
    report = learn_lifted_exact(drawn).report
    assert report["open"] == []
    assert report["assumed"].startswith(
        "what the model forbids never happened in these 4 traces, which begin with 4 diff"
    )
    assert "If traces do not begin in all kinds of states" in report["assumed"]
    one = learn_lifted_exact(Traces(drawn.actions, rows[:1], (0,))).report["assumed"]
    assert one.startswith("what the model forbids never happened in this 1 trace, which begins with one action. ")


def test_repeated_objects_are_judged_as_they_are_grounded():
    rows = ((0, 1, 2, 3), (2, 2, 0, 1), (3, 0, 2, 1))
    drawn = Traces(("drive t a b", "drive t b a", "drive t a a", "drive t b b"), rows, (0, 0, 0))
    learned = learn_lifted_exact(drawn)
    assert trace_accuracy(learned.ground(drawn.actions), drawn)["positives"] == 1
