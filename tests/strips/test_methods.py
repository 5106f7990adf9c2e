"""Which method learns, and why."""

import errno
import json

import numpy as np
import pytest

from statewise.strips import methods
from statewise.strips.exact import frame
from statewise.strips.exact.ground import learn_exact
from statewise.strips.exact.lifted import learn_lifted_exact
from statewise.strips.exact.noisy import learn_lifted_noisy, learn_noisy
from statewise.strips.methods import learn, learn_schemas
from statewise.strips.model import learned as learned_folder
from statewise.strips.model.learned import Learned, read_learned_model
from statewise.strips.model.model import ActionModel
from statewise.strips.model.traces import Traces
from statewise.strips.neural.learning import Settings
from statewise.strips.planning.metrics import trace_accuracy
from statewise.strips.rivals.sift import learn_sift
from statewise.strips.trace_data.domains import Domain, domain
from statewise.strips.trace_data.random_traces import traces, with_noise
from statewise.strips.verification.verification import verify

QUICK = Settings(restarts=2, steps=50, check_every=25)
CLEAN = traces(domain("ferry:2x1"), 60, 20, 1)


def test_clean_traces_are_learned_exactly():
    report = learn(CLEAN, QUICK).report
    assert (report["method"], report["chosen"]) == (
        "exact",
        "the traces are free of noise; schemas explain all of them",
    )


def test_schemas_need_fewer_traces():
    ferry = domain("ferry:3x3")
    few = traces(ferry, 100, 30, 1)
    assert verify(learn(few).model, ferry, drawn_only=True)
    assert not verify(learn(few, method="exact").model, ferry, drawn_only=True)


def test_actions_that_are_not_of_schemas_are_learned_one_by_one():
    """Two names of the second form that behave differently: no schema explains them."""
    simple = traces(domain("simple"), 200, 10, 1)
    for names in (simple.actions, ("f x", "f y", "f z"), ("f x", "f y z", "g x")):
        renamed = Traces(tuple(names), simple.rows, simple.labels)
        report = learn(renamed).report
        assert report["method"] == "exact"
        assert report["chosen"].startswith("the traces are free of noise")
        assert ("schemas do not explain all of them" in report["chosen"]) == ("f z" in names)
        assert report["training_accuracy"] == 1


def test_a_method_may_be_asked_for(tmp_path):
    for method in ("exact", "neural"):
        report = learn(CLEAN, QUICK, method=method, folder=tmp_path / method).report
        assert (report["method"], report["chosen"]) == (method, "requested")
    with pytest.raises(ValueError, match="one of auto, exact, neural, hybrid, sift, locm"):
        learn(CLEAN, QUICK, method="magic")


def test_contradictory_traces_are_trained_on(tmp_path):
    noisy = with_noise(CLEAN, 0.3, "labels", 1)
    said = []
    report = learn(noisy, QUICK, folder=tmp_path / "out", say=said.append).report
    assert "contradict each other" in report["chosen"]
    held = report["held_out"]
    assert held["traces"] == 11
    assert list(held["explained"]) == ["schemas", "ground atoms", "training", "both"]
    assert held["explained"][held["taken"]] == max(held["explained"].values())
    figures = ", ".join(f"{name} {right:.4f}" for name, right in held["explained"].items())
    assert report["chosen"].endswith(f"of 11 held-out traces they explain: {figures}")
    assert json.loads((tmp_path / "out" / "report.json").read_text())["chosen"] == report["chosen"]
    assert Learned.load(tmp_path / "out").model.actions
    assert any(line.startswith("training: 0.") for line in said)
    assert not (tmp_path / "out" / "checkpoint.npz").exists()


