"""Learning: what comes out, that it resumes exactly, what it says where it cannot, and what a pool takes together."""

import json
import zipfile
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from random_heads import NAMES, grouped, random_heads, true_and_junk

from statewise.strips.methods import learn
from statewise.strips.model import heads as heads_module
from statewise.strips.model.heads import Candidates, Heads, Judge, sound
from statewise.strips.model.learned import Learned, read_arrays, read_checkpoint
from statewise.strips.model.traces import Traces
from statewise.strips.neural.learning import RestartState, Settings, auto_atoms, learn_neural, pool
from statewise.strips.neural.transformer import Restarts
from statewise.strips.planning.metrics import trace_accuracy
from statewise.strips.trace_data.domains import domain
from statewise.strips.trace_data.random_traces import traces, with_noise
from statewise.strips.verification.containment import prune
from statewise.strips.verification.verification import verify

neural = partial(learn, method="neural")
SIMPLE = domain("simple")
GIVEN = traces(SIMPLE, 200, 10, 1)
QUICK = Settings(atoms=3, restarts=2, steps=600, learning_rate=0.05, check_every=50, stay=1)
SHORT = Settings(atoms=4, restarts=3, steps=500, learning_rate=0.05, check_every=25, stay=2, stall=150)


@pytest.fixture(scope="module")
def uninterrupted():
    return neural(GIVEN, SHORT)


def without_seconds(report):
    return {key: value for key, value in report.items() if "seconds" not in key}


class StoppedError(Exception):
    pass


def stop_at(wanted):
    def progress(step, *_):
        if step == wanted:
            raise StoppedError

    return progress


# what comes out


def test_simple_is_learned_exactly():
    seen = []
    learned = learn_neural(GIVEN, QUICK, progress=lambda *each: seen.append(each))
    assert verify(learned.model, SIMPLE)
    assert learned.model.names == SIMPLE.model.names
    assert trace_accuracy(learned.model, GIVEN)["accuracy"] == 1
    report = learned.report
    assert report["training_accuracy"] == 1
    assert report["pooled"]
    assert report["pool"]["negatives_caught"] == 1
    assert report["atoms"] == len(learned.model.atoms) == 3
    assert report["traces"]["count"] == 200
    assert report["traces"]["positive"] == 40
    best = report["restarts"][report["best_restart"]]
    assert best["end"] == "solved"
    assert best["accuracy"] == 1
    assert learned.theta.shape == (2, 3, 3, 3)
    steps = [step for step, *_ in seen]
    assert steps == [each["step"] for each in report["log"]] == list(range(50, steps[-1] + 1, 50))
    assert {(most, active) for _, most, _, active in seen} <= {(600, 0), (600, 1), (600, 2)}
    assert seen[-1][2].tolist() == pytest.approx([each["accuracy"] for each in report["restarts"]])
    json.dumps(report)


def test_the_number_of_atoms_is_found():
    learned = learn_neural(GIVEN, replace(QUICK, atoms=None, restarts=1))
    assert verify(learned.model, SIMPLE)
    assert learned.report["heads"] == auto_atoms(3) == 6
    assert len(learned.model.atoms) == 3


def test_flipped_labels_do_no_harm_where_they_are_expected():
    noisy = with_noise(GIVEN, 0.05, "labels", 1)
    learned = learn_neural(noisy, replace(QUICK, restarts=1, noise=0.05))
    assert verify(learned.model, SIMPLE)
    assert learned.report["pooled"]
    assert learned.report["training_accuracy"] == 0.95


def test_heads_of_several_restarts_make_up_what_none_of_them_has():
    """Two heads a restart, where three atoms are needed."""
    learned = learn_neural(GIVEN, Settings(atoms=2, restarts=4, steps=400, learning_rate=0.05, check_every=25))
    assert max(each["accuracy"] for each in learned.report["restarts"]) < 0.9
    assert learned.report["pooled"]
    assert learned.report["training_accuracy"] == learned.report["pool"]["training_accuracy"] == 1
    assert verify(learned.model, SIMPLE)


