"""The exact learner: what it learns, what it refuses, and how it is stopped."""

import errno
import json

import pytest
from hypothesis import given, settings
from strips_oracle import some_traces

from statewise.strips.exact import frame, ground
from statewise.strips.exact.features import alternating
from statewise.strips.exact.frame import Clock
from statewise.strips.exact.ground import Contradiction, learn_exact
from statewise.strips.exact.windows import Windows
from statewise.strips.methods import learn, learn_schemas
from statewise.strips.model import learned as learned_folder
from statewise.strips.model.heads import Candidates, Heads
from statewise.strips.model.learned import Learned
from statewise.strips.model.traces import Traces
from statewise.strips.planning.metrics import trace_accuracy
from statewise.strips.trace_data.domains import domain
from statewise.strips.trace_data.random_traces import traces
from statewise.strips.verification.containment import implied, prune
from statewise.strips.verification.verification import verify


@pytest.mark.parametrize(
    ("name", "count", "longest"),
    [
        ("simple", 200, 10),
        ("blocksworld:2", 50, 20),
        ("ferry:2x1", 50, 20),
        ("blocksworld:3", 100, 30),
        ("gripper:3", 200, 30),
        ("ferry:3x3", 1000, 30),
    ],
)
def test_known_domains_are_learned_exactly(name, count, longest):
    world = domain(name)
    learned = learn_exact(traces(world, count, longest, 1))
    assert learned.report["training_accuracy"] == 1
    assert verify(learned.model, world, drawn_only=True).outcome == "equivalent"


def test_valid_traces_alone_are_enough():
    world = domain("blocksworld:3")
    drawn = traces(world, 200, 30, 1).valid_only()
    learned = learn_exact(drawn)
    assert verify(learned.model, world, drawn_only=True).outcome == "equivalent"


@settings(max_examples=80, deadline=None)
@given(some_traces())
def test_every_trace_is_explained_or_contradicts_the_others(given_traces):
    windows = Windows.of(given_traces)
    negatives = [row for row, label in zip(given_traces.rows, given_traces.labels) if label]
    if all(windows.new(row) for row in negatives):
        assert trace_accuracy(learn_exact(given_traces).model, given_traces)["accuracy"] == 1
    else:
        with pytest.raises(Contradiction):
            learn_exact(given_traces)


def test_contradictions_are_named():
    same = Traces(("a", "b"), ((0, 1), (1, 0), (0, 1), (0, 1, 1)), (1, 0, 0, 0), (2, 4, 6, 8))
    with pytest.raises(
        Contradiction,
        match=r"1 negative trace ends .* \(line 2\)\. For line 2: line 6 begins with the "
        "same actions, all valid",
    ):
        learn_exact(same)
    implied = Traces(("a", "b", "c"), ((0, 1, 2), (2, 0, 1), (2, 0, 2, 1, 2)), (0, 1, 0))
    with pytest.raises(Contradiction, match=r"\(trace 2\)\. For trace 2: what happened .* implies that 'b' is valid"):
        learn_exact(implied)


def test_actions_that_were_never_valid_are_named_and_change_nothing():
    drawn = traces(domain("ferry:2x1"), 50, 20, 1)
    more = Traces((*drawn.actions, "swim"), drawn.rows, drawn.labels)
    learned = learn_exact(more)
    assert learned.report["never_valid"] == ["swim"]
    action = learned.model.actions[-1]
    assert action.pre == action.add == action.delete == 0


DRAWN = traces(domain("blocksworld:2"), 60, 20, 1)


def test_the_folder_reads_back(tmp_path):
    learned = learn(DRAWN, method="exact", folder=tmp_path / "out")
    again = Learned.load(tmp_path / "out")
    assert again.model == learned.model
    assert again.report["method"] == "exact"
    assert (again.theta == learned.theta).all()
    with pytest.raises(FileExistsError):
        learn(DRAWN, method="exact", folder=tmp_path / "out")
    learn(DRAWN, method="exact", folder=tmp_path / "out", overwrite=True)


def stop_after(calls):
    """A stop function that says yes after some calls."""
    left = iter(range(calls))
    return lambda: next(left, None) is None


def test_stopped_learning_gives_a_sound_model_and_goes_on(tmp_path):
    folder = tmp_path / "out"
    learned = learn(DRAWN, method="exact", folder=folder, stop=stop_after(5))
    assert "listing the alternating features" in learned.report["unfinished"]
    assert (folder / "checkpoint.npz").exists()
    judged = trace_accuracy(learned.model, DRAWN)
    assert judged["positives"] == 1
    assert judged["accuracy"] < 1
    whole = learn(DRAWN, method="exact", folder=folder)
    assert whole.report["unfinished"] == []
    assert whole.report["training_accuracy"] == 1
    assert not (folder / "checkpoint.npz").exists()
    assert verify(whole.model, learn_exact(DRAWN).model).outcome == "equivalent"


def test_a_stop_after_the_listing_is_heeded_at_once(monkeypatch):
    """What is left then is not done: neither all preconditions are tested nor atoms dropped that others imply."""
    monkeypatch.setattr(frame, "GRACE", 0.0)
    windows = Windows.of(DRAWN)
    features = alternating(windows).features
    clock = Clock(60.0, stop_after(5))
    found = ground.required(windows, features, clock)
    assert list(found) == features[:5]
    assert clock.cut == ["testing preconditions"]
    heads = Heads.of_model(domain("blocksworld:3").model)
    twice = Candidates.alone(heads.only([0, 1, 2, 0, 1, 2]))
    actions = domain("blocksworld:3").model.names
    assert len(prune(twice, actions)) == 3
    assert len(prune(twice, actions, stop=lambda: True)) == 6
    model = heads.model(actions)
    among = (1 << len(model.atoms)) - 1
    assert implied(model, 0, among) is False
    assert implied(model, 0, among, stop=lambda: True) is None


def test_a_full_disk_leaves_nothing_that_looks_learned(tmp_path, monkeypatch):
    write = learned_folder.write_atomically

    def full(path, content):
        if path.name == "model.json":
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, content)

    monkeypatch.setattr(learned_folder, "write_atomically", full)
    for learner in (learn, learn_schemas):
        with pytest.raises(OSError, match="No space"):
            learner(DRAWN, method="exact", folder=tmp_path / "out")
        assert not (tmp_path / "out").exists()


def test_a_stopped_run_goes_on_only_with_its_own_traces(tmp_path):
    folder = tmp_path / "out"
    learn(DRAWN, method="exact", folder=folder, stop=stop_after(5))
    with pytest.raises(ValueError, match="other traces"):
        learn(DRAWN.only(range(30)), method="exact", folder=folder)
    assert json.loads((folder / "report.json").read_text())["unfinished"]
