"""Experiments as lists of cells, and a ledger that is gone on with."""

import json
from collections import Counter
from dataclasses import asdict
from functools import partial

import pytest

from statewise.json_files import check
from statewise.strips import reproduction as module
from statewise.strips.domains import domain
from statewise.strips.reproduction import EXPERIMENTS, MAX_LENGTH, RECORD, SIZES, Cell, reproduce, run_cell
from statewise.strips.settings import Attempt, Settings


def cells(name, draws=1):
    known = EXPERIMENTS[name]
    return known.cells(known.domains, known.sizes, draws)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_cells_have_names_of_their_own(name):
    found = cells(name, 3)
    assert len(found) == 3 * len(cells(name))
    assert len({cell.name for cell in found}) == len(found)
    for cell in found:
        assert len(domain(cell.domain).model.atoms) >= 3
        assert cell.name.startswith(f"{cell.domain} {cell.size} draw {cell.draw}")
    assert [cell.draw for cell in found] == sorted(cell.draw for cell in found)


def test_table_1_has_the_paper_s_cells():
    found = cells("table1")
    by_domain = {name: [cell.size for cell in found if cell.domain == name] for name in MAX_LENGTH}
    assert by_domain.pop("simple") == [50, 100, 200, 500]
    assert all(sizes == [50, 100, 200, 500, 1000, 2000] == list(SIZES) for sizes in by_domain.values())
    assert {(cell.domain, cell.max_length) for cell in found} == {
        ("simple", 10), ("blocksworld:2", 20), ("ferry:2x1", 20), ("blocksworld:3", 30), ("ferry:2x2", 30)
    }  # fmt: skip
    assert {(cell.atoms, cell.noise, cell.restarts) for cell in found} == {("true", 0.0, 10)}


def test_the_other_experiments():
    assert {cell.atoms for cell in cells("atoms")} == {"auto"}
    assert max(cell.size for cell in cells("atoms") if cell.domain == "simple") == 200
    kinds = Counter((cell.noise, cell.noise_of) for cell in cells("noise"))
    assert set(kinds) == {(share, of) for share in (0.01, 0.05, 0.1) for of in ("labels", "actions")}
    assert set(kinds.values()) == {3}
    assert {cell.domain for cell in cells("larger")} == {"blocksworld:4", "ferry:3x3", "gripper:3"}


def test_a_name_tells_what_is_unusual():
    assert Cell("simple", 50, 1, 10).name == "simple 50 draw 1"
    unusual = Cell("simple", 50, 2, 10, atoms="auto", noise=0.05, noise_of="actions", restarts=3)
    assert unusual.name == "simple 50 draw 2 atoms=auto noise=0.05 of actions restarts=3"


@pytest.fixture
def quick(monkeypatch):
    """Few test traces, few steps."""
    from statewise.strips import settings

    monkeypatch.setattr(module, "TEST", 200)
    few = partial(settings.Settings, steps=700, learning_rate=0.05, check_every=50, stay=1)
    monkeypatch.setattr(settings, "Settings", few)


def test_a_cell_draws_learns_and_measures(quick):
    record = run_cell(Cell("simple", 150, 1, 10, restarts=2))
    assert check(record, RECORD, "the record") is record
    assert json.loads(json.dumps(record)) == record
    assert record["cell"] == "simple 150 draw 1 restarts=2"
    assert (record["domain"], record["size"], record["true_atoms"]) == ("simple", 150, 3)
    single, pooled = record["single"], record["pooled"]
    assert all(len(single[key]) == 2 for key in ("train", "test", "steps", "end"))
    assert record["mean_test"] == pytest.approx(sum(single["test"]) / 2)
    assert pooled["equivalent"] == dict.fromkeys(("definition_1", "real_states", "drawn_traces"), "equivalent")
    assert pooled["test"] == pooled["train"] == 1
    assert pooled["atoms"] == 3
    assert pooled["simplest"]["atoms"] <= 3
    assert 0 < pooled["simplest"]["recall"] <= 1
    assert pooled["pool"]["negatives_caught"] == 1
    solved = [place for place, accuracy in enumerate(single["train"]) if accuracy == 1]
    assert single["best"] == solved[0]
    assert single["best_equivalent"] == pooled["equivalent"]
    assert single["equivalent"]["definition_1"] >= 1
    assert single["test"][single["best"]] == 1


def test_cells_are_told_the_truth_about_noise_and_atoms(quick, monkeypatch):
    from statewise.strips import learning

    class SeenError(Exception):
        pass

    def instead(given, settings):
        raise SeenError(given, settings)

    monkeypatch.setattr(learning, "learn_neural", instead)

    def seen(**more):
        with pytest.raises(SeenError) as caught:
            run_cell(Cell("simple", 50, 4, 10, **more))
        return caught.value.args

    clean, settings = seen()
    assert (settings.atoms, settings.noise, settings.seed, settings.restarts) == (3, 0.0, 4, 10)
    damaged, settings = seen(noise=0.1, noise_of="labels", atoms="auto", restarts=2)
    assert (settings.atoms, settings.noise, settings.seed, settings.restarts) == (None, 0.1, 4, 2)
    assert damaged.rows == clean.rows
    assert sum(one != other for one, other in zip(clean.labels, damaged.labels)) == 5
    damaged, _ = seen(noise=0.1, noise_of="actions")
    assert damaged.labels == clean.labels
    assert sum(one != other for one, other in zip(clean.rows, damaged.rows)) == 5


