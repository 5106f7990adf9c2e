"""The options of commands that may run their jobs on a Slurm cluster."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from statewise.experiments.cluster import SlurmOptions, check_submission
from statewise.runtime import launchers as processes
from statewise.runtime.arguments import Parser, at_least

OPTIONS: dict[str, tuple[str, Callable[[str], Any], str]] = {
    "partition": ("NAME", str, "partition"),
    "time": ("MINUTES", at_least(1), "time limit of a job; unfinished ones are queued again (default: 60)"),
    "gpus": ("N", at_least(0), "GPUs of a job (default: 0)"),
    "cpus": ("N", at_least(1), "CPU cores of a job"),
    "memory": ("GB", at_least(1), "memory of a job"),
    "array": ("N", at_least(1), "jobs that may run at the same time (default: 256)"),
    "account": ("NAME", str, "account"),
    "qos": ("NAME", str, "quality of service"),
    "constraint": ("TEXT", str, "constraint on the machines"),
}


def add_options(parser: Parser) -> None:
    """`--on`, `--wait`, `--detach` and `--slurm.*`."""
    parser.add_argument(
        "--on", choices=("local", "slurm"), default="local", help="this machine, or a job array (default: local)"
    )
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--wait", action="store_true", help="with --on slurm: print until all jobs end (default)")
    group.add_argument("--detach", action="store_true", help="with --on slurm: return once the jobs are submitted")
    for name, (metavar, kind, what) in OPTIONS.items():
        parser.add_argument(f"--slurm.{name}", metavar=metavar, type=kind, help=f"with --on slurm: {what}")


def set_in(options: argparse.Namespace) -> list[str]:
    """The options of this module that the user has set."""
    names = ["--on slurm"] if options.on == "slurm" else []
    names += [f"--slurm.{name}" for name in OPTIONS if getattr(options, f"slurm.{name}") is not None]
    return names + [f"--{name}" for name in ("wait", "detach") if getattr(options, name)]


def read(options: argparse.Namespace) -> SlurmOptions | None:
    """The options of the jobs for `--on slurm`; None for `--on local`. Raises `ValueError` for such options with
    `--on local`, where Slurm or submitit is missing, and in processes of torchrun or srun."""
    if launcher := processes.started():
        raise ValueError(f"several runs start processes of their own: run the command without {launcher.by}")
    if options.on == "local":
        if others := set_in(options):
            raise ValueError(f"{others[0]} is for --on slurm")
        return None
    if options.jobs != 1:
        raise ValueError("--jobs is for --on local; with --on slurm, --slurm.array limits the jobs that run at once")
    check_submission()
    fields = {name: value for name in OPTIONS if (value := getattr(options, f"slurm.{name}")) is not None}
    return SlurmOptions(**fields, detach=options.detach)