def test_a_pool_that_judges_better_than_the_best_restart_is_taken_though_it_leaves_some_uncaught():
    """Two heads a restart, where three atoms are needed."""
    settings = Settings(atoms=2, restarts=2, steps=800, learning_rate=0.02, check_every=50, seed=3)
    learned = neural(GIVEN, settings)
    best = max(each["accuracy"] for each in learned.report["restarts"])
    assert best < learned.report["pool"]["training_accuracy"] < 1
    assert learned.report["pooled"]
    assert learned.report["training_accuracy"] == learned.report["pool"]["training_accuracy"]


@pytest.mark.parametrize("asked", [False, None, True])
def test_a_pool_that_judges_worse_than_the_best_restart_is_taken_only_if_asked_for(asked):
    learned = learn_neural(GIVEN, replace(SHORT, pool=asked, steps=100))
    accuracies = [each["accuracy"] for each in learned.report["restarts"]]
    assert len(set(accuracies)) > 1
    assert accuracies[learned.report["best_restart"]] == max(accuracies)
    assert learned.report["pooled"] == bool(asked)
    if asked is False:
        assert learned.report["pool"] is None
    else:
        assert learned.report["pool"]["training_accuracy"] < max(accuracies)
    expected = learned.report["pool"]["training_accuracy"] if asked else max(accuracies)
    assert trace_accuracy(learned.model, GIVEN)["accuracy"] == learned.report["training_accuracy"] == expected


def test_restarts_end_when_they_are_done(uninterrupted):
    attempts = uninterrupted.report["restarts"]
    log = {each["step"]: each["accuracy"] for each in uninterrupted.report["log"]}
    assert {each["number"] for each in attempts} == {0, 1, 2}
    assert len({each["steps"] for each in attempts}) > 1, "the tests below are to see one end before another"
    for number, each in enumerate(attempts):
        course = [log[step][number] for step in sorted(log) if step <= each["steps"]]
        assert course[-1] == pytest.approx(each["accuracy"], abs=1e-4)
        if each["end"] == "solved":
            assert course[-2:] == [1, 1]
            assert [1, 1] not in [course[at : at + 2] for at in range(len(course) - 2)]
        elif each["end"] == "stalled":
            assert each["steps"] - each["best_step"] == 150
            assert max(course) == pytest.approx(log[each["best_step"]][number])
        else:
            assert each["steps"] == 500


def test_an_attempt_ends_solved_stalled_or_out_of_steps():
    def course(*accuracies, **more):
        attempt = RestartState(0)
        for place, accuracy in enumerate(accuracies, 1):
            assert not attempt.end
            attempt.record(accuracy, 100 * place, Settings(**({"steps": 1000, "stay": 2, "stall": 300} | more)))
        return attempt.end

    assert course(0.5, 1.0, 1.0) == "solved"
    assert course(0.5, 1.0, 0.9, 1.0) == ""
    assert course(*[1.0] * 5, stay=6) == ""  # right all the time is not stalled
    assert course(0.5, 1.0, 0.9, 1.0, 0.9) == "stalled"
    assert course(0.5, 0.4, 0.5, 0.5) == "stalled"
    assert course(0.5, 0.4, 0.6, 0.5, 0.5) == ""
    assert course(0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95) == "steps"
    assert course(0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 1.0, 1.0) == "solved"


# going on


def same(one: Learned, other: Learned) -> bool:
    """Bit for bit."""
    assert one.model == other.model
    assert without_seconds(one.report) == without_seconds(other.report)
    return np.array_equal(one.theta, other.theta)


