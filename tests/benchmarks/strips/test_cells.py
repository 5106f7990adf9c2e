"""STRIPS experiments as lists of cells, and a ledger that another call continues."""

import json
import multiprocessing
import os
import re
import time
from collections import Counter
from dataclasses import asdict, replace

import pytest
from strips import cells as module
from strips import report
from strips.cells import EXPERIMENTS, MAX_LENGTH, RECORD, SIZES, Cell, reproduce, run_cell
from strips.report import reproduction_text, save_costs, save_reproduction
from strips.reproduce import main

from statewise.runtime.json_files import check
from statewise.strips.exact.lifted import learn_lifted_exact
from statewise.strips.neural.learning import RestartState, Settings
from statewise.strips.trace_data.domains import domain
from statewise.strips.trace_data.random_traces import traces


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
        ("simple", 10),
        ("blocksworld:2", 20),
        ("ferry:2x1", 20),
        ("blocksworld:3", 30),
        ("ferry:2x2", 30),
    }
    assert {(cell.atoms, cell.noise, cell.restarts) for cell in found} == {("true", 0.0, 10)}


def test_the_other_experiments():
    assert {cell.atoms for cell in cells("atoms")} == {"auto"}
    assert max(cell.size for cell in cells("atoms") if cell.domain == "simple") == 200
    kinds = Counter((cell.noise, cell.noise_of) for cell in cells("noise"))
    assert set(kinds) == {(share, of) for share in (0.01, 0.05, 0.1) for of in ("labels", "actions")}
    assert set(kinds.values()) == {3}
    assert {(cell.noise, cell.noise_of) for cell in cells("damage")} == {(0.05, "both"), (0.05, "steps")}
    assert {cell.domain for cell in cells("larger")} == {"blocksworld:4", "ferry:3x3", "gripper:3"}


def test_a_name_shows_what_is_unusual():
    limited = Cell("simple", 50, 1, 10, method="auto", limit=60.0)
    assert limited.name == "simple 50 draw 1 auto limit=60"
    assert Cell("simple", 50, 1, 10).name == "simple 50 draw 1"
    unusual = Cell("simple", 50, 2, 10, atoms="auto", noise=0.05, noise_of="actions", restarts=3)
    assert unusual.name == "simple 50 draw 2 atoms=auto noise=0.05 of actions restarts=3"


@pytest.fixture
def quick(monkeypatch):
    """Few test traces, few steps."""
    monkeypatch.setattr(module, "TEST", 200)
    few = {"steps": 700, "learning_rate": 0.05, "check_every": 50, "stay": 1}
    whole = module._settings
    monkeypatch.setattr(module, "_settings", lambda cell, **more: replace(whole(cell, **more), **few))


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
    class SeenError(Exception):
        pass

    def instead(given, settings):
        raise SeenError(given, settings)

    monkeypatch.setattr(module, "learn_neural", instead)

    def seen(**more):
        with pytest.raises(SeenError) as caught:
            run_cell(Cell("simple", 50, 4, 10, **more))
        return caught.value.args

    clean, settings = seen()
    assert (settings.atoms, settings.noise, settings.seed, settings.restarts) == (3, 0.0, 4, 10)
    noisy, settings = seen(noise=0.1, noise_of="labels", atoms="auto", restarts=2)
    assert (settings.atoms, settings.noise, settings.seed, settings.restarts) == (None, 0.1, 4, 2)
    assert noisy.rows == clean.rows
    assert sum(one != other for one, other in zip(clean.labels, noisy.labels)) == 5
    noisy, _ = seen(noise=0.1, noise_of="actions")
    assert noisy.labels == clean.labels
    assert sum(one != other for one, other in zip(clean.rows, noisy.rows)) == 5


