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


def test_a_quick_run_repeats_less(capsys):
    calls = []
    assert [len(calls) for _ in Benchmark(False, quick=True).in_turn({"way": lambda: calls.append(1)}, 40)] == [11]
    assert [Benchmark(False, quick=True).rounds(full) for full in (1, 3, 8, 40)] == [1, 2, 2, 10]
    assert Benchmark(True, quick=True).rounds(40) == 1


def test_run_all_runs_all_and_says_that_one_failed(tmp_path, capfd):
    (tmp_path / "peers").mkdir()
    script = "import sys\nprint(sys.argv[1:], __file__)\n"
    for name in ("fine", "peers/others", "timing"):
        (tmp_path / f"{name}.py").write_text(script)
    assert run_all.main([], tmp_path, quick=("fine",)) == 0
    assert "['--quick']" in capfd.readouterr().out
    assert run_all.main(["--all"], tmp_path, quick=()) == 0
    printed = capfd.readouterr().out
    assert "[] " in printed
    assert "others.py" not in printed
    assert run_all.main(["--smoke"], tmp_path) == 0
    printed = capfd.readouterr().out
    assert printed.count("['--smoke']") == 2
    assert "timing.py" not in printed
    (tmp_path / "a.py").write_text("raise ValueError('broken')")
    assert run_all.main(["--smoke"], tmp_path) == 1
    assert "fine.py" in capfd.readouterr().out


def test_run_all_stops_when_its_minutes_are_over(tmp_path, capfd):
    (tmp_path / "long.py").write_text(
        "import time\nprint('speed  1.00   bar >= 0.5     ok', flush=True)\ntime.sleep(500)"
    )
    assert run_all.main(["--minutes", "0.02"], tmp_path, quick=("long", "later")) == 0
    printed = capfd.readouterr().out
    assert "No time was left for: long (stopped), later." in printed
    assert "1 of 1 bars met" in printed
    for bad in ("0", "nan", "-1"):
        with pytest.raises(SystemExit):
            run_all.main([f"--minutes={bad}"], tmp_path, quick=())


def test_every_benchmark_of_the_table_exists_and_takes_quick():
    assert set(run_all.QUICK) <= set(run_all.scripts())
    for name in run_all.QUICK:
        assert "parser(__doc__, quick=True)" in (run_all.HERE / f"{name}.py").read_text()


@pytest.mark.parametrize("columns", [80, 100])
def test_the_table_lines_up(columns, capsys):
    """What `Benchmark` prints is read again, with its limit, and what is short of its bar comes first."""
    bench = Benchmark(False)
    bench.at_least("G(3,3), 256 graphs: made / used, and more words than a line of the table has room for", 401.45, 20)
    bench.at_most("memory: of what is kept", float("nan"), 0.30471, "120 GFLOP/s")
    rows = [run_all.Row("step", *run_all.JUDGED.match(line).groups()) for line in capsys.readouterr().out.splitlines()]
    assert [(row.limit, row.verdict) for row in rows] == [(None, "ok"), ("120 GFLOP/s", "SHORT")]
    lines = run_all.table(rows, columns)
    assert max(map(len, lines)) == columns
    ruler = next(line for line in lines if line.startswith("---"))
    ends = [place + 1 for place, sign in enumerate(ruler) if sign == "-" and ruler[place + 1 : place + 2] in ("", " ")]
    title, short = (next(line for line in lines if line.startswith(begin)) for begin in ("bench", "step: "))
    good = lines[lines.index(short) + 1]
    for line, cells in ((title, ("bar", "measured", "LIMIT")), (short, ("<= 0.3047", "nan", "120 GFLOP/s", "SHORT"))):
        for cell, end in zip(cells, ends[1:]):
            assert line[:end].endswith(cell)
    assert good[: ends[2]].endswith("401.45")
    assert good.endswith("ok")
    assert "amx_bf16" in "".join(lines)
    assert "1 of 2 bars met" in lines[-1]


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
