"""statewise status: how far the runs of a folder are."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

from statewise.cli.arguments import Parser
from statewise.experiments import cluster, seeds
from statewise.experiments.jobs import read_state
from statewise.experiments.progress import duration, total_steps
from statewise.reporting.tables import fitted_tables
from statewise.run import Run, named_path
from statewise.runtime.json_files import printable
from statewise.runtime.messages import say

DESCRIPTION = """Shows how far a run, the runs of several seeds, or a suite are, wherever they run.

  statewise status runs/g55"""

STATES = ("done", "running", "queued", "failed", "stopped", "not started")


@dataclass(frozen=True)
class Status:
    """How far a run is."""

    name: str
    state: str
    """One of `STATES`. stopped: begun, but nothing trains it; queued: a cluster has it, and it does not run yet."""
    step: int = 0
    steps: int | None = None
    seconds: float | None = None
    """Of training so far."""
    left: float | None = None
    """Seconds of training left, at the pace so far; None: not known."""
    note: str = ""
    """Why it failed; otherwise its job in the cluster, if it is there."""


def run(words: list[str]) -> int:
    """Runs the command."""
    parser = Parser("status", DESCRIPTION)
    parser.add_argument("folder", metavar="DIR", help="a run, the folder of several seeds, or of a suite")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(words)
    folder = Path(options.folder)
    found = statuses(folder)
    if options.json:
        say(printable({"runs": [asdict(one) for one in found], "left": time_left(found)}))
        return 0
    rows = [
        [
            one.name,
            one.state,
            f"{one.step:,}" + (f"/{one.steps:,}" if one.steps else ""),
            "-" if one.left is None else duration(one.left),
            one.note[:60] or "-",
        ]
        for one in found
    ]
    width = shutil.get_terminal_size((100, 24)).columns
    say(fitted_tables(["run", "state", "step", "time left", "note"], rows, width))
    say(summary(found))
    return 0


def statuses(folder: Path) -> list[Status]:
    """The status of every run in `folder`. Raises `FileNotFoundError` if it holds none."""
    folder = named_path(folder)
    if Run(folder).exists():
        return [_status(folder, folder.name, {})]
    groups = [folder] if seeds.is_group(folder) else sorted(path.parent for path in folder.rglob("seeds.json"))
    several = folder.is_dir() and not seeds.is_group(folder)
    alone = sorted(path for path in folder.iterdir() if Run(path).exists()) if several else []
    if not groups and not alone:
        raise FileNotFoundError(f"{folder} holds no run, no runs of several seeds and no suite")
    runs = [*alone, *(member for group in groups for member in seeds.members(group))]
    numbers = [found for member in runs if (found := cluster.number(_log(member))) is not None]
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
        step = saved[-1].step if (saved := run.checkpoints()) else 0  # where it goes on
    return Status(name, state, step, steps, seconds, None if pace is None else pace * (steps - step), note)


def time_left(found: list[Status]) -> float | None:
    """Seconds until all runs are done, with as many at a time as run now: those not started count as much as the others
    take on average. None: nothing runs, or the pace is not known yet."""
    running = sum(one.state == "running" for one in found)
    whole = [one.seconds + one.left for one in found if one.seconds is not None and one.left is not None]
    if not running or not whole:
        return None
    mean = sum(whole) / len(whole)
    return sum(mean if one.left is None else one.left for one in found) / running


def summary(found: list[Status]) -> str:
    """`20 runs: 3 running, 12 done, 5 queued; about 2:10:00 left`."""
    counts = Counter(one.state for one in found)
    states = ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state])
    left = time_left(found)
    end = f"; about {duration(left)} left" if left else ""
    return f"{len(found)} run{'s' * (len(found) > 1)}: {states}{end}"
