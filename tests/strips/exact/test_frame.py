"""Exact learning goes on from what an interrupted call had listed."""

import json
from functools import partial

import pytest

from statewise.strips.exact import frame
from statewise.strips.exact.features import MOST, alternating
from statewise.strips.exact.frame import READING, Clock, Listed
from statewise.strips.exact.ground import learn_exact
from statewise.strips.exact.lifted import learn_lifted_exact
from statewise.strips.exact.noisy import learn_lifted_noisy, learn_noisy
from statewise.strips.exact.windows import Windows
from statewise.strips.methods import learn, learn_schemas
from statewise.strips.model.learned import Learned, read_checkpoint, read_schemas, write_checkpoint
from statewise.strips.trace_data.domains import domain
from statewise.strips.trace_data.random_traces import traces, with_noise

CLEAN = traces(domain("ferry:2x2"), 200, 20, 1)
NOISY = with_noise(CLEAN, 0.05, "labels", 1)
LEARNERS = {
    "atoms": (learn_exact, CLEAN),
    "schemas": (learn_lifted_exact, CLEAN),
    "atoms, noisy": (learn_noisy, NOISY),
    "schemas, noisy": (learn_lifted_noisy, NOISY),
}


def stop_at(calls):
    """A stop function that says yes from some call on."""
    left = iter(range(calls - 1))
    return lambda: next(left, None) is None


def model_of(learned):
    return getattr(learned, "schemas", None) or learned.model


@pytest.mark.parametrize("given", [CLEAN, NOISY], ids=["clean", "noisy"])
@pytest.mark.parametrize("call", [learn, learn_schemas])
def test_an_interrupted_call_goes_on_from_what_it_listed(tmp_path, monkeypatch, call, given):
    learner = partial(call, method="exact", noisy=given is NOISY)
    offered, stopped, cutting = [], [], False

    def noted(windows, *, known=(), seconds, stop):
        """As `alternating`; while `cutting` it ends after one feature."""
        found = alternating(windows, known=known, seconds=seconds, stop=stop, most=1 if cutting else MOST)
        offered.append((list(known), found))
        stopped.extend([] if found.complete else [found])
        return found

    monkeypatch.setattr(frame, "alternating", noted)
    whole = learner(given)
    every = list(offered)
    offered.clear()
    cutting = True
    cut = learner(given, folder=tmp_path / "out", stop=lambda: bool(stopped))
    cutting = False
    assert cut.report["unfinished"]
    kept = read_checkpoint(tmp_path / "out")[1]["progress"]["listed"]
    assert sum(map(len, kept.values())) == sum(len(found.features) for _, found in offered) > 0
    offered.clear()
    again = learner(given, folder=tmp_path / "out")
    assert again.report["unfinished"] == []
    assert not (tmp_path / "out" / "checkpoint.npz").exists()
    assert sum(len(known) for known, _ in offered) == sum(map(len, kept.values()))
    assert [set(found.features) for _, found in offered] == [set(found.features) for _, found in every]
    assert again.report["training_accuracy"] == whole.report["training_accuracy"]
    assert again.report["seconds"] >= cut.report["seconds"]
    with pytest.raises(FileExistsError):
        learner(given, folder=tmp_path / "out")


@pytest.mark.parametrize(
    ("given", "how", "shares"),
    [(CLEAN, {"method": "exact"}, (0, 0.6)), (CLEAN, {}, (0, 0.4, 0.8)), (NOISY, {"noisy": True}, (0, 0.6))],
    ids=["exact", "auto", "auto, noisy"],
)
def test_learn_goes_on_whatever_it_was_at(tmp_path, given, how, shares):
    """Stopped after more and more calls, in whichever learner that is, the same call ends as one that was not."""
    asked, cut = [], []
    whole = learn(given, **how, stop=lambda: bool(asked.append(None)))
    for calls in [1 + int(share * len(asked)) for share in shares]:
        folder = tmp_path / str(calls)
        learn(given, **how, folder=folder, stop=stop_at(calls))
        interrupted = (folder / "checkpoint.npz").exists()
        cut.append(interrupted)
        again = learn(given, **how, folder=folder, overwrite=not interrupted)
        assert again.report["unfinished"] == []
        assert again.report["training_accuracy"] == whole.report["training_accuracy"]
        assert Learned.load(folder).model == again.model
        assert read_schemas(folder) is None
    assert sum(cut) >= 2


