"""Noisy traces: what recurs is learned, the rest is left unexplained."""

import json

import numpy as np
import pytest

from statewise.strips.exact.noisy import learn_lifted_noisy, learn_noisy
from statewise.strips.exact.preconditions import schema_occasions
from statewise.strips.exact.predicates import Predicate, signatures, slot_holders, slot_windows
from statewise.strips.exact.windows import Windows
from statewise.strips.methods import learn, learn_schemas
from statewise.strips.model.learned import read_schemas
from statewise.strips.model.schemas import arguments
from statewise.strips.model.traces import Traces
from statewise.strips.neural.learning import Settings
from statewise.strips.trace_data.domains import domain
from statewise.strips.trace_data.random_traces import traces, with_noise
from statewise.strips.verification.verification import verify

FERRY = domain("ferry:2x1")
CLEAN = traces(FERRY, 300, 20, 1)
LIFTED = traces(domain("ferry:3x2"), 60, 20, 1)


EXPLAINED = {"labels": (0.94, 0.97), "actions": (0.94, 0.97), "both": (0.89, 0.93), "steps": (0.5, 0.75)}
"""The shares of traces that stay unharmed by 5% of noise."""


@pytest.mark.parametrize("kind", EXPLAINED)
@pytest.mark.parametrize("spec", ["blocksworld:2", "ferry:2x1"])
def test_the_domain_is_found_in_noisy_traces(spec, kind):
    clean = traces(domain(spec), 500, 20, 1)
    noisy = with_noise(clean, 0.05, kind, 1)
    learned = learn_noisy(noisy)
    assert verify(learned.model, domain(spec), drawn_only=True)
    least, most = EXPLAINED[kind]
    assert least < learned.report["training_accuracy"] < most  # what is noisy stays unexplained


def test_clean_traces_are_learned_too():
    learned = learn_noisy(CLEAN)
    assert learned.report["training_accuracy"] == 1
    assert verify(learned.model, FERRY, drawn_only=True)


def test_a_window_of_too_few_traces_does_not_count(tmp_path):
    report = learn(with_noise(CLEAN, 0.05, "labels", 1), method="exact", noisy=True, folder=tmp_path / "out").report
    tried = {int(support): accuracy for support, accuracy in report["accuracies"].items()}
    assert tried[report["support"]] == max(tried.values()) > tried[2]
    assert json.loads((tmp_path / "out" / "report.json").read_text())["support"] == report["support"]
    with pytest.raises(FileExistsError):
        learn(CLEAN, method="exact", noisy=True, folder=tmp_path / "out")


def test_what_is_stopped_says_what_is_missing():
    noisy = with_noise(CLEAN, 0.05, "labels", 1)
    report = learn_noisy(noisy, stop=lambda: True).report
    assert any("trying windows" in text for text in report["unfinished"])


def test_without_negative_traces_noise_and_rarity_look_alike():
    with pytest.raises(ValueError, match="without negative traces"):
        learn_noisy(CLEAN.valid_only())


@pytest.mark.parametrize("kind", ["labels", "actions"])
@pytest.mark.parametrize(("small", "large"), [("blocksworld:3", "blocksworld:5"), ("gripper:2", "gripper:4")])
def test_schemas_are_found_in_noisy_traces(small, large, kind):
    noisy = with_noise(traces(domain(small), 200, 30, 1), 0.1, kind, 1)
    learned = learn_lifted_noisy(noisy)
    assert 0.89 < learned.report["training_accuracy"] < 0.95  # what is noisy stays unexplained
    for spec in (small, large):
        world = domain(spec)
        assert verify(learned.ground(world.model.names), world, real_states=True, drawn_only=True)


def test_schemas_are_found_in_clean_traces():
    learned = learn_lifted_noisy(traces(domain("ferry:3x3"), 100, 30, 1))
    assert learned.report["training_accuracy"] == 1
    world = domain("ferry:4x4")
    assert verify(learned.ground(world.model.names), world, real_states=True, drawn_only=True)


def test_windows_of_slots_are_held_by_the_traces_that_show_them():
    """Each trace alone, by the reading of clean traces, which keeps minimal windows only."""
    twice = Traces(("drive t a a", "drive t a b", "load t a"), ((1, 0, 2), (0, 1, 0), (2, 1, 0)), (0, 0, 1))
    for given in (LIFTED, twice):
        for signature in [each for arity in range(3) for each in signatures(given.actions, arity)]:
            holders = slot_holders(signature, given.actions, given)
            for number, (row, label) in enumerate(zip(given.rows, given.labels)):
                mine = Windows(len(signature.slots))
                for (x, c), of_pair in holders.items():
                    for between, having in of_pair:
                        if having >> number & 1:
                            mine.insert(x, between, c)
                alone = slot_windows(signature, given.actions, [row[: len(row) - label]])
                assert {key: sorted(of) for key, of in mine.minimal.items()} == {
                    key: sorted(of) for key, of in alone.minimal.items()
                }