def test_what_was_interrupted_goes_on_exactly(tmp_path, uninterrupted, monkeypatch):
    ends = sorted(each["steps"] for each in uninterrupted.report["restarts"])
    for at in (25, ends[0]):  # the second time just when a restart has ended
        with pytest.raises(StoppedError):
            neural(GIVEN, SHORT, folder=tmp_path, progress=stop_at(at))
        assert read_checkpoint(tmp_path)[0]["group.steps"] == at
        with pytest.raises(FileNotFoundError, match="holds no learned model: learning was interrupted; the same comm"):
            Learned.load(tmp_path)
    step = Restarts.step
    with monkeypatch.context() as patched:

        def killed(group):
            if group.steps == ends[0] + 37:  # between two looks: back to the last
                raise StoppedError
            return step(group)

        patched.setattr(Restarts, "step", killed)
        with pytest.raises(StoppedError):
            neural(GIVEN, SHORT, folder=tmp_path)
    assert read_checkpoint(tmp_path)[0]["group.steps"] == ends[0] + 25
    seen = []
    learned = neural(GIVEN, SHORT, folder=tmp_path, progress=lambda step, *_: seen.append(step))
    assert seen[0] == ends[0] + 50  # nothing is done twice
    assert same(learned, uninterrupted)
    assert same(Learned.load(tmp_path), learned)
    assert not (tmp_path / "checkpoint.npz").exists()
    with pytest.raises(FileExistsError, match="exists: choose another `out`, or give `overwrite`"):
        neural(GIVEN, SHORT, folder=tmp_path)


def test_interrupted_before_the_end_is_written(tmp_path, monkeypatch):
    settings = replace(SHORT, steps=50, atoms=None)
    with monkeypatch.context() as patched:
        patched.setattr(Learned, "save", lambda *_, **options: stop_at(0)(0))
        with pytest.raises(StoppedError):
            neural(GIVEN, settings, folder=tmp_path)
    assert same(neural(GIVEN, settings, folder=tmp_path), neural(GIVEN, settings))


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stopped")
    with pytest.raises(StoppedError):
        neural(GIVEN, SHORT, folder=folder, progress=stop_at(25))
    return folder


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 2}, r"interrupted run with other settings \(seed\)"),
        ({"restarts": 2, "noise": 0.1}, r"other settings \(restarts, noise\)"),
        ({"atoms": None}, r"other settings \(atoms\)"),
    ],
)
def test_a_folder_of_other_settings(stopped, change, message):
    with pytest.raises(ValueError, match=message):
        neural(GIVEN, replace(SHORT, **change), folder=stopped)


@pytest.mark.parametrize("other", [GIVEN.only(range(199)), GIVEN.only([1, 0, *range(2, 200)])])
def test_a_folder_of_other_traces(stopped, other):
    with pytest.raises(ValueError, match=f"{stopped} holds an interrupted run with other traces"):
        neural(other, SHORT, folder=stopped)


