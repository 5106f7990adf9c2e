"""Trains the three models of `statewise demo`, and compares them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from statewise.experiments.compare import compare
from statewise.experiments.jobs import Job, run_jobs, statewise
from statewise.reporting.comparison import Comparison
from statewise.run import CONFIG, Run
from statewise.runtime.system import cores

RECIPE = ("path-star-demo", "--trainer.threads", "1")
"""The recipe of all three models, and what is changed."""
OBJECTIVES = {
    "belief-state": ("--objective", "belief_state", "--objective.pairs", "answer"),
    "next-token": (),
    "next-latent": ("--objective", "next_latent", "--objective.horizon", "2"),
}
"""The flags of each model, by its name: the one that takes longest first."""
SEED = 5
"""The seed of the models that the package ships: one of the two of five with which the Belief State Transformer solves
the graph within the recipe's steps (docs/results/demo.md)."""


def words(name: str, seed: int) -> list[str]:
    """The words of the command that trains a model, without its directory."""
    return ["train", *RECIPE, *OBJECTIVES[name], "--seed", str(seed)]


def train(folder: Path, seed: int, shown: Callable[[str, int, int | None], None]) -> Comparison | int:
    """Trains the models into `folder`, two processes side by side where there are two cores, and writes the comparison
    into `folder/report`.

    `shown`: is called with the name of a model, its step and the number of its steps: 0 before it starts, None until
    it says how many, and its step where it ended before the last one, such as once it solved the graph. Returns the
    comparison, or the signal that stopped the processes. Raises `ValueError` if a model could not be trained.
    """
    failed: list[Job] = []

    def log(name: str) -> Path:
        return folder / f"{name}.log"

    def made(name: str) -> int | None:
        path = folder / name / CONFIG
        return path.stat().st_mtime_ns if path.exists() else None

    before = {name: made(name) for name in OBJECTIVES}

    def looked_at(job: Job) -> None:
        run, now = Run(folder / job.name), made(job.name)
        records = [] if now is None or now == before[job.name] else run.metrics()  # else those of an earlier training
        steps = int(run.environment().get("steps", 0)) if records else 0
        step = max((int(record["step"]) for record in records), default=0)
        shown(job.name, step, step if records and run.end(records) is not None else steps or None)

    jobs = [
        Job(name, {"train": [*statewise(*words(name, seed)), "--out", str(folder / name), "--overwrite"]}, log(name))
        for name in OBJECTIVES
    ]
    folder.mkdir(parents=True, exist_ok=True)
    for job in jobs:
        shown(job.name, 0, 0)
    received = run_jobs(
        jobs,
        min(2, cores()),
        started=lambda job: None,
        looked_at=looked_at,
        ended=lambda job, code: failed.append(job) if code else None,
    )
    if received is not None:
        return received
    if failed:
        raise ValueError(f"{failed[0].name} could not be trained: {failed[0].log} says why")
    order = ("next-token", "next-latent", "belief-state")
    return compare([folder / name for name in order], folder / "report", overwrite=True)