def test_the_paper_s_protocol_has_more_steps_and_no_stall_rule(quick, monkeypatch, tmp_path):
    from statewise.strips import learning

    class SeenError(Exception):
        pass

    def instead(given, settings):
        raise SeenError(settings)

    monkeypatch.setattr(learning, "learn_neural", instead)

    def seen(**more):
        with pytest.raises(SeenError) as caught:
            reproduce("table1", tmp_path, domains=["simple"], sizes=[50], **more)
        return caught.value.args[0]

    assert (seen().steps, seen().stall) == (20_000, 5_000)
    assert (seen(protocol="paper").steps, seen(protocol="paper").stall) == (100_000, None)
    assert (seen(protocol="paper", steps=300).steps, seen(steps=300).stall) == (300, 5_000)
    with pytest.raises(ValueError, match="unknown protocol 'late': choices: early, paper"):
        reproduce("table1", tmp_path, protocol="late")
    names = {Cell("simple", 50, 1, 10, **how).name for how in ({}, {"steps": 300}, {"steps": 300, "stall": False})}
    assert names == {"simple 50 draw 1", "simple 50 draw 1 steps=300", "simple 50 draw 1 steps=300 no stall"}


def test_a_restart_without_the_stall_rule_goes_on():
    patient, hasty = Settings(stall=None, steps=90_000), Settings(steps=90_000)
    ends = {}
    for settings in (patient, hasty):
        attempt = Attempt(0)
        for step in range(250, 90_001, 250):
            if not attempt.end:
                attempt.record(0.9, step, settings)
        ends[settings.stall] = attempt.end, attempt.steps
    assert ends == {None: ("steps", 90_000), 5_000: ("stalled", 5_250)}


# the ledger


@pytest.fixture
def ran(monkeypatch):
    """Cells are counted, not run."""
    done = []

    def instead(cell):
        done.append(cell.name)
        if len(done) == 3 and cell.size == 100:
            raise KeyboardInterrupt
        same = dict.fromkeys(module.NOTIONS, "equivalent")
        return {
            "cell": cell.name, **asdict(cell), "seconds": 0.1, "true_atoms": 3, "mean_test": 1.0,
            "single": {"train": [1.0], "test": [1.0], "best": 0, "best_equivalent": same},
            "pooled": {"test": 1.0, "atoms": 3, "predicates": 3, "equivalent": same},
        }  # fmt: skip

    monkeypatch.setattr(module, "run_cell", instead)
    return done


def test_what_is_in_the_ledger_is_not_computed_again(tmp_path, ran):
    names = [f"{name} {size} draw 1" for size in (50, 100) for name in ("simple", "ferry:2x1")]
    wish = {"domains": ["simple", "ferry:2x1"], "sizes": [50, 100]}
    with pytest.raises(KeyboardInterrupt):
        reproduce("table1", tmp_path, **wish)
    assert ran == names[:3]
    seen = []
    records = reproduce("table1", tmp_path, **wish, progress=lambda *each: seen.append(each))
    assert ran == names[:3] + names[2:]
    assert [record["cell"] for record in records] == names
    assert [(done, total) for done, total, _ in seen] == [(3, 4), (4, 4)]
    assert reproduce("table1", tmp_path, **wish) == records
    assert len(ran) == 5
    more = reproduce("table1", tmp_path, domains=["simple"], sizes=[50, 1000, 200])
    assert [record["cell"] for record in more] == ["simple 50 draw 1", "simple 200 draw 1"]
    assert len(ran) == 6
    lines = (tmp_path / "table1.jsonl").read_text().splitlines()
    assert [json.loads(line)["cell"] for line in lines[1:]] == [*names, "simple 200 draw 1"]


def test_each_experiment_has_a_ledger_of_its_own(tmp_path, ran):
    for name in ("table1", "atoms"):
        reproduce(name, tmp_path, domains=["simple"], sizes=[50])
    assert ran == ["simple 50 draw 1", "simple 50 draw 1 atoms=auto"]
    (tmp_path / "noise.jsonl").write_bytes((tmp_path / "table1.jsonl").read_bytes())
    with pytest.raises(ValueError, match="started with other settings: experiment was table1, is noise"):
        reproduce("noise", tmp_path, domains=["simple"], sizes=[50])


def test_larger_domains_may_be_any(tmp_path, ran):
    found = reproduce("larger", tmp_path, domains=["hanoi:2"], sizes=[50])
    assert [record["cell"] for record in found] == ["hanoi:2 50 draw 1"]


@pytest.mark.parametrize(
    ("experiment", "domains", "message"),
    [
        ("table2", None, "unknown experiment 'table2': choices: table1, larger, atoms, noise"),
        ("table1", ["chess"], "'chess' is not a domain; choices: simple"),
        ("table1", ["blocksworld:4"], "table1 has the domains simple, blocksworld:2, .*, not blocksworld:4"),
        ("noise", ["hanoi:2"], "noise has the domains .*, not hanoi:2"),
    ],
)
def test_unknown_wishes(tmp_path, ran, experiment, domains, message):
    with pytest.raises(ValueError, match=message):
        reproduce(experiment, tmp_path, domains=domains)
    assert not ran
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_cells_in_processes_of_their_own(tmp_path):
    wish = {"domains": ["simple"], "sizes": [50], "draws": 2}
    parallel = reproduce("table1", tmp_path / "two", **wish, jobs=2)
    single = reproduce("table1", tmp_path / "one", **wish)

    def plain(records):
        return sorted(({**record, "seconds": 0} for record in records), key=lambda record: record["cell"])

    assert plain(parallel) == plain(single)