def test_a_damaged_checkpoint(tmp_path, stopped):
    content = (stopped / "checkpoint.npz").read_bytes()
    for damaged in (content[: len(content) // 2], b"", b"nothing of the kind"):
        (tmp_path / "checkpoint.npz").write_bytes(damaged)
        with pytest.raises(ValueError, match=r"checkpoint\.npz: damaged"):
            neural(GIVEN, SHORT, folder=tmp_path)
    np.savez(tmp_path / "checkpoint.npz", other=np.zeros(3))
    with pytest.raises(ValueError, match=r"checkpoint\.npz: damaged"):
        neural(GIVEN, SHORT, folder=tmp_path)


# the folder


def test_a_folder_without_a_model(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"holds no learned model$"):
        Learned.load(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"holds no learned model$"):
        Learned.load(tmp_path / "nowhere")


def test_a_damaged_folder(tmp_path, uninterrupted):
    def damage(name, content):
        uninterrupted.save(tmp_path)
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=name) as caught:
            Learned.load(tmp_path)
        return str(caught.value)

    assert "not JSON" in damage("model.json", b"{")
    assert "is not an action model of this version" in damage("model.json", b"[]")
    assert "atoms is missing" in damage("model.json", b'{"format": "statewise action model 1"}')
    assert "not JSON" in damage("report.json", b"{")
    whole = (tmp_path / "theta.npz").read_bytes()
    for content in (whole[:-30], b"", b"no arrays"):
        assert "damaged" in damage("theta.npz", content)
    np.savez(tmp_path / "other.npz", other=np.zeros(3))
    assert "damaged" in damage("theta.npz", (tmp_path / "other.npz").read_bytes())
    flipped = bytearray(whole)
    with zipfile.ZipFile(tmp_path / "other.npz") as archive:
        flipped[archive.infolist()[0].file_size] ^= 0xFF
    assert "damaged" in damage("theta.npz", bytes(flipped))
    uninterrupted.save(tmp_path)
    assert same(Learned.load(tmp_path), uninterrupted)


def test_no_flipped_bit_of_an_archive_goes_unnoticed(tmp_path):
    path, theta = tmp_path / "theta.npz", np.arange(6.0).reshape(2, 3)
    np.savez(path, theta=theta)
    whole, noticed = path.read_bytes(), []
    for place in range(0, 8 * len(whole), 5):
        flipped = bytearray(whole)
        flipped[place // 8] ^= 1 << place % 8
        path.write_bytes(flipped)
        try:
            assert read_arrays(path, "theta")["theta"].tolist() == theta.tolist()  # a bit of a date
        except ValueError as error:
            noticed.append(str(error))
    assert len(noticed) > len(whole)
    assert all(message.startswith(f"{path}: damaged: ") for message in noticed)


def test_a_file_that_cannot_be_read_is_not_called_damaged(tmp_path, uninterrupted):
    uninterrupted.save(tmp_path)
    (tmp_path / "theta.npz").unlink()
    with pytest.raises(FileNotFoundError, match=r"theta\.npz"):
        Learned.load(tmp_path)
    (tmp_path / "theta.npz").mkdir()
    with pytest.raises(OSError, match=r"theta\.npz") as caught:
        Learned.load(tmp_path)
    assert "damaged" not in str(caught.value)


# what cannot be learned


def test_without_negatives_there_is_nothing_to_learn():
    with pytest.raises(ValueError, match="no negative traces: a model that rejects nothing would explain the positive"):
        learn_neural(Traces(("a",), ((0,), (0, 0)), (0, 0)), QUICK)


def test_negatives_alone_are_enough():
    given = GIVEN.only([place for place, label in enumerate(GIVEN.labels) if label])
    learned = learn_neural(given, replace(QUICK, restarts=1))
    assert trace_accuracy(learned.model, given)["accuracy"] == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"atoms": 0}, "atoms must be at least 1, not 0: a model without atoms accepts all"),
        ({"restarts": 0}, "restarts must be at least 1, not 0"),
        ({"steps": 0}, "steps must be at least 1"),
        ({"batch": 0}, "batch must be at least 1"),
        ({"check_every": -1}, "check_every must be at least 1, not -1"),
        ({"stay": 0}, "stay must be at least 1"),
        ({"stall": 0}, "stall must be at least 1"),
        ({"noise": 0.5}, "noise must be at least 0 and below 0.5, not 0.5"),
        ({"noise": -0.1}, "noise must be at least 0 and below 0.5"),
        ({"learning_rate": 0.0}, "learning_rate must be above 0"),
        ({"learning_rate": float("nan")}, "learning_rate must be above 0"),
    ],
)
def test_settings_that_make_no_sense(change, message):
    with pytest.raises(ValueError, match=message):
        Settings(**change)


# heads


# the pool


@pytest.mark.parametrize(("spec", "num"), [("simple", 200), ("blocksworld:2", 400), ("ferry:2x2", 800)])
def test_a_pool_finds_the_true_model_among_junk(spec, num):
    world, given_traces, heads, _ = true_and_junk(spec, num, 400)
    judge = Judge(given_traces)
    found = pool(Candidates.alone(heads), judge)
    assert found.accuracy == found.caught == 1
    assert len(found.heads) == len(found.chosen) >= len(world.model.atoms)
    assert np.array_equal(found.heads.pre, heads.only(found.chosen).pre)
    model = found.heads.model(world.model.names)
    assert verify(model, world, drawn_only=True)  # what no walk can show remains open
    kept = prune(Candidates.alone(found.heads), world.model.names)
    assert len(kept) < len(found.heads)
    assert verify(found.heads.only(kept).model(world.model.names), model)


def test_with_noise_true_heads_stay_and_most_junk_goes():
    _, clean, heads, true = true_and_junk("blocksworld:2", 500, 300)
    noisy = Judge(with_noise(clean, 0.05, "labels", 1))
    assert not set(true) <= set(sound(Candidates.alone(heads), noisy))
    places = sound(Candidates.alone(heads), noisy, noise=0.05)
    assert set(true) <= set(places)
    assert len(places) < len(true) + 60


