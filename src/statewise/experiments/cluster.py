"""Runs commands as jobs of a Slurm cluster, by submitit: `--on slurm`.

All jobs of a command are one job array. A job runs commands that continue an earlier attempt when they are run again:
so a time limit or preemption costs at most what came after the last checkpoint. Two files beside the log of a job keep
which of its commands have succeeded (`.state.json`), and its number in the cluster (`.job.json`). Results that submitit
pickles are never read.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from statewise.experiments.jobs import Job, Show, last_line, read_state, show_nothing, write_state
from statewise.runtime.durable import write_atomically
from statewise.runtime.json_files import TEXT, read_json
from statewise.runtime.messages import to_install

SUBMITTED = "submitted"
"""Name of the folder of submitit's own files: scripts, pickled commands, logs."""
POLL_SECONDS = 10.0
SAVE_SECONDS = 120
"""Time between the warning of a time limit and the limit."""
LAGGING_SECONDS = 60.0
"""How long the last files of a job may take to appear on a shared disk after it has left the queue."""
STOPPED = {128 + signal.SIGINT, 128 + signal.SIGTERM, -signal.SIGINT, -signal.SIGTERM}
STOPPED |= {-getattr(signal, name) for name in ("SIGUSR1", "SIGUSR2") if hasattr(signal, name)}
"""Exit codes of a command that a signal has stopped, and that can be continued."""


@dataclass(frozen=True)
class SlurmOptions:
    """Options of the jobs that are submitted to Slurm."""

    partition: str | None = None
    time: int = 60
    """Minutes; a job that is not finished is queued again."""
    gpus: int = 0
    cpus: int | None = None
    memory: int | None = None
    """GB."""
    array: int = 256
    """Jobs that may run at the same time."""
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    detach: bool = False
    """Whether to return once the jobs are submitted."""


def check_submission() -> None:
    """Raises `ValueError` where jobs cannot be submitted: no Slurm, no submitit."""
    _submitit()
    missing = [name for name in ("sbatch", "squeue", "srun") if shutil.which(name) is None]
    if missing:
        raise ValueError(f"--on slurm: there is no {missing[0]} here: run the command where jobs are submitted")


class Commands:
    """Runs the commands of a job, on the machine that the cluster has chosen for it."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._process: subprocess.Popen[bytes] | None = None

    def __call__(self) -> int:
        """Runs the commands that have not succeeded yet; returns the exit code of the last one."""
        job = self.job
        done = read_state(job.log)[0]
        for name, command in job.commands.items():
            if name in done:
                continue
            with open(job.log, "ab") as log:
                self._process = subprocess.Popen(command, stdout=log, stderr=log)
            # `wait` holds a lock that `checkpoint`, a signal handler, could not get.
            while (code := self._process.poll()) is None:
                time.sleep(0.2)
            if code in STOPPED:
                _queue_again()
                return code
            failed = f"code {code}: {last_line(job.log)}" if code else ""
            done += [name] * (code == 0)
            write_state(job.log, done, failed)
            if code:
                return code
        return 0

    def checkpoint(self) -> Any:
        """Lets the command save and end; submitit calls it before a time limit or preemption. Returns what to run when
        the job is started again."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGTERM)
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        return _submitit().helpers.DelayedSubmission(Commands(self.job))


def _queue_again() -> None:
    """Has submitit queue this job again if Slurm preempts it. Slurm may then send nothing but SIGTERM, to all processes
    of the job, and takes one that ends within the grace time for finished. A cancelled job no longer counts as running.
    """
    if os.environ.get("SUBMITIT_EXECUTOR") == "slurm":
        job = _submitit().JobEnvironment()
        if queue([job.job_id]).get(job.job_id) == "RUNNING":
            signal.raise_signal(getattr(signal, f"SIG{job.USR_SIG}"))


def submit(jobs: Sequence[Job], options: SlurmOptions, folder: Path, cluster: str = "slurm") -> list[Any]:
    """Submits the jobs as one array; returns submitit's handles. `folder`: on a disk that all machines share; only its
    owner may write to it, since its pickled commands will be run."""
    submitit = _submitit()
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    executor = submitit.AutoExecutor(folder=folder.absolute(), cluster=cluster, slurm_max_num_timeout=10_000)
    options_of_slurm = {
        "slurm_partition": options.partition,
        "slurm_gpus_per_node": options.gpus or None,
        "slurm_cpus_per_task": options.cpus,
        "slurm_mem": f"{options.memory}GB" if options.memory else None,
        "slurm_account": options.account,
        "slurm_qos": options.qos,
        "slurm_constraint": options.constraint,
    }
    executor.update_parameters(
        timeout_min=options.time,
        slurm_array_parallelism=options.array,
        slurm_job_name="statewise",
        slurm_signal_delay_s=min(SAVE_SECONDS, 30 * options.time),
        slurm_additional_parameters={"requeue": True},
        **{name: value for name, value in options_of_slurm.items() if value is not None},
    )
    for job in jobs:
        job.log.parent.mkdir(parents=True, exist_ok=True)
        write_state(job.log, job.done, "")  # not later: a job may be quick
    with executor.batch():
        handles = [executor.submit(Commands(_absolute(job))) for job in jobs]
    for job, handle in zip(jobs, handles):
        write_atomically(job.log.with_suffix(".job.json"), json.dumps({"job": handle.job_id}).encode())
    return handles