def test_somewhat_noisy_traces_are_learned_exactly(tmp_path):
    noisy = with_noise(traces(domain("ferry:2x1"), 300, 20, 1), 0.05, "labels", 1)
    (tmp_path / "out").mkdir()
    said = []
    learned = learn(noisy, QUICK, folder=tmp_path / "out", say=said.append)
    report = learned.report
    assert report["method"] == "exact"
    assert "contradict each other" in report["chosen"]
    assert report["training_accuracy"] == pytest.approx(0.95)
    assert not (tmp_path / "out" / "seen.json").exists()  # certainty would rest on noisy traces
    assert any("treated as noisy" in line for line in said)
    with pytest.raises(ValueError, match="contradict each other"):
        learn(noisy, QUICK, method="exact")
    assert report["traces"]["count"] == 300
    assert report["chosen"].endswith("; then learned from all traces")
    assert report["held_out"]["traces"] == 59
    assert report["held_out"]["taken"] == "schemas"
    assert list(report["held_out"]["explained"]) == ["schemas", "ground atoms"]
    assert report["predicates"] == learn_lifted_noisy(noisy).report["predicates"]
    ground = learn_noisy(noisy).model
    assert ground != learned.model
    for given in ({"noisy": True}, {"settings": Settings(noise=0.05)}):
        assert learn(noisy, method="exact", **given).model == ground  # as asked for
        assert learn(noisy, **given).model == learned.model


def test_ground_atoms_are_taken_where_schemas_explain_fewer_noisy_traces():
    """Two switches of one schema that do the opposite."""
    model = ActionModel.of(
        ["at-a", "at-b", "power", "no-power"],
        {
            "move a b": (["at-a", "power"], ["at-b"], ["at-a"]),
            "move b a": (["at-b", "power"], ["at-a"], ["at-b"]),
            "press on": (["no-power"], ["power"], ["no-power"]),
            "press off": (["power"], ["no-power"], ["power"]),
        },
    )
    switches = Domain("switches", model, (0b0101,))
    clean = traces(switches, 200, 12, 1)
    noisy = with_noise(clean, 0.05, "labels", 1)
    assert learn(clean, QUICK).report["chosen"] == (
        "the traces are free of noise; schemas do not explain all of them: if some may be noisy, give `noise` auto"
    )
    report = learn(noisy, QUICK).report
    assert "predicates" not in report
    assert report["training_accuracy"] == pytest.approx(0.95)
    assert report["held_out"]["explained"]["schemas"] < report["held_out"]["explained"]["ground atoms"]
    assert learn_lifted_noisy(noisy).report["training_accuracy"] < 0.9


def test_a_later_model_is_better_only_beyond_the_noise_of_the_held_out_traces():
    def shown(*places):
        return np.isin(np.arange(100), places)

    assert methods.better(shown(1, 2), shown())
    assert not methods.better(shown(1), shown())
    assert not methods.better(shown(), shown())
    assert not methods.better(shown(1, 2, 3), shown(4))  # two more of four traces that decide
    assert methods.better(shown(1, 2, 3, 4, 5, 6), shown(7, 8))


def test_more_noise_than_is_to_be_tolerated_is_trained_on():
    noisy = with_noise(traces(domain("ferry:2x1"), 300, 20, 1), 0.05, "labels", 1)
    tolerant = Settings(restarts=2, steps=50, check_every=25, noise=0.05)
    assert learn(noisy, tolerant).report["method"] == "exact"
    strict = Settings(restarts=2, steps=50, check_every=25, noise=0.01)
    report = learn(noisy, strict).report
    assert report["chosen"].startswith("noise is tolerated; of 59 held-out traces they explain: schemas 0.9")
    assert list(report["held_out"]["explained"]) == ["schemas", "ground atoms", "training", "both"]


@pytest.mark.parametrize("lifted", [False, True])
def test_the_model_that_explains_most_held_out_traces_is_written(tmp_path, lifted):
    """One step of training explains nearly nothing; of these traces the exact method explains seven in ten."""
    noisy = with_noise(traces(domain("ferry:2x1"), 120, 20, 1), 0.3, "labels", 1)
    barely = Settings(restarts=1, steps=1, check_every=1)
    folder = tmp_path / "out"
    report = (learn_schemas if lifted else learn)(noisy, barely, noisy=True, folder=folder).report
    held = report["held_out"]
    assert held["explained"]["training"] < held["explained"]["schemas"] - 0.1
    assert held["taken"] != "training"
    assert held["explained"][held["taken"]] == max(held["explained"].values())
    written = read_learned_model(folder)
    assert trace_accuracy(written, noisy)["accuracy"] == pytest.approx(report["training_accuracy"])
    assert report["training_accuracy"] > 0.6
    assert json.loads((folder / "report.json").read_text())["held_out"] == held