def test_schemas_and_ground_atoms_do_not_go_on_from_each_other(tmp_path):
    learn_schemas(CLEAN, folder=tmp_path / "schemas", stop=stop_at(1))
    with pytest.raises(ValueError, match=r"interrupted run with other settings: .*`overwrite`"):
        learn(CLEAN, method="exact", folder=tmp_path / "schemas")
    assert learn(CLEAN, folder=tmp_path / "schemas", overwrite=True).report["unfinished"] == []
    assert read_schemas(tmp_path / "schemas") is None
    learn(CLEAN, method="exact", folder=tmp_path / "atoms", stop=stop_at(1))
    with pytest.raises(ValueError, match="interrupted run with other settings"):
        learn_schemas(CLEAN, folder=tmp_path / "atoms")
    with pytest.raises(ValueError, match="interrupted run with other traces"):
        learn(traces(domain("ferry:2x2"), 100, 20, 2), method="exact", folder=tmp_path / "atoms")


@pytest.mark.parametrize("seconds", [0.0, 0.25])
def test_no_time_is_not_the_time_of_a_call_without_a_limit(seconds):
    assert learn(CLEAN, method="exact", seconds=seconds).report["settings"]["seconds"] == seconds
    assert learn_schemas(CLEAN, seconds=seconds).report["settings"]["seconds"] == seconds


def test_what_was_read_of_some_traces_alone_is_not_kept(tmp_path):
    learned = learn(CLEAN, method="exact", folder=tmp_path / "out", stop=lambda: True)
    assert "reading all traces" in learned.report["unfinished"]
    assert read_checkpoint(tmp_path / "out")[1]["progress"]["listed"] == {}


@pytest.mark.parametrize("name", LEARNERS)
def test_what_holds_of_some_traces_alone_is_not_kept_for_other_learners(monkeypatch, name):
    """Also where one learner of a call reads some traces, and another one writes the folder; what was known stays."""
    learner, given = LEARNERS[name]
    whole = Listed()
    learner(given, listed=whole)
    known = {of: features[:1] for of, features in whole.features.items()}
    read = Clock.reading

    def cut_short(clock, rows, share=0.5):
        yield from read(clock, rows[:5], share)
        clock.cut.append(READING)

    monkeypatch.setattr(Clock, "reading", cut_short)
    for before in ({}, known):
        some = Listed(dict(before))
        assert READING in learner(given, listed=some).report["unfinished"]
        assert some.features == before


@pytest.mark.parametrize(
    "damage",
    [
        {"progress": {"listed": []}},
        {"progress": {"listed": {"actions, support 1": None}}},
        {"progress": {"listed": {"actions, support 1": ["12"]}}},
        {"progress": {"seconds": -1}},
        {"progress": {"listed": {"actions, support 1": [["0x1"]]}}},
        {"progress": {"listed": {"actions, support 1": [["one", "0x1"]]}}},
        {"progress": {"listed": {"actions, support 1": [[1, 2]]}}},
        {"progress": {"listed": {"actions, support 1": 3}}},
        {"progress": {"listed": {"actions, support 1": [["0x1", "0x10000000000"]]}}},
        {"progress": {"listed": {"actions, support 1": [["-0x1", "0x1"]]}}},
        {"progress": {}},
        {"format": 1},
        {"format": None},
    ],
    ids=json.dumps,
)
def test_a_damaged_checkpoint(tmp_path, damage):
    learn(CLEAN, method="exact", folder=tmp_path, stop=lambda: True)
    facts = read_checkpoint(tmp_path)[1]
    if "progress" in damage:
        kept = {key: facts["progress"][key] for key in ("results", "log", "seconds")}
        damage = {"progress": {**kept, **damage["progress"]}}
    write_checkpoint(tmp_path, {}, {**facts, **damage})
    with pytest.raises(ValueError, match=r"checkpoint\.npz: damaged: .*: start over with `overwrite`"):
        learn(CLEAN, method="exact", folder=tmp_path)
    assert learn(CLEAN, method="exact", folder=tmp_path, overwrite=True).report["unfinished"] == []


def test_without_a_checkpoint_nothing_is_known(tmp_path):
    assert Listed.read(tmp_path, CLEAN, lifted=False) == Listed()
    windows = Windows.of(CLEAN)
    some = Listed()
    found = some.alternating(None, windows, seconds=60.0, stop=lambda: False)
    assert set(found.features) == set(alternating(windows).features)
    some.write(tmp_path, CLEAN, 1.5, lifted=False)
    back = Listed.read(tmp_path, CLEAN, lifted=False)
    assert (back.features, back.seconds) == (some.features, 1.5)
