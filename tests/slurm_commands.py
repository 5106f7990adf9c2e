"""Stands for sbatch, squeue, srun and scontrol in tests: jobs are processes of this machine.

`install` writes one small program for each into a folder; `SLURM_DOUBLE` names the folder of their state: `script`, the
last script, and for each running task NUMBER.pid, the process of its script.
"""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

COMMANDS = ("sbatch", "squeue", "srun", "scontrol")


def install(folder: Path) -> None:
    """Writes the programs."""
    folder.mkdir()
    for name in COMMANDS:
        path = folder / name
        path.write_text(f'#!/bin/sh\nexec {sys.executable} {__file__} {name} "$@"\n')
        path.chmod(path.stat().st_mode | stat.S_IXUSR)


def start(state: Path, job: str, task: str | None) -> None:
    """Runs the script of a job, or of a task of its array, in the background."""
    number = job if task is None else f"{job}_{task}"
    array = {} if task is None else {"SLURM_ARRAY_JOB_ID": job, "SLURM_ARRAY_TASK_ID": task}
    environment = {**os.environ, "SLURM_JOB_ID": job, "SLURM_JOB_NAME": "statewise", "SLURM_NTASKS": "1", **array}
    held = state / f"{number}.pid"
    with open(state / f"{number}.out", "ab") as out:
        process = subprocess.Popen(  # it waits for its number to be written, so that it also removes it
            [
                "bash",
                "-c",
                'while [ ! -s "$2" ]; do sleep 0.01; done; bash "$1"; rm -f "$2"',
                "-",
                str(state / "script"),
                str(held),
            ],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    held.with_suffix(".new").write_text(str(process.pid))
    held.with_suffix(".new").rename(held)


def main(name: str, *words: str) -> None:
    state = Path(os.environ["SLURM_DOUBLE"])
    if name == "sbatch":
        script = Path(words[-1]).read_text()
        (state / "script").write_text(script)
        job = str(100 + len(list(state.glob("*.out"))))
        arrays = [line.partition("=0-")[2].partition("%")[0] for line in script.splitlines() if "--array" in line]
        for task in range(int(arrays[0]) + 1) if arrays else [None]:
            start(state, job, None if task is None else str(task))
        print(f"Submitted batch job {job}")
    elif name == "squeue":
        found = {path.stem: "PENDING" for path in state.glob("*.requeued")}
        found |= {path.stem: "RUNNING" for path in state.glob("*.pid")}
        for number, name in found.items():
            print(number, name)
    elif name == "srun":
        command = list(words)
        while command and command[0].startswith("-"):
            if command.pop(0) in ("--output", "--error"):
                command.pop(0)
        os.environ |= {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
        os.execvp(command[0], command)
    elif name == "scontrol":
        assert words[0] == "requeue"
        job, _, task = words[1].partition("_")
        mark = state / f"{words[1]}.requeued"
        mark.touch()
        if os.fork() == 0:  # once the task that asks for it has ended
            os.setsid()
            while (state / f"{words[1]}.pid").exists():
                time.sleep(0.1)
            start(state, job, task or None)
            mark.unlink()
            os._exit(0)


def interrupt(state: Path, number: str) -> None:
    """What Slurm does before it preempts a job: warns its task."""
    group = int((state / f"{number}.pid").read_text())
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().split(b"\0")
            mine = os.getpgid(int(path.name)) == group
        except (OSError, ProcessLookupError):
            continue
        if mine and b"submitit.core._submit" in words:
            os.kill(int(path.name), signal.SIGUSR2)


if __name__ == "__main__":
    main(*sys.argv[1:])
