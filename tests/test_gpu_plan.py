"""`make gpu` says what it needs, continues where it was, and writes a page. Its steps: test_benchmarks.py."""

import json
import signal
import subprocess
from types import SimpleNamespace

import pytest
from gpu import page as pages
from gpu import run, steps, suites
from gpu.machine import Figures, Machine

from statewise.cli import main
from statewise.experiments.suite import Chosen


def test_without_a_gpu_it_says_so(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(run.torch.cuda, "is_available", lambda: False)
    assert run.main(["--out", str(tmp_path / "gpu")]) == 2
    assert "make gpu needs a CUDA GPU" in capsys.readouterr().err
    assert not (tmp_path / "gpu").exists()


def test_text_that_is_not_there_is_named(capsys, tmp_path):
    assert run.main(["--text", str(tmp_path / "none.txt"), "--out", str(tmp_path / "gpu")]) == 2
    assert f"--text {tmp_path / 'none.txt'}: no such file" in capsys.readouterr().err
    assert not (tmp_path / "gpu").exists()


def test_each_step_has_its_time_and_each_training_a_suite(monkeypatch, capsys, tmp_path):
    where = Machine("cuda", False, tmp_path, (tmp_path / "text.txt",))
    assert {*run.order(where)} == {*steps.steps(where), *suites.TRAININGS}
    assert "two streams, XS" not in run.order(Machine("cuda", False, tmp_path))
    assert run.run_all(Machine("cpu", True, tmp_path), ["no such step"]) == 2
    assert "the steps are contracts, compiled" in capsys.readouterr().err
    given = []

    def fails(command, timeout, check):
        given.append(timeout)
        return SimpleNamespace(returncode=1)

    monkeypatch.setattr(run.subprocess, "run", fails)
    for name in steps.steps(where):
        assert "ended with code 1" in run.apart(where, name, 25)["error"]
    assert given == [300] * len(steps.steps(where))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("The cat sat on the mat.\n\nThe dog sat on the cat.\n")
    assert main(["data", "text", "text.txt", "--tokenizer", "bpe:260", "--held-out", "0.4", "--out", "corpus"]) == 0
    for one in suites.TRAININGS.values():
        chosen = Chosen.of(str(suites.HERE / f"{one.suite}.yaml"), smoke=True)
        assert len(chosen.recipes()) == len(chosen.cells)


def test_a_training_shows_what_all_runs_have_reached(tmp_path):
    headline = {"metric": "path_accuracy", "higher_is_better": True, "solved_at": 0.99}
    runs = []
    for seed, accuracy in ((1, 0.995), (2, 0.5), (3, None)):
        folder = tmp_path / f"seed-{seed}"
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        lines = [{"kind": "train", "step": step, "seconds": step / (4 + seed)} for step in (100, 200, 300)]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        done = accuracy is not None
        runs.append(
            {
                **{"recipe": "g5-5", "objective": "belief_state", "backbone": "gpt", "folder": str(folder)},
                "state": "finished" if done else "not finished",
                "headline": headline if done else None,
                "metrics": {"path_accuracy": accuracy} if done else {},
            }
        )
    found = suites.Training("large_graphs").figures(runs)
    assert found.left == 1
    assert found.values["g5-5/belief_state/gpt"] == {
        "runs": 3,
        "finished": 2,
        "solved": 1,
        "steps of those solved": [300],
        "steps a second": pytest.approx(6),
        "figure of each": [0.995, 0.5],
    }
    assert found.bars == [("belief_state: steps a second, its authors' 1.2 on an H100", pytest.approx(6), ">=", 1.2)]


def test_a_training_is_stopped_when_its_minutes_are_over(monkeypatch, tmp_path):
    """A stand-in for `statewise suite`, which saves its runs when it is asked to end."""
    waits, signals = [], []

    class Process:
        returncode = None

        def __init__(self, command, cwd, preexec_fn):
            assert command[1:4] == ["-m", "statewise", "suite"]
            assert command[5:] == ["--jobs", "16", "--out", "solve_rates"]
            self.folder = cwd / "solve_rates"

        def wait(self, seconds=None):
            waits.append(seconds)
            if not signals:
                raise subprocess.TimeoutExpired("suite", seconds)
            self.folder.mkdir()
            (self.folder / "results.json").write_text('{"runs": []}')

        def poll(self):
            return self.returncode

        def send_signal(self, number):
            signals.append(number)

    monkeypatch.setattr(suites.subprocess, "Popen", Process)
    assert suites.TRAININGS["solve"](Machine("cpu", False, tmp_path), 0.5).values == {}
    assert (waits, signals) == ([30, None], [signal.SIGTERM])


@pytest.mark.parametrize(("code", "calls"), [(0, ["-d", "quit"]), (1, ["-d"])])
def test_the_service_for_several_processes_ends_if_it_was_begun_here(code, calls, monkeypatch, tmp_path):
    program = tmp_path / "nvidia-cuda-mps-control"
    program.write_text(
        f"#!/bin/sh\nif [ $# -gt 0 ]; then echo $1 >> {tmp_path}/log; exit {code}; fi\ncat >> {tmp_path}/log\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    with suites.several_processes(16):
        assert (tmp_path / "log").read_text().split() == ["-d"]
    assert (tmp_path / "log").read_text().split() == calls


def test_it_continues_with_what_is_missing_or_failed(monkeypatch, capsys, tmp_path):
    called = []

    def good(where):
        called.append("good")
        return Figures({"ms": 1.5, "curve": [[1, 0.25], [2, 0.5]]}, [("speed", 2.0, ">=", 1.0)])

    def bad(where):
        called.append("bad")
        if len(called) < 3:
            raise ValueError("no such kernel")
        return Figures({"a": {"x": 1, "y": 2.0}, "b": {"x": 3, "y": None}}, [("memory", 3.0, "<=", 1.0)])

    monkeypatch.setattr(run, "steps", lambda where: {"good": good, "bad": bad})
    monkeypatch.setattr(run, "order", lambda where: ["good", "bad"])
    where = Machine("cpu", True, tmp_path)
    assert run.run_all(where) == 1
    kept = json.loads((tmp_path / "figures.json").read_text())["steps"]
    assert "no such kernel" in kept["bad"]["error"]
    assert kept["good"]["values"]["ms"] == 1.5
    assert "    ValueError: no such kernel" in (tmp_path / "page.md").read_text()
    assert run.run_all(where) == 0
    assert called == ["good", "bad", "bad"]
    page = (tmp_path / "page.md").read_text()
    for line in (
        "| speed | 2 | >= 1 |  |",
        "| memory | 3 | <= 1 | short |",
        "| curve | 1: 0.25, 2: 0.5 |",
        "| | x | y |",
        "| a | 1 | 2 |",
        "| b | 3 |  |",
    ):
        assert line in page
    assert run.run_all(where) == 0
    assert len(called) == 3
    assert "memory" in capsys.readouterr().out, "bars of steps that are done are printed again"


def test_figures_of_another_machine_are_not_mixed(monkeypatch, capsys, tmp_path):
    content = {"date": "2026-01-01", "machine": {"device_name": "another"}, "steps": {}}
    (tmp_path / "figures.json").write_text(json.dumps(content))
    assert run.run_all(Machine("cpu", True, tmp_path)) == 2
    assert "has figures of another, and this is" in capsys.readouterr().err


@pytest.mark.parametrize(("value", "sign", "met"), [(2.0, ">=", True), (2.0, "<=", False), (float("nan"), ">=", False)])
def test_bars(value, sign, met):
    assert pages.met(value, sign, 1.0) == met
