"""`make gpu` says what it needs, continues where it was, and writes a page. Its steps: test_benchmarks.py."""

import itertools
import json
from types import SimpleNamespace

import pytest
from gpu import page as pages
from gpu import run, steps
from gpu.steps import Figures, Machine

from statewise.config.recipes import recipe_names


def test_without_a_gpu_it_says_so(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(run.torch.cuda, "is_available", lambda: False)
    assert run.main(["--out", str(tmp_path / "gpu")]) == 2
    assert "make gpu needs a CUDA GPU" in capsys.readouterr().err
    assert not (tmp_path / "gpu").exists()


def test_text_that_is_not_there_is_named(capsys, tmp_path):
    assert run.main(["--long", "--text", str(tmp_path / "none.txt"), "--out", str(tmp_path / "gpu")]) == 2
    assert f"--text {tmp_path / 'none.txt'}: no such file" in capsys.readouterr().err
    assert not (tmp_path / "gpu").exists()


def test_every_long_curve_is_of_a_recipe_and_has_the_time_it_takes(monkeypatch, tmp_path):
    where = Machine("cuda", False, tmp_path, (tmp_path / "text.txt",))
    names = list(steps.long_steps(where))
    assert len(names) == 2 * 2 * 3 + 2 + 2
    assert not [
        name for name in names if "two streams" in name and name in steps.long_steps(Machine("cuda", False, tmp_path))
    ]
    given = []

    def fails(command, timeout, check):
        given.append(timeout)
        return SimpleNamespace(returncode=1)

    monkeypatch.setattr(run.subprocess, "run", fails)
    for name in (*names, *steps.steps(where)):
        assert "ended with code 1" in run.apart(where, name)["error"]
    assert given == [600] * len(names) + [120] * len(steps.steps(where))
    for graph, regime in itertools.product(("g5-5", "g2-20"), ("fixed", "fresh")):
        assert f"path-star-{graph}-{regime}" in recipe_names()


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
    monkeypatch.setattr(run, "steps", lambda where: {})
    content = {"date": "2026-01-01", "machine": {"device_name": "another"}, "steps": {}}
    (tmp_path / "figures.json").write_text(json.dumps(content))
    assert run.run_all(Machine("cpu", True, tmp_path)) == 2
    assert "has figures of another, and this is" in capsys.readouterr().err


@pytest.mark.parametrize(("value", "sign", "met"), [(2.0, ">=", True), (2.0, "<=", False), (float("nan"), ">=", False)])
def test_bars(value, sign, met):
    assert pages.met(value, sign, 1.0) == met
