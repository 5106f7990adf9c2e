"""One run per seed, several in parallel, in one directory that can be resumed as a whole.

OUT/recipe.yaml  OUT/seeds.json  OUT/seed-1/  OUT/seed-1.log  OUT/seed-1.state.json  OUT/seed-2/ ...
"""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from statewise.config.recipe import Recipe
from statewise.experiments import cluster
from statewise.experiments.jobs import Job, RunsOutcome, Show, read_state, run_jobs, show_line, show_nothing, statewise
from statewise.experiments.progress import Display, record_line, total_steps
from statewise.run import FILES as RUN_FILES
from statewise.run import METRICS, Run
from statewise.run import SIGNS as RUN_SIGNS
from statewise.runtime import overwriting
from statewise.runtime.bounds import LARGEST
from statewise.runtime.durable import write_atomically
from statewise.runtime.json_files import COUNT, read_json
from statewise.runtime.messages import cut, short
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
"""Signs by which such a directory is recognised."""

MOST = 10_000
"""The largest number of runs in one directory."""


def parse(text: str, source: str = "`seeds`") -> list[int]:
    """The seeds that a text such as `1-5` or `1,2,7-9` names. Raises `ValueError`, which begins with `source`, for any
    other text, and for more than `MOST` seeds."""
    seeds: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,18})(?:-(\d{1,18}))?", part.strip())
        if not match or (match[2] and int(match[2]) < int(match[1])):
            raise ValueError(f"{source} {cut(text)}: give a range like 1-5, or numbers with commas")
        numbers = range(int(match[1]), int(match[2] or match[1]) + 1)
        if numbers[-1] >= LARGEST or numbers[-1] - numbers[0] >= MOST or len(seeds) >= MOST:
            raise ValueError(f"{source} {cut(text)}: at most {MOST:,} seeds, each below {LARGEST:,}")
        seeds += numbers
    if len(set(seeds)) != len(seeds):
        raise ValueError(f"{source} {cut(text)}: a seed is named twice")
    return seeds


def is_group(folder: Path) -> bool:
    """Whether `folder` holds the runs of several seeds."""
    return (folder / "seeds.json").is_file()


def is_begun(folder: Path) -> bool:
    """Whether the process that creates a group in `folder` was killed before `seeds.json` was written."""
    return (
        folder.is_dir() and not is_group(folder) and not overwriting.strangers(folder, ("recipe.yaml", "seeds.json"), 1)
    )


def train(
    recipe: Recipe,
    folder: Path,
    seeds: list[int],
    *,
    jobs: int = 1,
    overwrite: bool = False,
    slurm: cluster.SlurmOptions | None = None,
    progress: bool = False,
) -> RunsOutcome:
    """Trains one run of the recipe for each seed, `jobs` at a time, or all on a Slurm cluster with the options `slurm`.
    `progress`: prints notes on the data, and evaluations as they come. Raises `FileExistsError` if `folder` holds
    anything but what a killed process of the same recipe began."""
    with overwriting.claimed(folder):
        overwriting.put_back(folder, FILES, lambda: is_group(folder))
        begun = is_begun(folder) and not has_other_recipe(folder, recipe)
        if not begun:
            overwriting.check_folder(folder, FILES, SIGNS, "group of runs", overwrite, f"`resume` {folder} or ")
        from statewise.experiments.launch import Listener, check

        with Display() as display:  # before old runs are deleted
            listener = Listener(note=display.note, baselines=display.baselines) if progress else None
            check(recipe, listener, here=slurm is None)
        with contextlib.ExitStack() as stack:
            for old in sorted(folder.glob("seed-*/")):
                stack.enter_context(Run(old).lock())
        with overwriting.replacing(folder, FILES, there=folder.exists() and not begun):
            write_group(folder, recipe, seeds)
    commands = {seed: _new(folder, seed) for seed in seeds}
    return _run_all(folder, commands, recipe.as_dict(), jobs, slurm, show_line if progress else show_nothing)


def _as_yaml(recipe: Recipe) -> bytes:
    return yaml.safe_dump(recipe.as_dict(), sort_keys=False).encode()


def has_other_recipe(folder: Path, recipe: Recipe) -> bool:
    """Whether `folder` holds seeds of a different recipe."""
    path = folder / "recipe.yaml"
    if not path.exists() or path.read_bytes() == _as_yaml(recipe):
        return False
    try:
        return not _same_but_for_compiling(_recorded(folder), recipe)
    except ValueError:
        return True


def _recorded(folder: Path) -> Recipe:
    """The recipe of a group. Raises `ValueError` if it is damaged."""
    from statewise.model.recipes import read_recipe

    path = folder / "recipe.yaml"
    return read_recipe(path.read_bytes(), source=str(path))


def _same_but_for_compiling(one: Recipe, other: Recipe) -> bool:
    """Whether two recipes are equal. What is compiled changes numbers by rounding alone, and has a new default."""
    return replace(one, trainer=replace(one.trainer, compile=other.trainer.compile)) == other