def test_cut_training_is_compared_too_and_goes_on(tmp_path):
    """The exact model is written, and the same call trains on, on the same part of the traces."""
    noisy = with_noise(traces(domain("ferry:2x1"), 120, 20, 1), 0.3, "labels", 1)
    settings = Settings(restarts=1, steps=30, check_every=10)
    steps = []

    def stop():
        return len(steps) > 1

    def at_check(step, *_):
        steps.append(step)

    how = {"noisy": True, "folder": tmp_path / "out", "progress": at_check}
    report = learn(noisy, settings, stop=stop, **how).report
    assert report["held_out"]["taken"] in ("schemas", "ground atoms")
    assert report["unfinished"] == ["training: 20 of at most 30 steps", "both: not tried"]
    assert (tmp_path / "out" / "checkpoint.npz").exists()
    steps.clear()
    report = learn(noisy, settings, **{**how, "noisy": False}).report  # the checkpoint says that they are noisy
    assert steps == [30]
    assert report["chosen"].startswith("an interrupted run continues")
    assert not report["unfinished"]
    assert list(report["held_out"]["explained"]) == ["schemas", "ground atoms", "training", "both"]
    assert not (tmp_path / "out" / "checkpoint.npz").exists()


@pytest.mark.parametrize("learner", [learn, learn_schemas])
def test_training_follows_exact_learning_that_was_interrupted(tmp_path, learner):
    noisy = with_noise(CLEAN, 0.3, "labels", 1)
    stopped = learner(noisy, QUICK, noisy=True, folder=tmp_path / "out", stop=lambda: True).report
    assert "training: not tried" in stopped["unfinished"]
    assert (tmp_path / "out" / "checkpoint.npz").exists()
    report = learner(noisy, QUICK, noisy=True, folder=tmp_path / "out").report
    assert report["chosen"].startswith("an interrupted run continues")
    assert "training" in report["held_out"]["explained"]
    assert report["unfinished"] == []
    assert not (tmp_path / "out" / "checkpoint.npz").exists()


def test_held_out_traces_have_both_labels_and_are_always_the_same():
    drawn = traces(domain("ferry:2x1"), 60, 20, 1)
    part, held = methods.split(drawn)
    assert (len(part), len(held)) == (49, 11)
    assert sorted([*part.rows, *held.rows]) == sorted(drawn.rows)
    assert 0 < sum(held.labels) < len(held)
    assert methods.split(drawn) == (part, held)
    few = drawn.only([drawn.labels.index(0), drawn.labels.index(1)])
    assert methods.split(few) == (few, few)


def test_stopped_training_gives_a_model_and_goes_on(tmp_path):
    noisy = with_noise(CLEAN, 0.3, "labels", 1)
    left = iter(range(30))
    stopped = learn(noisy, QUICK, method="neural", stop=lambda: next(left, None) is None, folder=tmp_path).report
    assert stopped["unfinished"] == ["training: 30 of at most 50 steps"]
    whole = learn(noisy, QUICK, folder=tmp_path)
    assert whole.report["unfinished"] == []
    assert whole.model == learn(noisy, QUICK, method="neural").model
    assert (whole.theta == learn(noisy, QUICK, method="neural").theta).all()


def test_a_time_limit_holds_for_training_too():
    report = learn(CLEAN, Settings(steps=10_000_000, stay=10_000_000), method="neural", seconds=0.2).report
    assert report["unfinished"]


