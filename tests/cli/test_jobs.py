"""The engine that runs processes."""

import os
import signal
import sys
import threading
import time

from statewise.cli.jobs import Job, last_line, run_jobs


def python(code):
    return [sys.executable, "-c", code]


def run(jobs, at_once=1):
    told = []
    received = run_jobs(
        jobs, at_once, started=lambda job: told.append(("started", job.name)), looked_at=lambda job: None,
        ended=lambda job, code: told.append((job.name, code)),
    )  # fmt: skip
    return received, told


def test_commands_of_a_job_follow_each_other_until_one_fails(tmp_path):
    jobs = [
        Job("all", [python("print('one')"), python("print('two')")], tmp_path / "new" / "all.log"),
        Job("half", [python("raise SystemExit('gone')"), python("print('never')")], tmp_path / "half.log"),
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
    jobs = [Job(name, [python(wait.format(own=own, other=other))], tmp_path / f"{name}.log")
            for name, own, other in (("a", *files), ("b", *reversed(files)))]  # fmt: skip
    assert run(jobs, at_once=2)[0] is None
    assert last_line(tmp_path / "a.log") == str(max(1, (os.cpu_count() or 1) // 2))


def test_a_signal_is_passed_on_and_nothing_else_starts(tmp_path):
    code = (
        "import pathlib, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (print('saved', flush=True), sys.exit(143)))\n"
        f"pathlib.Path({str(tmp_path / 'ready')!r}).touch()\n"
        "time.sleep(60)"
    )

    def stop():
        while not (tmp_path / "ready").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    jobs = [Job(name, [python(code)], tmp_path / f"{name}.log") for name in ("first", "second")]
    threading.Thread(target=stop).start()
    before = signal.getsignal(signal.SIGTERM)
    assert run(jobs) == (signal.SIGTERM, [("started", "first")])
    assert last_line(tmp_path / "first.log") == "saved"
    assert signal.getsignal(signal.SIGTERM) is before