def test_a_pool_without_time_for_its_cover_says_so(monkeypatch):
    _, given_traces, heads, _ = true_and_junk("ferry:2x1", 300, 200)
    judge, candidates = Judge(given_traces), Candidates.alone(heads)
    assert pool(candidates, judge, threshold=float("inf")).proven
    assert pool(candidates, judge, threshold=0).proven  # no cover is needed
    monkeypatch.setattr(heads_module, "_solve", lambda *_: (None, False))
    hasty = pool(candidates, judge, threshold=float("inf"))
    assert not hasty.proven
    assert hasty.caught == 1


def test_without_evidence_the_smallest_set_that_catches_all_is_taken():
    world, given_traces, heads, _ = true_and_junk("ferry:2x1", 300, 200)
    judge, candidates = Judge(given_traces), Candidates.alone(heads)
    least = pool(candidates, judge, threshold=float("inf"))
    assert least.supported == 0
    assert least.caught == least.accuracy == 1
    assert len(least.chosen) <= len(world.model.atoms)
    everything = pool(candidates, judge, threshold=0)
    assert len(everything.chosen) == everything.sound == everything.supported == len(sound(candidates, judge))
    between = pool(candidates, judge)
    assert len(least.chosen) <= len(between.chosen) <= everything.sound


def test_negatives_that_no_head_catches_stay_uncaught():
    head = Heads(*(np.array([part], dtype=bool) for part in ([0, 0, 1], [0, 1, 0], [1, 0, 0])))
    found = pool(Candidates.alone(head), Judge(Traces(NAMES, ((0, 2), (1, 1)), (1, 1))))
    assert (found.caught, found.accuracy) == (0.5, 0.5)


def test_an_empty_pool():
    given_traces = traces(domain("simple"), 20, 8, 1)
    found = pool(Candidates.alone(random_heads(1, 0)), Judge(given_traces))
    assert (len(found.heads), found.sound, found.caught) == (0, 0, 0.0)
    assert found.accuracy == given_traces.positives / 20


# groups


def test_groups_stand_or_fall_together():
    good = ([0, 0, 1], [0, 1, 0], [1, 0, 0])  # a b c: c is rejected after a, unless b came between
    bad = ([0, 1, 0], [0, 0, 0], [1, 0, 0])  # b is rejected after a
    heads = Heads(*(np.array(columns, dtype=bool) for columns in zip(good, bad, good)))
    judge = Judge(Traces(NAMES, ((0, 2), (0, 1, 0, 2)), (1, 1)))
    assert sound(grouped(heads, [0, 1, 2]), judge).tolist() == [0, 2]
    assert sound(grouped(heads, [0, 0, 1]), judge).tolist() == [1]
    assert sound(grouped(heads, [0, 1, 1]), judge).tolist() == [0]
    assert len(grouped(heads, [0, 0, 1])) == 2
    alarms, catches = grouped(heads, [0, 0, 1]).verdicts(judge)
    assert alarms.tolist() == [[False, True], [False, False]]
    assert catches.tolist() == [[True, True], [True, True]]
    rejects = Candidates.alone(heads).rejects(judge)
    assert grouped(heads, [0, 0, 1]).rejects(judge).tolist() == pytest.approx([rejects[0] + rejects[1], rejects[2]])


def test_a_group_is_chosen_whole():
    world, given_traces, heads, true = true_and_junk("ferry:2x1", 300, 60)
    order = np.concatenate((true, np.setdiff1d(np.arange(len(heads)), true)))
    sorted_heads = heads.only(order)
    pairs = np.arange(len(order)) // 2  # the true heads come first: three good pairs
    found = pool(grouped(sorted_heads, pairs), Judge(given_traces))
    assert {0, 1, 2} <= set(found.chosen)
    assert len(found.heads) == 2 * len(found.chosen)
    assert verify(found.heads.model(world.model.names), world)


# what is superfluous