def test_the_paper_s_protocol_has_more_steps_and_no_stall_rule(monkeypatch, tmp_path):
    class SeenError(Exception):
        pass

    def instead(given, settings):
        raise SeenError(settings)

    monkeypatch.setattr(module, "learn_neural", instead)

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
        attempt = RestartState(0)
        for step in range(250, 90_001, 250):
            if not attempt.end:
                attempt.record(0.9, step, settings)
        ends[settings.stall] = attempt.end, attempt.steps
    assert ends == {None: ("steps", 90_000), 5_000: ("stalled", 5_250)}


# exact learning beside training


def test_exact_learning_is_a_cell_on_the_same_traces(quick, monkeypatch):
    seen = []

    def learn(given):
        seen.append(given)
        return learn_exact(given)

    learn_exact = module.learn_exact
    monkeypatch.setattr(module, "learn_exact", learn)
    records = {}
    for method in ("exact", "positive-only"):
        record = records[method] = run_cell(Cell("simple", 150, 1, 10, method=method))
        assert check(record, RECORD, "the record") is record
        assert json.loads(json.dumps(record)) == record
        assert record["cell"] == f"simple 150 draw 1 {method}"
        assert "single" not in record
        assert {"seconds", "cpu_seconds"} <= set(record)
        assert record["certainty"]["right"] == 1
    assert seen[0] == traces(domain("simple"), 150, 10, 1)
    assert seen[1] == seen[0].valid_only()
    exact, positive = records["exact"]["pooled"], records["positive-only"]["pooled"]
    assert exact["equivalent"] == dict.fromkeys(module.NOTIONS, "equivalent")
    assert exact["test"] == 1
    # No negative trace says that c must come between a and b more than that they alternate.
    assert positive["test"] < 1
    assert positive["equivalent"]["drawn_traces"] == "different"
    assert records["positive-only"]["certainty"]["decided_negatives"] == 0


def test_schemas_from_valid_actions_are_verified_on_larger_instances(quick):
    record = run_cell(Cell("ferry:3x2", 60, 1, 30, atoms="lifted", restarts=5, method="positive-only"))
    assert check(record, module.LIFTED_RECORD, "the record") is record
    assert record["cell"] == "ferry:3x2 60 draw 1 atoms=lifted positive-only"
    assert {name: each["drawn_traces"] for name, each in record["pooled"]["equivalent"].items()} == dict.fromkeys(
        ("ferry:3x2", "ferry:3x3", "ferry:4x4"), "equivalent"
    )
    assert record["pooled"]["test"] == 1


def test_a_domain_without_larger_instances_is_verified_on_its_own(quick):
    predicates = {}
    for method in ("exact", "sift", "locm"):
        record = run_cell(Cell("gripper:3", 20, 1, 40, atoms="lifted", restarts=5, method=method, drawn_only=True))
        assert check(record, module.LIFTED_RECORD, "the record") is record
        assert record["pooled"]["equivalent"] == {"gripper:3": {"drawn_traces": "equivalent"}}
        predicates[method] = record["pooled"]["predicates"]
    report = learn_lifted_exact(traces(domain("gripper:3"), 20, 40, 1)).report
    assert predicates["exact"] == report["predicates"]
    alternating = report["predicates"] - report["not_alternating"]
    assert alternating < predicates["sift"]  # which weighs nothing, and finds only those that alternate
    assert predicates["locm"] > 0


def test_all_experiments_draw_the_same_traces():
    found = {(cell.domain, cell.max_length) for name in ("table1", "lifted", "noise") for cell in cells(name)}
    wide = ("blocksworld:3", "gripper:3")
    found |= {
        (cell.domain, cell.max_length)
        for name in ("larger", "noise")
        for cell in EXPERIMENTS[name].cells(wide, (50,), 1)
    }
    assert len(found) == len({name for name, _ in found})
    assert {("blocksworld:3", 30), ("gripper:3", 40)} <= found