def test_traces_without_labels_need_no_negatives():
    report = learn(CLEAN.valid_only(), QUICK).report
    assert report["method"] == "exact"
    assert report["training_accuracy"] == 1
    with pytest.raises(ValueError, match="no negative traces"):
        learn(CLEAN.valid_only(), QUICK, method="neural")


def test_valid_actions_alone():
    given = Traces(("a", "b"), ((0, 1), (1,), (0,)), (1, 1, 0), (3, 5, 7))
    found = given.valid_only()
    assert (found.rows, found.labels, found.lines) == (((0,), (0,)), (0, 0), (3, 7))


@pytest.mark.parametrize("name", ["seen.json", "report.json", "model.json"])
def test_a_full_disk_leaves_no_part_of_a_model(tmp_path, monkeypatch, name):
    write = learned_folder.write_atomically

    def full(path, content):
        if path.name == name:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, content)

    monkeypatch.setattr(learned_folder, "write_atomically", full)
    for learner in (learn, learn_schemas):
        with pytest.raises(OSError, match="No space"):
            learner(CLEAN, QUICK, folder=tmp_path / "out")
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("learner", "seconds"), [(learn_exact, 0.1), (learn_lifted_exact, 0.001), (learn_sift, 0.001), (learn_noisy, 0.1)]
)
def test_the_best_model_so_far_is_given_when_time_is_up(monkeypatch, learner, seconds):
    """Of the ground atoms of the tiles there are thousands, which take minutes. Schemas may be found within 0.1
    seconds."""
    monkeypatch.setattr(frame, "GRACE", seconds)
    drawn = traces(domain("tiles:2x3"), 100, 30, 1)
    assert learner(drawn, seconds=seconds).report["unfinished"]


@pytest.mark.parametrize(
    ("given", "explained", "atoms_in_time", "schemas_taken"),
    [
        (CLEAN, 1, False, True),
        (CLEAN, 1, True, True),
        (CLEAN, 0.9, False, True),
        (CLEAN, 0.9, True, False),
        (CLEAN, 0, False, False),  # the atoms explain the valid traces
        (CLEAN.valid_only(), 1, True, False),  # of valid traces alone any model explains all
    ],
)
def test_schemas_found_before_the_time_was_up_are_kept(
    tmp_path, monkeypatch, given, explained, atoms_in_time, schemas_taken
):
    def schemas(traces, **how):
        learned = learn_lifted_exact(traces, **how)
        learned.report.update({"unfinished": ["listing"], "training_accuracy": explained})
        return learned

    def atoms(traces, **how):
        return learn_exact(traces, **how if atoms_in_time else {**how, "stop": lambda: True})

    monkeypatch.setattr(methods, "learn_lifted_exact", schemas)
    monkeypatch.setattr(methods, "learn_exact", atoms)
    report = learn(given, QUICK, folder=tmp_path / "out").report
    assert ("predicates" in report) == schemas_taken
    assert bool(report["unfinished"]) == (schemas_taken or not atoms_in_time)
    model = Learned.load(tmp_path / "out").model
    assert trace_accuracy(model, given)["accuracy"] == pytest.approx(report["training_accuracy"])
    assert report["training_accuracy"] == 1 or not schemas_taken


def test_noise_that_contradicts_nothing_is_found_by_schemas():
    world = domain("gripper:2")
    noisy = with_noise(traces(world, 120, 20, 2), 0.02, "actions", 2)
    learned = learn_schemas(noisy)
    assert learned.report["method"] == "exact"
    assert learned.report["chosen"] == (
        "the exact model classifies only 0.9167 of the traces correctly; of 23 held-out traces they explain: schemas "
        "0.9565; then learned from all traces"
    )
    assert learned.report["training_accuracy"] == pytest.approx(0.98, abs=0.005)
    assert verify(learned.ground(world.model.names), world, real_states=True, drawn_only=True)


@pytest.mark.parametrize("learner", [learn, learn_schemas, learn_exact, learn_lifted_noisy])
def test_a_misspelt_option_is_an_error(learner):
    for name in ("second", "reasons", "found"):
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'"):
            learner(CLEAN, **{name: None})
