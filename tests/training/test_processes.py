"""Processes that a run starts by itself: none outlives the first, and which has ended is said."""

import os
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest
from doubles import SMALL_RUN, lives

from statewise.config.trainer import TrainerConfig
from statewise.training import processes

pytestmark = pytest.mark.usefixtures("forked")

LATE = """
import os, pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
if "LOCAL_RANK" in os.environ:
    (folder / "begun").write_text(str(os.getpid()))
    while not (folder / "go").exists():
        time.sleep(0.01)
from statewise.cli import main
sys.exit(main(["train", *sys.argv[2:]]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems let the processes go on")
def test_a_process_ends_when_the_first_is_killed_before_it_has_met_it(tmp_path):
    """It waited for the first one for a day."""
    script = tmp_path / "late.py"
    script.write_text(LATE)
    words = ["path-star-small", *SMALL_RUN, "--trainer.devices", "2", "--out", str(tmp_path / "run")]
    with open(tmp_path / "log", "w") as log:
        first = subprocess.Popen([sys.executable, str(script), str(tmp_path), *words], stdout=log, stderr=log)
        second = None
        try:
            deadline = time.monotonic() + 120
            while not (tmp_path / "begun").exists() or not (tmp_path / "begun").read_text():
                assert first.poll() is None, (tmp_path / "log").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.01)
            second = int((tmp_path / "begun").read_text())
            first.kill()
            first.wait()
            (tmp_path / "go").touch()
            while lives(second):
                assert time.monotonic() < deadline
                time.sleep(0.05)
        finally:
            first.kill()
            if second is not None and lives(second):
                os.kill(second, signal.SIGKILL)


def test_who_has_ended_is_said_before_the_others_are_killed(monkeypatch, capsys):
    """Fabric's observer kills the first process without a word, perhaps before that has said what it misses."""
    order, over = [], threading.Event()
    observer = threading.Thread(target=over.wait, name=processes.OBSERVER)
    observer._child_processes = [SimpleNamespace(returncode=0), SimpleNamespace(returncode=-9)]
    observer._terminate_all = lambda: order.append("killed")
    monkeypatch.setattr(processes.time, "sleep", order.append)
    with processes.starting():
        assert os.environ[processes.FIRST] == str(os.getpid())
        observer.start()
    assert processes.FIRST not in os.environ
    observer._terminate_all()
    over.set()
    observer.join()
    assert order == [processes.GRACE_SECONDS, "killed"]
    assert capsys.readouterr().err == "statewise: process 2 of this run ended with code -9\n"


def test_what_it_relies_on_of_fabric_is_there():
    from lightning_fabric.strategies.launchers.subprocess_script import _ChildProcessObserver

    observer = _ChildProcessObserver(os.getpid(), [])
    assert observer.name == processes.OBSERVER
    assert observer._child_processes == []
    assert callable(observer._terminate_all)


def test_several_devices_without_fabric_name_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "lightning_fabric", None)
    config = TrainerConfig(devices=2, device="cpu")
    with pytest.raises(ValueError, match=r"several devices need the extra `parallel`: .* -m pip install"):
        processes.start(config, {"device": "cpu", "precision": "fp32", "threads": 1})
