"""How far the runs of a folder are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from statewise.experiments import cluster, seeds
from statewise.experiments.jobs import read_state
from statewise.experiments.progress import duration, total_steps
from statewise.run import Run, named_path
from statewise.runtime.messages import counted

STATES = ("done", "running", "queued", "failed", "stopped", "not started")


@dataclass(frozen=True)
class Status:
    """How far a run is."""

    name: str
    state: str
    """One of `STATES`. `stopped`: begun, but no process trains it; `queued`: a cluster has not started it yet."""
    step: int = 0
    steps: int | None = None
    seconds: float | None = None
    """Seconds of training so far; None: not known."""
    left: float | None = None
    """Seconds of training left, at the pace so far; None: not known."""
    note: str = ""
    """Why it failed; otherwise its job in the cluster, if it is there."""


def statuses(folder: str | Path) -> list[Status]:
    """The status of every run in `folder`: a run, the folder of several seeds, or of a suite. Raises
    `FileNotFoundError` if it holds no run."""
    folder = named_path(Path(folder))
    if Run(folder).exists():
        return [_status(folder, folder.name, {})]
    groups = [folder] if seeds.is_group(folder) else sorted(path.parent for path in folder.rglob("seeds.json"))
    several = folder.is_dir() and not seeds.is_group(folder)
    alone = sorted(path for path in folder.iterdir() if Run(path).exists()) if several else []
    if not groups and not alone:
        raise FileNotFoundError(f"{folder} holds no run, no runs of several seeds and no suite")
    runs = [*alone, *(member for group in groups for member in seeds.members(group))]
    numbers = [job_number for member in runs if (job_number := cluster.number(_log(member))) is not None]
    queued = cluster.queue(numbers)
    return [_status(member, str(member.relative_to(folder)), queued) for member in runs]


def _log(member: Path) -> Path:
    return member.with_name(f"{member.name}.log")


def _status(folder: Path, name: str, queued: dict[str, str]) -> Status:
    run, (done, failed), number = Run(folder), read_state(_log(folder)), cluster.number(_log(folder))
    if failed and "train" not in done and run.exists() and run.complete():
        failed = ""  # training was continued by itself since
    in_queue = queued.get(number or "")
    note = failed or (f"job {number} {in_queue}" if in_queue else "")
    if not run.exists():
        state = "queued" if in_queue else "failed" if failed else "not started"
        return Status(name, state, note=note)
    records, steps = run.metrics(), total_steps(run, run.recipe())
    last = max(records, key=lambda record: record["step"], default={"step": 0})
    seconds = max((record["seconds"] for record in records if "seconds" in record), default=None)
    step = int(last["step"])
    if (run.complete(records) or run.converted(records)) and not failed:
        return Status(name, "done", step, steps, seconds, 0.0)
    pace = None if seconds is None or not step else seconds / step
    if in_queue == "RUNNING" or (in_queue is None and run.in_use()):
        state = "running"
    else:
        state = "queued" if in_queue else "failed" if failed else "stopped"
        step = saved[-1].step if (saved := run.checkpoints()) else 0  # the step from which it continues
    return Status(name, state, step, steps, seconds, None if pace is None else pace * (steps - step), note)


def time_left(runs: Sequence[Status]) -> float | None:
    """Seconds until all runs are done, if as many run at a time as now. A run that has not started is expected to take
    the mean time of the others. None: no run is going on, or the pace is not known yet."""
    running = sum(one.state == "running" for one in runs)
    whole = [one.seconds + one.left for one in runs if one.seconds is not None and one.left is not None]
    if not running or not whole:
        return None
    mean = sum(whole) / len(whole)
    return sum(mean if one.left is None else one.left for one in runs) / running


def summary(runs: Sequence[Status]) -> str:
    """`20 runs: 3 running, 12 done, 5 queued; about 2:10:00 left`."""
    counts = Counter(one.state for one in runs)
    states = ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state])
    left = time_left(runs)
    end = f"; about {duration(left)} left" if left else ""
    return f"{counted(len(runs), 'run')}: {states}{end}"
