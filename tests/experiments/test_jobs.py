"""The engine that runs processes."""

import math
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from doubles import lives

from statewise.experiments import jobs
from statewise.experiments.jobs import Job, last_line, read_state, run_jobs
from statewise.experiments.seeds import Shown
from statewise.run import Run
from statewise.runtime.system import cores, ended_with_parent


def python(code):
    return [sys.executable, "-c", code]


def run(jobs, at_once=1):
    told = []
    received = run_jobs(
        jobs,
        at_once,
        started=lambda job: told.append(("started", job.name)),
        looked_at=lambda job: None,
        ended=lambda job, code: told.append((job.name, code)),
    )
    return received, told


def test_commands_of_a_job_follow_each_other_until_one_fails(tmp_path):
    jobs = [
        Job("all", {"one": python("print('one')"), "two": python("print('two')")}, tmp_path / "new" / "all.log"),
        Job("half", {"bad": python("raise SystemExit('gone')"), "no": python("print('never')")}, tmp_path / "half.log"),
    ]
    received, told = run(jobs)
    assert received is None
    assert told == [("started", "all"), ("all", 0), ("started", "half"), ("half", 1)]
    assert (tmp_path / "new" / "all.log").read_text() == "one\ntwo\n"
    assert last_line(tmp_path / "half.log") == "gone"
    assert last_line(tmp_path / "none.log") == ""