def test_learners_for_comparison_are_cells_on_the_same_traces(quick):
    few = {
        method: run_cell(Cell("ferry:3x3", 50, 1, 40, method=method, drawn_only=True))
        for method in ("exact", "auto", "sift", "locm")
    }
    for record in few.values():
        assert check(record, RECORD, "the record") is record
        assert record["pooled"]["equivalent"].keys() == {"drawn_traces"}
        assert "simplest" not in record["pooled"]
    # `strips learn` takes schemas, which need fewer traces; sift keeps what alternates by chance.
    assert few["auto"]["pooled"]["equivalent"]["drawn_traces"] == "equivalent"
    assert few["exact"]["pooled"]["equivalent"]["drawn_traces"] == "different"
    assert few["sift"]["pooled"]["test"] < few["exact"]["pooled"]["test"] < 1
    assert few["auto"]["cell"] == "ferry:3x3 50 draw 1 auto drawn only"
    assert [("certainty" in record) for record in few.values()] == [True, False, False, False]
    assert 0.5 < few["locm"]["pooled"]["test"] < 1


def test_noisy_traces_are_a_cell_of_the_exact_method(quick):
    cell = Cell("ferry:2x1", 200, 1, 20, noise=0.05, noise_of="labels", drawn_only=True)
    found = {method: run_cell(replace(cell, method=method)) for method in ("exact", "auto", "sift")}
    for record in found.values():
        assert check(record, RECORD, "the record") is record
        assert "certainty" not in record  # what noisy traces show is not certain
    assert found["exact"]["cell"] == "ferry:2x1 200 draw 1 noise=0.05 of labels exact drawn only"
    assert found["exact"]["pooled"]["train"] == 0.95  # the noisy traces alone are left unexplained
    assert found["exact"]["pooled"]["test"] == found["auto"]["pooled"]["test"] == 1
    assert found["sift"]["pooled"]["test"] < 1


def test_both_methods_together_are_a_cell_on_the_same_traces(quick):
    cell = Cell("simple", 150, 1, 10, noise=0.05, noise_of="labels", restarts=2, drawn_only=True)
    found = {method: run_cell(replace(cell, method=method)) for method in ("hybrid", "exact")}
    record = found["hybrid"]
    assert check(record, RECORD, "the record") is record
    assert record["cell"] == "simple 150 draw 1 noise=0.05 of labels hybrid drawn only"
    assert "single" not in record
    assert record["pooled"]["equivalent"] == {"drawn_traces": "equivalent"}
    assert found["exact"]["pooled"]["equivalent"] == {"drawn_traces": "different"}  # not all atoms alternate


def test_test_traces_are_drawn_once_for_all_sizes_and_methods(monkeypatch):
    one, other = (Cell("ferry:2x1", size, 1, 20, method=method) for size, method in ((20, "exact"), (50, "sift")))
    monkeypatch.setattr(module, "TEST", 30)
    assert module._test_traces(one) is module._test_traces(other)
    assert len(module._test_traces(one)) == 30
    assert module._test_traces(replace(one, draw=2)).rows != module._test_traces(one).rows


def test_symmetry_adds_renamed_traces(monkeypatch):
    class SeenError(Exception):
        pass

    def instead(cell, world, given):
        raise SeenError(given)

    monkeypatch.setattr(module, "_run_neural", instead)
    with pytest.raises(SeenError) as caught:
        run_cell(Cell("ferry:2x2", 20, 1, 10, symmetry=True))
    more, given = caught.value.args[0], traces(domain("ferry:2x2"), 20, 10, 1)
    assert len(more) > 2 * len(given)
    assert set(zip(given.rows, given.labels)) <= set(zip(more.rows, more.labels))


def test_every_method_has_its_cells(tmp_path, ran):
    reproduce("table1", tmp_path, domains=["simple"], sizes=[50], methods=["neural", "exact", "positive-only"])
    assert ran == ["simple 50 draw 1", "simple 50 draw 1 exact", "simple 50 draw 1 positive-only"]
    reproduce("table1", tmp_path, domains=["simple"], sizes=[50], methods=["exact"], protocol="paper")
    assert len(ran) == 3  # a protocol of training does not concern it
    reproduce("table1", tmp_path, domains=["simple"], sizes=[50], symmetry=True)
    assert ran[3:] == ["simple 50 draw 1 symmetry"]