def write_group(folder: Path, recipe: Recipe, seeds: list[int]) -> None:
    """Writes the recipe and the seeds of a group; `seeds.json`, by which `is_group` recognises it, comes last."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "recipe.yaml", _as_yaml(recipe))
    write_atomically(folder / "seeds.json", json.dumps({"seeds": seeds}).encode())


def check_same(folder: Path, recipe: Recipe, seeds: list[int]) -> None:
    """Raises `ValueError` unless `folder` holds the runs of this recipe and these seeds."""
    if not _same_but_for_compiling(_recorded(folder), recipe):
        raise ValueError(f"{folder} holds runs of another recipe: choose another `out`")
    if seeds_of(folder) != seeds:
        raise ValueError(f"{folder} holds runs of other seeds: choose another `out`")


def train_or_resume(
    recipe: Recipe,
    folder: Path,
    seeds: list[int],
    *,
    jobs: int = 1,
    slurm: cluster.SlurmOptions | None = None,
    progress: bool = False,
) -> RunsOutcome | None:
    """Resumes the group in `folder` if it holds these seeds of this recipe, otherwise trains a new one there. None if
    all its runs are complete. Raises `ValueError` for a group of another recipe or of other seeds."""
    if not is_group(folder):
        return train(recipe, folder, seeds, jobs=jobs, slurm=slurm, progress=progress)
    check_same(folder, recipe, seeds)
    return resume(folder, jobs=jobs, slurm=slurm, progress=progress)


def resume(
    folder: Path, *, jobs: int = 1, slurm: cluster.SlurmOptions | None = None, progress: bool = False
) -> RunsOutcome | None:
    """Continues the runs of a group that are not complete; the options are those of `train`. None if all are
    complete."""
    from statewise.model.recipes import read_recipe

    seeds = seeds_of(folder)
    recipe = read_recipe((folder / "recipe.yaml").read_bytes(), source=str(folder / "recipe.yaml")).as_dict()
    commands = {}
    for seed in seeds:
        run = Run(folder / f"seed-{seed}")
        if not run.exists() or not run.complete():
            commands[seed] = statewise("train", "--resume", str(run.folder)) if run.exists() else _new(folder, seed)
    if not commands:
        return None
    return _run_all(folder, commands, recipe, jobs, slurm, show_line if progress else show_nothing)


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
    folder: Path,
    commands: dict[int, list[str]],
    recipe: dict[str, Any],
    jobs: int,
    slurm: cluster.SlurmOptions | None,
    show: Show,
) -> RunsOutcome:
    """Runs the command of each seed, and shows new records of the runs."""
    shown = {seed: Shown.of(Run(folder / f"seed-{seed}")) for seed in commands}
    failed = list[str]()
    begun = "submitted" if slurm else "started"

    def started(job: Job) -> None:
        show(f"seed {job.name:>3} | {begun}; its output is in {job.log}")

    def looked_at(job: Job) -> None:
        for line in shown[int(job.name)].new_lines(recipe):
            show(f"seed {job.name:>3} | {line}")

    def ended(job: Job, code: int) -> None:
        if code:
            failed.append(job.name)
            show(f"seed {job.name:>3} | failed with {read_state(job.log)[1]}")

    each = [Job(str(seed), {"train": command}, folder / f"seed-{seed}.log") for seed, command in commands.items()]
    run = partial(run_jobs, at_once=jobs)
    if slurm is not None:
        run = partial(cluster.run_jobs, options=slurm, folder=folder / cluster.SUBMITTED, show=show)
    received = run(each, started=started, looked_at=looked_at, ended=ended)
    in_cluster = slurm is not None and (slurm.detach or received is not None)
    return RunsOutcome(folder, failed, received, in_cluster)


@dataclass
class Shown:
    """How far the records of a run have been shown."""

    run: Run
    lines: list[bytes]
    stamp: tuple[int, int] | None = None
    """Size and time of change of the file when it was last read, so that it is not read several times a second."""

    @classmethod
    def of(cls, run: Run) -> Shown:
        """A run whose records so far count as shown."""
        return cls(run, run.lines())

    def new_lines(self, recipe: dict[str, Any]) -> list[str]:
        """Texts of new evaluation and end records, also those of steps that are trained again."""
        path = self.run.folder / METRICS
        state = path.stat() if path.exists() else None
        stamp = None if state is None else (state.st_size, state.st_mtime_ns)
        if stamp == self.stamp:
            return []
        lines, before = self.run.lines(), self.lines
        shorter = min(len(before), len(lines))
        same = next((place for place, pair in enumerate(zip(before, lines)) if pair[0] != pair[1]), shorter)
        records = [record for record in self.run.records(lines, same) if record["kind"] != "train"]
        texts = [record_line(record, total_steps(self.run, recipe)) for record in records]
        self.lines, self.stamp = lines, stamp
        return texts


def is_beside_run(path: Path) -> bool:
    """Whether this is the log or the state of a seed's run: files beside it, which GROUP/seed-* matches too."""
    return path.suffix in (".log", ".json") and path.is_file() and Run(path.with_name(path.name.split(".")[0])).exists()


def members(folder: Path) -> list[Path]:
    """The run directories in a group, by seed."""
    return [folder / f"seed-{seed}" for seed in seeds_of(folder)]


def evaluated(folder: Path) -> tuple[list[Path], list[int]]:
    """The run directories in a group that have an evaluation, by seed, and the seeds that have none yet."""
    finished, others = list[Path](), list[int]()
    for seed, member in zip(seeds_of(folder), members(folder), strict=True):
        run = Run(member)
        if run.exists() and run.report("evaluation") is not None:
            finished.append(member)
        else:
            others.append(seed)
    return finished, others


def seeds_of(folder: Path) -> list[int]:
    """The seeds of a group."""
    seeds: list[int] = read_json(folder / "seeds.json", {"seeds": [COUNT]})["seeds"]
    if len({*seeds}) < len(seeds):
        raise ValueError(f"{folder / 'seeds.json'}: a seed occurs twice in {short(seeds)}")
    return seeds
