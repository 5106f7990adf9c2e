"""One run per seed, several in parallel, in one directory that can be resumed as a whole.

OUT/recipe.yaml  OUT/seeds.json  OUT/seed-1/  OUT/seed-1.log  OUT/seed-1.state.json  OUT/seed-2/ ...
"""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from statewise.config.recipe import Recipe
from statewise.experiments import cluster
from statewise.experiments.jobs import Job, read_state, run_jobs, statewise
from statewise.experiments.progress import Display, record_line, total_steps
from statewise.run import FILES as RUN_FILES
from statewise.run import METRICS, Run
from statewise.run import SIGNS as RUN_SIGNS
from statewise.runtime import overwriting
from statewise.runtime.bounds import LARGEST
from statewise.runtime.durable import write_atomically
from statewise.runtime.json_files import COUNT, read_json
from statewise.runtime.messages import cut, say, short
from statewise.runtime.yaml_files import read_yaml

FILES = (
    *("recipe.yaml", "seeds.json", "seed-*.log", "seed-*.state.json", "seed-*.job.json", f"{cluster.SUBMITTED}/*"),
    *(f"seed-*/{name}" for name in RUN_FILES),
)
"""Everything in such a directory, as patterns of `statewise.runtime.overwriting`."""


def _is_recipe(path: Path) -> bool:
    """Whether `train` wrote the file."""
    from statewise.config.recipe import KINDS

    return {*KINDS, "trainer", "seed"} <= read_yaml(path.read_bytes(), str(path)).keys()


SIGNS = {
    "recipe.yaml": _is_recipe,
    "seeds.json": lambda path: bool(read_json(path, {"seeds": [COUNT]})),
    **{f"seed-*/{name}": sign for name, sign in RUN_SIGNS.items()},
}
"""How it is recognised."""

MOST = 10_000
"""Runs in one directory."""


def parse(text: str, source: str = "--seeds") -> list[int]:
    """`1-5` or `1,2,7-9` as numbers. Raises `ValueError`, which begins with `source`, for anything else, and for more
    than `MOST`."""
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,18})(?:-(\d{1,18}))?", part.strip())
        if not match or (match[2] and int(match[2]) < int(match[1])):
            raise ValueError(f"{source} {cut(text)}: give a range like 1-5, or numbers with commas")
        numbers = range(int(match[1]), int(match[2] or match[1]) + 1)
        if numbers[-1] >= LARGEST or numbers[-1] - numbers[0] >= MOST or len(found) >= MOST:
            raise ValueError(f"{source} {cut(text)}: at most {MOST:,} seeds, each below {LARGEST:,}")
        found += numbers
    if len(set(found)) != len(found):
        raise ValueError(f"{source} {cut(text)}: a seed is named twice")
    return found


def is_group(folder: Path) -> bool:
    """Whether `folder` holds the runs of several seeds."""
    return (folder / "seeds.json").is_file()


def is_begun(folder: Path) -> bool:
    """Whether `folder` holds at most what is written before it `is_group`: the process that began it was killed."""
    return (
        folder.is_dir() and not is_group(folder) and not overwriting.strangers(folder, ("recipe.yaml", "seeds.json"), 1)
    )


def train(
    recipe: Recipe, folder: Path, seeds: list[int], jobs: int, overwrite: bool, asked: cluster.Settings | None = None
) -> int:
    """Trains all seeds, `jobs` at a time, or on a cluster as `asked`. Raises `FileExistsError` if something is there
    already, other than what a killed process of the same recipe began."""
    with overwriting.claimed(folder):
        overwriting.put_back(folder, FILES, lambda: is_group(folder))
        begun = is_begun(folder) and not has_other_recipe(folder, recipe)
        if not begun:
            overwriting.check_folder(folder, FILES, SIGNS, "group of runs", overwrite, f"--resume {folder} or ")
        from statewise.experiments.launch import Listener, check

        with Display() as display:  # before old runs are deleted
            check(recipe, Listener(note=display.note, baselines=display.baselines), here=asked is None)
        with contextlib.ExitStack() as stack:
            for old in sorted(folder.glob("seed-*/")):
                stack.enter_context(Run(old).lock())
        with overwriting.replacing(folder, FILES, there=folder.exists() and not begun):
            write_group(folder, recipe, seeds)
    return _run_all(folder, {seed: _new(folder, seed) for seed in seeds}, jobs, recipe.as_dict(), asked)


def _as_yaml(recipe: Recipe) -> bytes:
    return yaml.safe_dump(recipe.as_dict(), sort_keys=False).encode()


def has_other_recipe(folder: Path, recipe: Recipe) -> bool:
    """Whether `folder` has the recipe of a group, another than this one."""
    path = folder / "recipe.yaml"
    return path.exists() and path.read_bytes() != _as_yaml(recipe)