# the report


def record(method, size, draw, outcome, test, **more):
    return {
        "cell": f"{method} {size} {draw}",
        "domain": "ferry:2x1",
        "size": size,
        "draw": draw,
        "noise": 0.0,
        "noise_of": "labels",
        "atoms": "true",
        "seconds": 1.0,
        "true_atoms": 6,
        "method": method,
        "pooled": {"test": test, "atoms": 7, "equivalent": dict.fromkeys(module.NOTIONS, outcome)},
        **more,
    }


def test_the_fewest_traces_hold_for_all_draws_and_all_larger_sizes():
    outcomes = {20: "ed", 50: "ee", 100: "de", 200: "ee", 500: "ee"}
    words = {"e": "equivalent", "d": "different"}
    records = [
        record("exact", size, draw, words[letter], 0.9 if size == 200 else 1.0, cpu_seconds=float(draw))
        for size, letters in outcomes.items()
        for draw, letter in enumerate(letters, 1)
    ]
    records += [record("positive-only", 50, draw, "unknown", 1.0) for draw in (1, 2)]
    text = reproduction_text("table1", records)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]
    fewest = rows[[row[:2] for row in rows].index(["domain", "method"]) + 2 :]
    assert fewest == [
        ["ferry:2x1", "exact", "2", "20, 50, 100, 200, 500", "200", "500", "1.50"],
        ["ferry:2x1", "positive-only", "2", "50", "not reached", "50", "-"],
    ]
    assert [row[2] for row in rows if row[:2] == ["ferry:2x1", "50"]] == ["exact", "positive-only"]
    for width in (80, 100):
        shown = reproduction_text("table1", records, width)
        assert max(map(len, shown.splitlines())) <= width
        assert "restarts: train" not in shown  # nothing was trained
        headers = [line for line in shown.splitlines() if line.startswith("domain")]
        assert " ".join(headers).count("learned: test") == 1
        assert "not reached" in shown


def test_curves_of_all_methods_share_a_panel(monkeypatch, tmp_path):
    panels = []
    monkeypatch.setattr(report, "save_panels", lambda found, path: panels.extend(found))
    single = {"single": {"train": [1.0], "test": [0.8], "best": 0}, "mean_test": 0.7}
    save_reproduction(
        [record("exact", 50, draw, "equivalent", value) for draw, value in ((1, 0.9), (2, 1.0))]
        + [record("neural", 50, 1, "different", 0.85, **single)],
        tmp_path / "x.png",
    )
    (panel,) = panels
    assert panel.title == "ferry:2x1"
    assert {curve.label: list(curve.y) for curve in panel.curves} == {
        "neural, pooled": [0.85],
        "neural, best restart by training": [0.8],
        "neural, mean of restarts": [0.7],
        "exact": [pytest.approx(0.95)],
        "paper, best by training": [0.982],
    }


