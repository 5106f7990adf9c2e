"""Every benchmark runs, with tiny sizes; what it measures is for `make bench`."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import own_process
import pytest
import run_all
from timing import Benchmark


@pytest.mark.parametrize("name", run_all.scripts())
def test_smoke(name, capsys):
    spec = importlib.util.spec_from_file_location(f"benchmark of {name}", run_all.HERE / f"{name}.py")
    script = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = script  # dataclasses look their module up
    spec.loader.exec_module(script)
    assert script.main(["--smoke"]) == 0
    printed = capsys.readouterr().out
    assert "not judged" in printed or name.startswith(("peers/", "strips/")), "no bar was printed"


def test_a_missed_bar_is_judged_in_full_runs_alone(capsys):
    for smoke, verdict in ((False, "SHORT"), (True, "not judged")):
        bench = Benchmark(smoke)
        bench.at_least("speed", 2.0, 1.0)
        assert bench.exit_code() == 0
        bench.at_most("memory", float("nan"), 1.0)
        assert bench.exit_code() == (0 if smoke else 1)
        assert verdict in capsys.readouterr().out


def test_run_all_runs_all_and_says_that_one_failed(tmp_path, capfd):
    (tmp_path / "peers").mkdir()
    script = "import sys\nprint(sys.argv[1:], __file__)\n"
    for name in ("fine", "peers/others", "timing"):
        (tmp_path / f"{name}.py").write_text(script)
    assert run_all.main([], tmp_path) == 0
    assert "others.py" not in capfd.readouterr().out
    assert run_all.main(["--smoke"], tmp_path) == 0
    printed = capfd.readouterr().out
    assert printed.count("['--smoke']") == 2
    assert "timing.py" not in printed
    (tmp_path / "a.py").write_text("raise ValueError('broken')")
    assert run_all.main(["--smoke"], tmp_path) == 1
    assert "fine.py" in capfd.readouterr().out


HOLD = """
import own_process

def measure(megabytes):
    return own_process.cost(lambda: lambda: bytearray(megabytes << 20).count(1), rounds=1)

if __name__ == "__main__":
    rounds = own_process.in_turn(measure, {"small": (32,), "large": (128,)}, rounds=1)
    print(rounds[0]["small"].megabytes, rounds[0]["large"].megabytes)
"""


def test_each_way_has_a_peak_of_its_own(tmp_path):
    """Measured from a small process: children inherit their parent's peak, and that of the tests is large."""
    (tmp_path / "script.py").write_text(HOLD)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(run_all.HERE), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, str(tmp_path / "script.py")]
    printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    small, large = map(float, printed.split())
    assert 24 < small < 48
    assert 120 < large < 144


def test_shares_are_medians_over_rounds_and_nothing_is_no_share():
    cost = own_process.Cost
    rounds = [{"one": cost(1, 2), "other": cost(4, 8)}] * 2 + [{"one": cost(9, 1), "other": cost(1, 1)}]
    assert own_process.share(rounds, "one", "other") == cost(0.25, 0.25)
    unseen = own_process.share([{"one": cost(1, 2), "other": cost(4, 0)}], "one", "other")
    assert unseen.megabytes != unseen.megabytes