def _absolute(job: Job) -> Job:
    return Job(job.name, job.commands, job.log.absolute(), job.done)


def number(log: Path) -> str | None:
    """The number in the cluster of the newest job with this log."""
    path = log.with_suffix(".job.json")
    return str(read_json(path, {"job": TEXT})["job"]) if path.exists() else None


def queue(numbers: Sequence[str]) -> dict[str, str]:
    """The states of those jobs that wait or run, such as PENDING and RUNNING, by number. Raises `OSError` if the
    cluster does not answer."""
    if not numbers or shutil.which("squeue") is None:
        return {}
    arrays = sorted({name.partition("_")[0] for name in numbers})
    command = ["squeue", "--noheader", "--array", "--format=%i %T", f"--jobs={','.join(arrays)}"]
    answer = subprocess.run(command, capture_output=True, text=True)
    if answer.returncode and "Invalid job id" not in answer.stderr:  # jobs that ended long ago
        raise OSError(f"squeue failed: {answer.stderr.strip()}")
    states = dict(line.split(maxsplit=1) for line in answer.stdout.splitlines() if line.strip())
    return {name: states[name].strip() for name in numbers if name in states}


def run_jobs(
    jobs: Sequence[Job],
    options: SlurmOptions,
    folder: Path,
    *,
    started: Callable[[Job], None],
    looked_at: Callable[[Job], None],
    ended: Callable[[Job, int], None],
    show: Show = show_nothing,
) -> int | None:
    """Like `statewise.experiments.jobs.run_jobs`, but on the cluster: `started` is called when a job is submitted, and
    signals only end the waiting. Jobs that are in the queue already are not submitted again, only waited for. Returns
    None at once, without calling back further, if `options.detach`. `show`: gets the numbers of submitted jobs, and
    why the cluster does not answer."""
    known = {job.name: job_number for job in jobs if (job_number := number(job.log)) is not None}
    waiting = queue(list(known.values()))
    new = [job for job in jobs if known.get(job.name) not in waiting]
    if new:
        handles = submit(new, options, folder)
        known |= {job.name: handle.job_id for job, handle in zip(new, handles)}
        array = handles[0].job_id.partition("_")[0]
        show(f"submitted {len(new)} jobs as {array}; to stop them: scancel {array}")
    for job in new:
        started(job)
    if options.detach:
        return None
    with _noting_signals() as received:
        left = {job.name: job for job in jobs}
        gone: dict[str, float] = {}
        while left and not received:
            _sleep(POLL_SECONDS, received)
            try:
                running = queue([known[name] for name in left])
            except OSError as error:  # the cluster may be busy; its jobs continue
                show(str(error))
                continue
            for name, job in list(left.items()):
                looked_at(job)
                if known[name] in running:
                    gone.pop(name, None)
                    continue
                done, failed = read_state(job.log)
                finished = job.commands.keys() <= set(done)
                if not (finished or failed) and time.monotonic() - gone.setdefault(name, time.monotonic()) < (
                    LAGGING_SECONDS
                ):
                    continue
                del left[name]
                if not (finished or failed):
                    write_state(job.log, done, f"job {known[name]} ended before its command; see {folder}")
                ended(job, 0 if finished else 1)
    return received[0] if received else None


@contextlib.contextmanager
def _noting_signals() -> Iterator[list[int]]:
    """The signals that have come so far. Python handles signals only in the main thread."""
    received = list[int]()
    noted = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.signal(number, lambda n, _: received.append(n)) for number in noted}
    try:
        yield received
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def _sleep(seconds: float, received: list[int]) -> None:
    until = time.monotonic() + seconds
    while not received and time.monotonic() < until:
        time.sleep(min(0.2, seconds))


def _submitit() -> Any:
    try:
        import submitit
    except ImportError:
        raise ValueError(f"--on slurm needs the extra `cluster`: {to_install('cluster')}") from None
    return submitit