def test_costs_are_curves_by_domain(monkeypatch, tmp_path):
    panels = []
    monkeypatch.setattr(report, "save_panels", lambda found, path: panels.extend(found))
    records = [
        record("exact", size, draw, "unknown", 1.0, cpu_seconds=float(size * draw), memory=memory)
        for size in (50, 100)
        for draw, memory in ((1, None), (3, 8.0))
    ]
    records += [{**each, "domain": "blocksworld:2"} for each in records[:1]] + [record("neural", 50, 1, "unknown", 1.0)]
    save_costs(records, tmp_path / "x.png")
    assert [(panel.title, panel.y_title, panel.log_y) for panel in panels] == [
        ("exact", "CPU seconds", True),
        ("exact", "MiB", False),
    ]
    assert [{curve.label: (curve.x, curve.y) for curve in panel.curves} for panel in panels] == [
        {"ferry:2x1 (6 actions)": ([50, 100], [100, 200]), "blocksworld:2 (8 actions)": ([50], [50])},
        {"ferry:2x1 (6 actions)": ([50, 100], [8, 8])},
    ]


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
            "cell": cell.name,
            **asdict(cell),
            "seconds": 0.1,
            "true_atoms": 3,
            "mean_test": 1.0,
            "single": {"train": [1.0], "test": [1.0], "best": 0, "best_equivalent": same},
            "pooled": {"test": 1.0, "atoms": 3, "predicates": 3, "equivalent": same},
        }

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
        ("atoms", ["hanoi:2"], "atoms has the domains .*, not hanoi:2"),
    ],
)
def test_unknown_wishes(tmp_path, ran, experiment, domains, message):
    with pytest.raises(ValueError, match=message):
        reproduce(experiment, tmp_path, domains=domains)
    assert not ran
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("experiment", "methods", "message"),
    [
        (
            "table1",
            ["exact", "guess"],
            "unknown method 'guess': choices: neural, exact, positive-only, auto, hybrid, sift, locm",
        ),
        ("noise", ["exact", "positive-only"], "noise: without negative traces, noise cannot be distinguished from"),
        ("lifted", ["auto"], "lifted: the method auto learns ground models: choose exact"),
        ("lifted", ["exact", "hybrid"], "lifted: the method hybrid learns ground models: choose exact"),
    ],
)
def test_unknown_methods(tmp_path, ran, experiment, methods, message):
    with pytest.raises(ValueError, match=message):
        reproduce(experiment, tmp_path, methods=methods)
    assert not ran


@pytest.mark.slow
def test_cells_in_processes_of_their_own(tmp_path):
    wish = {"domains": ["simple"], "sizes": [50], "draws": 2}
    parallel = reproduce("table1", tmp_path / "two", **wish, jobs=2)
    single = reproduce("table1", tmp_path / "one", **wish)

    def plain(records):
        measured = {"seconds": 0, "cpu_seconds": 0, "memory": 0}
        return sorted(({**record, **measured} for record in records), key=lambda record: record["cell"])

    assert plain(parallel) == plain(single)


def test_who_takes_no_more_records_has_the_processes_ended(monkeypatch):
    """They went on, and what they learned was lost."""
    monkeypatch.setattr(module, "run_cell", time.sleep)
    before = set(multiprocessing.active_children())
    records = module._run_all([0, 3600, 3600, 3600], 2)
    assert next(records) is None
    records.close()
    assert set(multiprocessing.active_children()) <= before


def test_a_killed_process_is_reported(monkeypatch):
    monkeypatch.setattr(module, "run_cell", os._exit)
    with pytest.raises(ValueError, match="killed, probably for lack of memory: the same command continues"):
        list(module._run_all([1, 1], 2))


# the command


def test_the_command_continues_where_it_stopped(capsys, tmp_path, ran):
    words = ["table1", "--domains", "simple", "--jobs", "1", "--out", str(tmp_path)]
    assert main([*words, "--sizes", "50"]) == 0
    assert main([*words, "--sizes", "50,200"]) == 0
    assert ran == ["simple 50 draw 1", "simple 200 draw 1"]
    out = capsys.readouterr().out
    assert re.search(r"^simple +200  neural", out, re.M)
    assert max(len(line) for line in out.splitlines() if not line.startswith("wrote")) <= 100
    assert (tmp_path / "table1.png").read_bytes().startswith(b"\x89PNG")
    assert "| simple | 50 |" in (tmp_path / "table1.md").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["table2", "--out", "x"], "unknown experiment 'table2'"),
        (["table1", "--sizes", "5,x", "--out", "x"], "must be numbers from 1"),
        (["table1", "--jobs", "0", "--out", "x"], "must be at least 1"),
        (["table1"], "give an experiment and --out"),
        (["table1", "--out", "mine"], "exists"),
    ],
)
def test_bad_requests_end_with_a_message(capsys, tmp_path, monkeypatch, ran, words, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "table1.md").write_text("my own")
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
    assert not ran
    assert (tmp_path / "mine" / "table1.md").read_text() == "my own"
