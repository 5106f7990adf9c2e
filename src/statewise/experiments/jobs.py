"""Runs commands as processes of this machine, several at a time.

`seeds` and `suite` say which commands, and where their results are.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from statewise.runtime.durable import write_atomically
from statewise.runtime.json_files import TEXT, Shape, read_json
from statewise.runtime.messages import say
from statewise.runtime.system import cores, ended_with_parent, kill_group

POLL_SECONDS = 0.2
HANDLED = {int(number): int(number) for number in (signal.SIGINT, signal.SIGTERM)}
HANDLED |= {
    int(getattr(signal, name)): int(signal.SIGTERM)
    for name in ("SIGHUP", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)
}
"""Signals that stop all jobs, each with the signal that is passed on to them."""
Show = Callable[[str], None]
"""Receives each line about the progress of several runs."""


def show_nothing(line: str) -> None:
    """Ignores the line."""


def show_line(line: str) -> None:
    """Prints the line at once."""
    say(line, flush=True)


@dataclass(frozen=True)
class Job:
    """Commands that run one after the other, as long as each ends with code 0."""

    name: str
    commands: Mapping[str, Sequence[str]]
    """Command lines, by the names under which they are stored once they have succeeded."""
    log: Path
    """File to which their output is appended. The `.state.json` beside it holds which have succeeded, and why one
    failed."""
    done: Sequence[str] = ()
    """Names of commands that had succeeded before these."""


@dataclass(frozen=True)
class RunsOutcome:
    """The outcome of several runs."""

    folder: Path
    """The folder that holds all of them."""
    failed: list[str]
    """Names of the runs that failed: seeds, or `RECIPE/OBJECTIVE-BACKBONE seed N` in a suite."""
    signal: int | None = None
    """The signal that ended the runs, or the waiting for jobs of a cluster."""
    in_cluster: bool = False
    """Whether this process no longer waits for jobs that it has submitted to a cluster."""

    @property
    def exit_code(self) -> int:
        """Exit code of a command: 128 and the signal, 1 if a run failed, otherwise 0."""
        return 128 + self.signal if self.signal is not None else int(bool(self.failed))


STATE: Shape = {"done": [TEXT], "failed": TEXT}
"""State of a run: which of its commands have succeeded, and why another failed."""


def read_state(log: Path) -> tuple[list[str], str]:
    """The commands with this log that have succeeded, and why the next one failed; an empty text if it has not."""
    path = log.with_suffix(".state.json")
    if not path.exists():
        return [], ""
    state = read_json(path, STATE)
    return state["done"], state["failed"]


def write_state(log: Path, done: Sequence[str], failed: str) -> None:
    """Stores the result of `read_state`."""
    write_atomically(log.with_suffix(".state.json"), json.dumps({"done": list(done), "failed": failed}).encode())


def statewise(*words: str) -> list[str]:
    """The command line of a statewise command."""
    return [sys.executable, "-m", "statewise", *words]


def threads_of_jobs(at_once: int) -> int:
    """Number of threads of each job if so many run `at_once`: OMP_NUM_THREADS, or its share of the cores."""
    named = os.environ.get("OMP_NUM_THREADS", "")
    return int(named) if named.isascii() and named.isdigit() and int(named) else max(1, cores() // at_once)


def run_jobs(
    jobs: Sequence[Job],
    at_once: int,
    *,
    started: Callable[[Job], None],
    looked_at: Callable[[Job], None],
    ended: Callable[[Job, int], None],
) -> int | None:
    """Runs the jobs in order, `at_once` at a time, stores their states, and calls back: `started`; `looked_at` every
    now and then while one runs, and once after its last command; `ended` with the code of its last command. Handles
    signals only in the main thread, where Python allows it.

    SIGINT and SIGTERM are passed on to the processes that run, and no others are started; SIGHUP, which a closed
    terminal sends, and SIGUSR1 and SIGUSR2, by which schedulers warn, are passed on as SIGTERM. Returns the signal that
    was passed on, after all have ended; None if no signal came. `ended` is not called for jobs that a signal stopped.
    If anything raises, such as a callback, the processes are terminated and waited for first. If this process is
    killed, Linux ends them with SIGTERM; on other systems they continue.
    """
    waiting, received = list(jobs), list[int]()
    running: list[tuple[Job, subprocess.Popen[bytes], list[str]]] = []
    # A signal that is ignored, as SIGHUP under nohup, stays ignored.
    before = {
        number: signal.signal(number, lambda n, _: received.append(HANDLED[n]))
        for number in HANDLED
        if threading.current_thread() is threading.main_thread() and signal.getsignal(number) is not signal.SIG_IGN
    }
    environment = dict(os.environ)
    if at_once > 1:
        environment["OMP_NUM_THREADS"] = str(threads_of_jobs(at_once))

    def start(job: Job, names: list[str]) -> None:
        with open(job.log, "ab") as log:
            process = subprocess.Popen(
                job.commands[names[0]],
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
                preexec_fn=ended_with_parent(),
            )
        running.append((job, process, names))

    forwarded = False
    try:
        while running or (waiting and not received):
            while waiting and len(running) < at_once and not received:
                job = waiting.pop(0)
                job.log.parent.mkdir(parents=True, exist_ok=True)
                write_state(job.log, job.done, "")
                start(job, list(job.commands))
                started(job)
            if received and not forwarded:
                for _, process, _ in running:
                    process.send_signal(received[0])
                forwarded = True
            if received.count(int(signal.SIGINT)) > 1:  # no scheduler sends it twice: a person does not want to wait
                for _, process, _ in running:
                    kill_group(process)
            time.sleep(POLL_SECONDS)
            for entry in list(running):
                job, process, (name, *others) = entry
                code = process.poll()
                looked_at(job)
                if code is None:
                    continue
                running.remove(entry)
                if code == 0:
                    write_state(job.log, [*read_state(job.log)[0], name], "")
                elif not received:
                    write_state(job.log, read_state(job.log)[0], f"code {code}: {last_line(job.log)}")
                if code == 0 and others and not received:
                    start(job, others)
                elif not received or (code == 0 and not others):
                    ended(job, code)
    except BaseException:
        for _, process, _ in running:
            process.terminate()
        for _, process, _ in running:
            process.wait()
        raise
    finally:
        for number, old in before.items():
            signal.signal(number, old)
    return received[0] if received else None


def last_line(log: Path) -> str:
    """The last line of a log; empty without one."""
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return lines[-1] if lines else ""