def test_as_many_run_as_may_and_share_the_threads(tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    wait = (
        "import os, pathlib, time\n"
        "pathlib.Path({own!r}).touch()\n"
        "while not pathlib.Path({other!r}).exists(): time.sleep(0.01)\n"
        "print(os.environ['OMP_NUM_THREADS'])"
    )
    files = [str(tmp_path / name) for name in "ab"]
    jobs = [
        Job(name, {"wait": python(wait.format(own=own, other=other))}, tmp_path / f"{name}.log")
        for name, own, other in (("a", *files), ("b", *reversed(files)))
    ]
    assert run(jobs, at_once=2)[0] is None
    assert last_line(tmp_path / "a.log") == str(max(1, cores() // 2))


@pytest.mark.parametrize("name", [name for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)])
def test_a_signal_is_passed_on_and_nothing_else_starts(tmp_path, name):
    number = getattr(signal, name)
    code = (
        "import pathlib, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (print('saved', flush=True), sys.exit(143)))\n"
        f"pathlib.Path({str(tmp_path / 'ready')!r}).touch()\n"
        "time.sleep(60)"
    )

    def stop():
        while not (tmp_path / "ready").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    jobs = [Job(name, {"sleep": python(code)}, tmp_path / f"{name}.log") for name in ("first", "second")]
    threading.Thread(target=stop).start()
    old, before = signal.signal(number, print), print
    assert run(jobs) == (signal.SIGTERM, [("started", "first")])
    assert last_line(tmp_path / "first.log") == "saved"
    assert signal.signal(number, old) is before


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="no SIGHUP here")
def test_what_nohup_ignores_stays_ignored(tmp_path):
    old = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    hang_up = f"import os, signal; os.kill({os.getpid()}, signal.SIGHUP)"
    try:
        assert run([Job("it", {"hang up": python(hang_up)}, tmp_path / "it.log")]) == (
            None,
            [("started", "it"), ("it", 0)],
        )
    finally:
        signal.signal(signal.SIGHUP, old)


def test_nothing_runs_on_after_an_error(tmp_path):
    code = (
        "import pathlib, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.1), print('saved', flush=True), sys.exit(143)))\n"
        "pathlib.Path({ready!r}).touch()\n"
        "time.sleep(60)"
    )
    ready = [tmp_path / name for name in ("one", "two")]
    jobs = [
        Job(path.name, {"sleep": python(code.format(ready=str(path)))}, tmp_path / f"{path.name}.log") for path in ready
    ]

    def looked_at(job):
        if all(path.exists() for path in ready):
            raise BrokenPipeError("nobody reads")

    with pytest.raises(BrokenPipeError):
        run_jobs(jobs, 2, started=lambda job: None, looked_at=looked_at, ended=print)
    assert [last_line(job.log) for job in jobs] == ["saved", "saved"]


def test_a_second_interruption_does_not_wait_for_what_does_not_end(tmp_path):
    ready = tmp_path / "ready"
    code = (
        "import pathlib, signal, time\n"
        "signal.signal(signal.SIGINT, lambda *_: None)\n"
        f"pathlib.Path({str(ready)!r}).touch()\n"
        "time.sleep(600)"
    )
    job = Job("stuck", {"wait": python(code)}, tmp_path / "stuck.log")
    sent, before = [], signal.signal(signal.SIGINT, signal.default_int_handler)  # it is ignored in the background

    def looked_at(job):
        if ready.exists() and len(sent) < 2:
            sent.append(os.kill(os.getpid(), signal.SIGINT))

    try:
        assert run_jobs([job], 1, started=lambda job: None, looked_at=looked_at, ended=print) == signal.SIGINT
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(sent) == 2


@pytest.mark.parametrize(("named", "threads"), [(None, 2), ("1", 1), ("3", 3), ("0", 2), ("many", 2), ("", 2)])
def test_threads_are_those_that_the_environment_names(monkeypatch, named, threads):
    monkeypatch.setattr(jobs, "cores", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS")
    if named is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", named)
    assert jobs.threads_of_jobs(4) == threads


def test_the_state_names_what_has_succeeded(tmp_path):
    jobs = [Job("it", {"b": python("pass"), "c": python("raise SystemExit('full')")}, tmp_path / "it.log", ["a"])]
    run(jobs)
    assert read_state(jobs[0].log) == (["a", "b"], "code 1: full")


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_on_other_systems_processes_go_on(monkeypatch, system):
    monkeypatch.setattr(sys, "platform", system)
    assert ended_with_parent() is None


@pytest.mark.skipif(sys.platform != "linux", reason="other systems let the processes go on")
def test_a_process_whose_parent_is_gone_at_once_ends_whatever_the_parent_does_with_the_signal(monkeypatch):
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        ask = ended_with_parent()
        monkeypatch.setattr(os, "getppid", lambda: -1)
        process = subprocess.Popen(python("import time; time.sleep(60)"), preexec_fn=ask)
        assert process.wait(30) == -signal.SIGTERM
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems let the processes go on")
@pytest.mark.parametrize(
    ("then", "goes_on"), [("", False), ("outlive_parent()", True)], ids=["ends with it", "takes that back"]
)
def test_a_process_that_ends_with_its_parent(tmp_path, then, goes_on):
    ended, ready = tmp_path / "ended", tmp_path / "ready"
    child = (
        "import pathlib, sys, time\n"
        "from statewise.runtime.system import end_with, outlive_parent\n"
        f"end_with(int(sys.argv[1]))\n{then}\n"
        f"pathlib.Path({str(ready)!r}).touch()\n"
        "while sys.stdin.read(1): pass\n"  # until the parent is gone
        f"time.sleep(0.3)\npathlib.Path({str(ended)!r}).touch()"
    )
    parent = (
        "import os, pathlib, subprocess, sys, time\n"
        f"process = subprocess.Popen([sys.executable, '-c', {child!r}, str(os.getpid())], stdin=subprocess.PIPE)\n"
        f"while not pathlib.Path({str(ready)!r}).exists(): time.sleep(0.01)\n"
        "print(process.pid, flush=True)\nos._exit(0)"
    )
    done = subprocess.run(python(parent), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    deadline = time.monotonic() + 60
    while lives(int(done.stdout)):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert ended.exists() == goes_on


@pytest.mark.skipif(sys.platform != "linux", reason="other systems let the processes go on")
def test_a_process_whose_parent_has_ended_ends_at_once():
    done = subprocess.run(
        python("from statewise.runtime.system import end_with\nend_with(-1)\nprint('on')"), capture_output=True
    )
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, b"")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems let the processes go on")
def test_processes_end_when_the_one_that_runs_them_is_killed(tmp_path):
    child = (
        "import pathlib, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (print('saved', flush=True), sys.exit(143)))\n"
        f"pathlib.Path({str(tmp_path / 'begun')!r}).touch()\n"
        "time.sleep(60)"
    )
    parent = (
        "from pathlib import Path\n"
        "from statewise.experiments.jobs import Job, run_jobs\n"
        f"job = Job('one', {{'wait': {python(child)!r}}}, Path({str(tmp_path / 'one.log')!r}))\n"
        "run_jobs([job], 1, started=lambda job: None, looked_at=lambda job: None, ended=lambda job, code: None)"
    )
    process = subprocess.Popen(python(parent))
    deadline = time.monotonic() + 60
    while not (tmp_path / "begun").exists():
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()
    while last_line(tmp_path / "one.log") != "saved":
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_records_of_steps_that_are_trained_again_are_shown(tmp_path, monkeypatch):
    monkeypatch.setattr("statewise.experiments.seeds.total_steps", lambda *_: 4)
    run = Run(tmp_path / "seed-1")
    run.folder.mkdir()
    recipe = {"trainer": {"steps": 4}}
    for step, kind in ((1, "train"), (2, "end")):
        run.log({"kind": kind, "step": step, **({"reason": "not finite", "seconds": 1.0} if kind == "end" else {})})
    shown = Shown.of(run)
    assert shown.new_lines(recipe) == []
    run.forget_after(1)  # as resuming does
    run.log({"kind": "end", "step": 2, "reason": "steps", "seconds": 2.0})
    (line,) = shown.new_lines(recipe)
    assert "end: steps" in line
    assert shown.new_lines(recipe) == []
    run.log({"kind": "train", "step": 3, "loss": math.nan})
    run.log({"kind": "end", "step": 4, "reason": "solved", "seconds": 3.0})
    (line,) = shown.new_lines(recipe)
    assert "end: solved" in line
    assert shown.new_lines(recipe) == []
    with open(run.folder / "metrics.jsonl", "a") as file:
        file.write('{"kind": "end", "step": 4}\n')
    with pytest.raises(ValueError, match=r"metrics\.jsonl:5: reason is missing"):
        shown.new_lines(recipe)