def write_group(folder: Path, recipe: Recipe, seeds: list[int]) -> None:
    """Writes what the runs of a group are; `seeds.json` last, by which it `is_group`."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "recipe.yaml", _as_yaml(recipe))
    write_atomically(folder / "seeds.json", json.dumps({"seeds": seeds}).encode())


def check_same(folder: Path, recipe: Recipe, seeds: list[int]) -> None:
    """Raises `ValueError` unless `folder` holds the runs of this recipe and these seeds."""
    from statewise.model.recipes import read_recipe

    if read_recipe((folder / "recipe.yaml").read_bytes(), source=str(folder / "recipe.yaml")) != recipe:
        raise ValueError(f"{folder} holds runs of another recipe: choose another --out")
    if seeds_of(folder) != seeds:
        raise ValueError(f"{folder} holds runs of other seeds: choose another --out")


def resume(folder: Path, jobs: int, asked: cluster.Settings | None = None) -> int:
    """Continues the seeds that are not complete, `jobs` at a time, or on a cluster as `asked`."""
    from statewise.model.recipes import read_recipe

    seeds = seeds_of(folder)
    recipe = read_recipe((folder / "recipe.yaml").read_bytes(), source=str(folder / "recipe.yaml")).as_dict()
    commands = {}
    for seed in seeds:
        run = Run(folder / f"seed-{seed}")
        if not run.exists() or not run.complete():
            commands[seed] = statewise("train", "--resume", str(run.folder)) if run.exists() else _new(folder, seed)
    if not commands:
        say(f"{folder} is complete: nothing to resume")
        return 0
    return _run_all(folder, commands, jobs, recipe, asked)


def _new(folder: Path, seed: int) -> list[str]:
    return statewise(
        "train",
        "--config",
        str(folder / "recipe.yaml"),
        "--seed",
        str(seed),
        "--out",
        str(folder / f"seed-{seed}"),
        "--resume-if-there",
    )


def _run_all(
    folder: Path, commands: dict[int, list[str]], jobs: int, recipe: dict[str, Any], asked: cluster.Settings | None
) -> int:
    """Runs the commands and prints their records as they come."""
    shown = {seed: Shown.of(Run(folder / f"seed-{seed}")) for seed in commands}
    failed = list[int]()
    begun = "submitted" if asked else "started"

    def started(job: Job) -> None:
        say(f"seed {job.name:>3} | {begun}; its output is in {job.log}", flush=True)

    def looked_at(job: Job) -> None:
        shown[int(job.name)].go_on(int(job.name), recipe)

    def ended(job: Job, code: int) -> None:
        if code:
            failed.append(int(job.name))
            say(f"seed {job.name:>3} | failed with {read_state(job.log)[1]}", flush=True)

    each = [Job(str(seed), {"train": command}, folder / f"seed-{seed}.log") for seed, command in commands.items()]
    run = partial(run_jobs, at_once=jobs)
    if asked is not None:
        run = partial(cluster.run_jobs, asked=asked, folder=folder / cluster.SUBMITTED)
    received = run(each, started=started, looked_at=looked_at, ended=ended)
    if asked is not None and (asked.detach or received is not None):
        say(f"the jobs go on: statewise status {shlex.quote(str(folder))}", file=sys.stderr)
        return 0 if received is None else 128 + received
    if received is not None:
        say(f"stopped and saved; continue with: statewise train --resume {shlex.quote(str(folder))}", file=sys.stderr)
        return 128 + received
    if failed:
        again = f"statewise train --resume {shlex.quote(str(folder))}"
        say(f"failed: seeds {failed}; continue with: {again}", file=sys.stderr)
    return 1 if failed else 0


@dataclass
class Shown:
    """How far the records of a run have been printed."""

    run: Run
    lines: list[bytes]
    stamp: tuple[int, int] | None = None
    """Size and time of change of the file when it was last read: it is looked at several times a second."""

    @classmethod
    def of(cls, run: Run) -> Shown:
        """As if all records that there are had been printed."""
        return cls(run, run.lines())

    def go_on(self, seed: int, recipe: dict[str, Any]) -> None:
        """Prints evaluation and end records that are new, also those of steps that are trained again."""
        path = self.run.folder / METRICS
        state = path.stat() if path.exists() else None
        stamp = None if state is None else (state.st_size, state.st_mtime_ns)
        if stamp == self.stamp:
            return
        lines, before = self.run.lines(), self.lines
        shorter = min(len(before), len(lines))
        same = next((place for place, pair in enumerate(zip(before, lines)) if pair[0] != pair[1]), shorter)
        for record in self.run.records(lines, same):
            if record["kind"] != "train":
                say(f"seed {seed:>3} | {record_line(record, total_steps(self.run, recipe))}", flush=True)
        self.lines, self.stamp = lines, stamp


def is_beside_run(path: Path) -> bool:
    """Whether this is a file that a group has beside the run of a seed, its log or state, which the pattern
    GROUP/seed-* names, too."""
    return path.suffix in (".log", ".json") and path.is_file() and Run(path.with_name(path.name.split(".")[0])).exists()


def members(folder: Path) -> list[Path]:
    """The run directories in a group, by seed."""
    return [folder / f"seed-{seed}" for seed in seeds_of(folder)]


def evaluated(folder: Path) -> tuple[list[Path], list[int]]:
    """The run directories in a group that have an evaluation, by seed, and the seeds that have none yet."""
    found, others = list[Path](), list[int]()
    for seed, member in zip(seeds_of(folder), members(folder), strict=True):
        run = Run(member)
        if run.exists() and run.report("evaluation") is not None:
            found.append(member)
        else:
            others.append(seed)
    return found, others


def seeds_of(folder: Path) -> list[int]:
    """The seeds of a group."""
    seeds: list[int] = read_json(folder / "seeds.json", {"seeds": [COUNT]})["seeds"]
    if len({*seeds}) < len(seeds):
        raise ValueError(f"{folder / 'seeds.json'}: a seed stands twice in {short(seeds)}")
    return seeds