def test_occasions_are_the_positions_with_every_ground_action():
    """Counted one position, one action and one literal at a time."""
    predicates = [
        Predicate(each, 0b1111111 & (1 << len(each.slots)) - 1, 0b1, 0b10)
        for arity in (1, 2)
        for each in signatures(LIFTED.actions, arity)
        if len(each.slots) > 1
    ]
    found = list(schema_occasions(predicates, LIFTED))
    assert sum(len(literals) for literals, _ in found) == sum(each.pre.bit_count() for each in predicates)
    for literals, occasions in found:
        slots = [predicates[of].signature.slots[slot] for of, slot in literals]
        (schema,) = {of_schema for of_schema, _ in slots}
        expected: dict[tuple[bool, ...], list[int]] = {}  # for each set of false literals: times, occurs, ends
        for row, label in zip(LIFTED.rows, LIFTED.labels):
            false: set[tuple[int, tuple[str, ...]]] = set()
            for at, action in enumerate(row):
                ends = bool(label) and at == len(row) - 1
                for number, name in enumerate(LIFTED.actions):
                    own, objects = arguments(name)
                    if own != schema:
                        continue
                    key = tuple(
                        (of, tuple(objects[at] for at in places)) in false
                        for (of, _), (_, places) in zip(literals, slots)
                    )
                    counts = expected.setdefault(key, [0, 0, 0])
                    counts[0] += not ends
                    counts[1] += not ends and number == action
                    counts[2] += ends and number == action
                own, objects = arguments(LIFTED.actions[action])
                for of, each in enumerate(predicates):
                    for change, part in ((False, each.delete), (True, each.add)):  # additions win
                        for slot, (of_schema, places) in enumerate(each.signature.slots):
                            if part >> slot & 1 and of_schema == own:
                                atom = (of, tuple(objects[at] for at in places))
                                (false.discard if change else false.add)(atom)
        columns = occasions.of(range(len(literals))).T
        counted = {tuple(map(bool, key)): [int(times), 0, 0] for key, times in zip(columns, occasions.times)}
        assert len(counted) == len(columns)
        for place, times in zip(*occasions.occurs[0]):
            counted[tuple(map(bool, columns[place]))][1] = int(times)
        for place in occasions.negatives[0]:
            counted[tuple(map(bool, columns[place]))][2] = 1
        assert counted == {key: [times, occurs, min(ends, 1)] for key, (times, occurs, ends) in expected.items()}
        assert occasions.counts[0] == sum(occurs for _, occurs, _ in expected.values())
        assert occasions.valid == sum(map(len, LIFTED.rows)) - sum(LIFTED.labels)
        assert len(occasions.negatives[1]) == len(occasions.occurs[1][0]) == 0


def test_stopped_schemas_say_what_is_missing():
    noisy = with_noise(LIFTED, 0.05, "labels", 1)
    learned = learn_lifted_noisy(noisy, stop=lambda: True)
    assert any("trying windows" in text for text in learned.report["unfinished"])
    assert verify(learned.ground(noisy.actions), learned.ground(noisy.actions))


def test_noisy_traces_give_schemas_without_training(tmp_path):
    noisy = with_noise(traces(domain("ferry:3x2"), 200, 20, 1), 0.05, "labels", 1)
    said = []
    learned = learn_schemas(noisy, folder=tmp_path / "out", say=said.append)
    assert learned.report["method"] == "exact"
    assert "contradict each other" in learned.report["chosen"]
    assert any("treated as noisy" in line for line in said)
    assert read_schemas(tmp_path / "out") == learned.schemas
    assert json.loads((tmp_path / "out" / "report.json").read_text())["support"] == learned.report["support"]
    assert not (tmp_path / "out" / "seen.json").exists()  # certainty would rest on noisy traces
    with pytest.raises(ValueError, match="contradict each other"):
        learn_schemas(noisy, method="exact")
    for how in ({"settings": Settings(noise=0.05)}, {"noisy": True}):
        for method in ("exact", "auto"):
            assert learn_schemas(noisy, method=method, **how).schemas == learned.schemas
    with pytest.raises(ValueError, match="LOCM reads every trace as noise-free"):
        learn_schemas(noisy, method="locm", noisy=True)


def test_schemas_that_explain_too_few_are_trained():
    noisy = with_noise(traces(domain("ferry:2x1"), 100, 10, 1), 0.3, "labels", 1)
    report = learn_schemas(noisy, Settings(restarts=2, steps=50, check_every=25)).report
    assert list(report["held_out"]["explained"]) == ["schemas", "training"]


def test_what_cannot_be_learned_is_refused():
    with pytest.raises(ValueError, match="without negative traces"):
        learn_lifted_noisy(LIFTED.valid_only())
    unequal = Traces(("go a", "go a b"), ((0, 1), (1, 0)), (0, 1))
    with pytest.raises(ValueError, match="arguments"):
        learn_lifted_noisy(unequal)


def test_nothing_alternates_in_traces_of_one_action():
    given = Traces(("tick a",), ((0,), (0, 0), (0, 0)), (0, 0, 1))
    learned = learn_lifted_noisy(given)
    assert learned.report["predicates"] == 0
    assert learned.report["training_accuracy"] == pytest.approx(2 / 3)
    assert np.isfinite(list(learned.report["accuracies"].values())).all()
