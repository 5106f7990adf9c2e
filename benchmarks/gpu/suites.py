"""The trainings of `make gpu`: suites of ../suites, each for a given time. A later call continues them."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from gpu.machine import Figures, Machine

from statewise.cli import main as command
from statewise.run import Run
from statewise.runtime.system import ended_with_parent

HERE = Path(__file__).parent.parent / "suites"


@dataclass(frozen=True)
class Training:
    """A suite that is trained on the GPU."""

    suite: str
    """The name of its file in `suites`."""
    at_once: int = 1
    """Number of runs that share the GPU."""
    on_text: bool = False
    """Whether it needs the user's text."""

    def __call__(self, where: Machine, minutes: float) -> Figures:
        """Trains for at most so many minutes, and returns what all runs have reached by then."""
        where.folder.mkdir(parents=True, exist_ok=True)
        if self.on_text:
            write_corpus(where)
        words = [str(HERE / f"{self.suite}.yaml"), "--jobs", str(self.at_once), "--out", self.suite]
        with several_processes(self.at_once if where.device == "cuda" else 1):
            process = subprocess.Popen(
                [sys.executable, "-m", "statewise", "suite", *words], cwd=where.folder, preexec_fn=ended_with_parent()
            )
            try:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(60 * minutes)
            finally:
                if process.poll() is None:
                    process.send_signal(signal.SIGTERM)  # the suite passes it on, and each run saves itself
                    process.wait()
        results = where.folder / self.suite / "results.json"
        if not results.exists():
            raise RuntimeError(f"statewise suite {self.suite} ended with code {process.returncode}")
        return self.figures(json.loads(results.read_text())["runs"])

    def figures(self, runs: list[dict[str, Any]]) -> Figures:
        """The figures of the runs in results.json, a row for each combination; what else they have is in that file."""
        found, bars, left = {}, [], 0
        for key in dict.fromkeys((run["recipe"], run["objective"], run["backbone"]) for run in runs):
            some = [run for run in runs if (run["recipe"], run["objective"], run["backbone"]) == key]
            ended = [run for run in some if run["state"] == "finished"]
            left += len(some) - len(ended)
            speeds = [speed for run in some if (speed := steps_per_second(Path(run["folder"]))) is not None]
            speed = statistics.median(speeds) if speeds else None
            steps = sorted(last_step(Path(run["folder"])) for run in ended if solved(run))
            found["/".join(key)] = {
                "runs": len(some),
                "finished": len(ended),
                "solved": sum(map(solved, ended)),
                "steps of those solved": steps,
                "steps a second": speed,
                "figure of each": [run["metrics"].get(run["headline"]["metric"]) for run in ended if run["headline"]],
            }
            if key[:2] == ("g5-5", "belief_state") and speed is not None:
                bars.append(("belief_state: steps a second, its authors' 1.2 on an H100", speed, ">=", 1.2))
        return Figures(found, bars, left=left)


TRAININGS = {
    "solve": Training("solve_rates", at_once=16),
    "G(5,5)": Training("large_graphs"),
    "A5": Training("group_a5"),
    "two streams, XS": Training("two_streams_xs", on_text=True),
}
"""By the names of their steps, the most valuable first."""


def solved(run: dict[str, Any]) -> bool:
    """Whether a finished run of results.json reaches the threshold of its task."""
    headline = run["headline"] or {}
    bound, value = headline.get("solved_at"), run["metrics"].get(headline.get("metric"))
    if bound is None or value is None:
        return False
    return bool(value >= bound if headline["higher_is_better"] else value <= bound)


def records(folder: Path) -> list[dict[str, Any]]:
    """What a run logged while it trained; nothing if it has not begun."""
    return [one for one in Run(folder).metrics() if one["kind"] == "train"] if Run(folder).exists() else []


def last_step(folder: Path) -> int:
    """The step at which a run ended."""
    return max((int(one["step"]) for one in records(folder)), default=0)


def steps_per_second(folder: Path) -> float | None:
    """Median over a run's lines of its log, evaluations not counted; None before its second line."""
    pairs = [(a["step"], a["seconds"], b["step"], b["seconds"]) for a, b in pairwise(records(folder))]
    later = [(step - before) / (ended - began) for before, began, step, ended in pairs if ended > began]
    return statistics.median(later) if later else None


def write_corpus(where: Machine) -> None:
    """Makes `corpus` of the user's text, its vocabulary, too, unless it is there."""
    if not (where.folder / "corpus").exists():
        files = [str(path.resolve()) for path in where.text]
        words = ["data", "text", *files, "--tokenizer", "bpe:32768", "--held-out", "0.05"]
        if command([*words, "--out", str(where.folder / "corpus")]) != 0:
            raise RuntimeError("the corpus could not be written")


@contextlib.contextmanager
def several_processes(number: int) -> Iterator[None]:
    """Within, kernels of several processes run at the same time, by NVIDIA's Multi-Process Service, where it is
    installed; elsewhere processes take turns."""
    control = shutil.which("nvidia-cuda-mps-control") if number > 1 else None
    if control is None:
        if number > 1:
            print("nvidia-cuda-mps-control is not there: the processes take turns on the GPU", flush=True)
        yield
        return
    begun = subprocess.run([control, "-d"], check=False).returncode == 0  # fails if it runs already
    try:
        yield
    finally:
        if begun:
            subprocess.run([control], input=b"quit\n", check=False)
