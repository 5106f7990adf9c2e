"""statewise suite: a named set of runs, resumable, with one table and one page.

OUT/suite.yaml  OUT/table.md  OUT/results.json  OUT/index.html
OUT/RECIPE/OBJECTIVE-BACKBONE/recipe.yaml  seeds.json  seed-1/  seed-1.log  seed-1.state.json  seed-2/ ...
"""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from statewise.cli import cluster_options
from statewise.cli.arguments import Parser, at_least
from statewise.config.suites import Cell, Suite, read_suite, suite_given, suite_names
from statewise.experiments import cluster
from statewise.experiments.jobs import Job, read_state, run_jobs, statewise, threads_of_jobs
from statewise.experiments.progress import duration
from statewise.experiments.seeds import has_other_recipe, is_group, parse, seeds_of, write_group
from statewise.run import Run, check_checkpoint
from statewise.runtime.durable import lock, write_all, write_atomically
from statewise.runtime.messages import counted, in_words, say

if TYPE_CHECKING:
    from statewise.config.recipe import Recipe
    from statewise.reporting.suite import SuiteReport, SuiteRun

MARK = b"# A copy, by `statewise suite`, of the suite whose runs are in this folder.\n"
"""Begins OUT/suite.yaml, and tells the folder of a suite from any other."""
LOCK = ".lock"
"""Held while runs are prepared, trained and reported."""

DESCRIPTION = """Trains a suite: a set of recipes, each with several objectives, backbones and seeds.

  statewise suite belief --dry-run
  statewise suite belief --seeds 1-5 --jobs 2 --out runs/suite
  statewise suite my.yaml --out runs/mine
  statewise suite belief --on slurm --slurm.gpus 1 --out runs/suite

The same command continues a suite that was stopped, and tries failed runs again. Writes table.md, results.json and
index.html of all runs in the folder; a run that failed is a row with its message. With --only or --seeds it trains and
prints those runs alone. `statewise status runs/suite` shows how far it is,
`statewise compare runs/suite/parity/*` compares further."""


@dataclass(frozen=True)
class Planned:
    """One run."""

    cell: Cell
    seed: int
    group: Path

    @property
    def folder(self) -> Path:
        """Of the run."""
        return self.group / f"seed-{self.seed}"

    @property
    def log(self) -> Path:
        """Where its output is."""
        return self.group / f"seed-{self.seed}.log"

    def names(self) -> list[str]:
        """Of all its commands: `train`, and then each as the suite has it."""
        return ["train", *(" ".join(words) for words in self.cell.then)]

    def state(self) -> tuple[list[str], str]:
        """Which of its commands have succeeded, and why the next failed. Training that was completed by other means
        counts."""
        done, failed = read_state(self.log)
        run = Run(self.folder)
        trained = run.exists() and run.complete()
        return (["train", *(name for name in done if name != "train")] if trained else []), failed

    def finished_by(self, done: list[str]) -> bool:
        """Whether these are all its commands."""
        return set(self.names()) <= set(done)

    def job(self, done: list[str]) -> Job:
        """What is left to do after these commands."""
        run = Run(self.folder)
        train = (
            ["--resume", str(self.folder)]
            if run.exists()
            else [
                "--config",
                str(self.group / "recipe.yaml"),
                "--seed",
                str(self.seed),
                "--out",
                str(self.folder),
                "--resume-if-there",
            ]
        )
        every = [statewise("train", *train)]
        every += [statewise(words[0], str(self.folder), *words[1:]) for words in self.cell.then]
        left = {name: command for name, command in zip(self.names(), every, strict=True) if name not in done}
        return Job(f"{self.cell.name} seed {self.seed}", left, self.log, done)


def run(words: list[str]) -> int:
    """Runs the command."""
    parser = Parser("suite", DESCRIPTION)
    parser.add_argument("suite", metavar="SUITE", help=f"a suite ({', '.join(suite_names())}), or a YAML file")
    parser.add_argument("--out", metavar="DIR", help="folder of the suite")
    parser.add_argument("--seeds", metavar="1-5", help="a range, or numbers with commas (default: the suite's)")
    parser.add_argument("--jobs", type=at_least(1), default=1, metavar="N", help="parallel runs (default: 1)")
    parser.add_argument(
        "--only",
        nargs="+",
        action="extend",
        default=[],
        metavar="TEXT",
        help="train and print only runs with one of these texts where a word of RECIPE/OBJECTIVE-BACKBONE begins",
    )
    parser.add_argument("--dry-run", action="store_true", help="print how many runs there are and how long they take")
    parser.add_argument("--table", action="store_true", help="train nothing: table and page of the runs that are there")
    cluster_options.add_options(parser)
    options = parser.parse_args(words)
    asked = cluster_options.settings(options)
    text, source = suite_given(options.suite)
    whole = suite = read_suite(text, source)
    seeds = parse(options.seeds) if options.seeds is not None else parse(suite.seeds, f"{source}: seeds")
    if options.only:
        for wanted in options.only:
            if not wanted or not any(_named(wanted, cell) for cell in suite.cells):
                raise ValueError(f"--only {wanted or repr(wanted)}: no run of {source} has this in its name")
        cells = [cell for cell in suite.cells if any(_named(wanted, cell) for wanted in options.only)]
        suite = replace(suite, cells=cells)
    if options.out is None and not options.dry_run:
        raise ValueError("--out is missing: the folder of the suite")
    say(f"{source}: loading PyTorch", flush=True)
    recipes = _recipes(suite, source, commands=not options.table)
    out = Path(options.out) if options.out else Path(options.suite)
    # One seed of everything comes before the next seed: an early table is complete in breadth.
    planned = [Planned(cell, seed, out / cell.name) for seed in seeds for cell in suite.cells]
    if options.dry_run:
        return _dry_run(suite, recipes, planned, options.jobs)
    from statewise.reporting.suite import template

    template()  # before hours of training
    title = f"Suite {Path(options.suite).stem}"
    with contextlib.ExitStack() as held:
        if options.table:
            if not _is_suite(out):
                raise ValueError(f"{out} holds no suite: train one without --table first")
            _check_same(out, whole, suite, recipes, source)
            code = 0
        else:
            held.enter_context(_locked(out))
            _prepare(out, text, whole, suite, recipes, seeds, source)
            code = _run_all(planned, options.jobs, asked, out)
        there = [Planned(cell, seed, out / cell.name) for cell in whole.cells for seed in _seeds(out / cell.name)]
        shown = planned if options.seeds is not None else [one for one in there if one.cell in suite.cells]
        if not there or not shown:
            raise ValueError(
                f"{out} holds no run of {source}"
                + f" with {' or '.join(options.only)} in its name" * bool(options.only)
            )
        runs = _runs([*there, *shown])
        _write(out, _report(title, whole, there, runs), _report(title, whole, shown, runs))
    again = shlex.join(["statewise", "suite", *words])
    if code >= 128 and asked:
        say(f"the jobs go on; statewise status {out} shows them, the same command waits for them", file=sys.stderr)
    elif code >= 128:
        say(f"stopped and saved; the same command continues: {again}", file=sys.stderr)
    elif code:
        say(f"some runs failed; the same command tries them again: {again}", file=sys.stderr)
    return code


def _named(text: str, cell: Cell) -> bool:
    """Whether a word of the cell's name begins with `text`: s3/ does not stand for mess3/."""
    return re.search(r"(?<!\w)" * bool(re.match(r"\w", text)) + re.escape(text), cell.name) is not None


def _recipes(suite: Suite, source: str, *, commands: bool) -> dict[str, Recipe]:
    """The recipe of each cell. Raises `ValueError` for one that does not parse, or whose parts do not go together, and
    if `commands` for such on its runs that do not parse."""
    import torch

    from statewise.cli import analyze, evaluate
    from statewise.model.building import check_analysis, make_objective, make_task
    from statewise.model.recipes import read_recipe
    from statewise.training.machine import choose_device

    found, tasks = {}, {}
    for cell in suite.cells:
        recipe = read_recipe(cell.text, source=f"{source}, {cell.name}")
        try:
            key = json.dumps(recipe.as_dict()["task"], sort_keys=True)
            if key not in tasks:
                tasks[key] = make_task(recipe)
            with torch.device("meta"):
                objective = make_objective(recipe, tasks[key])
            for command, *words in cell.then if commands else ():
                if command == "analyze":
                    options, analysis = analyze.options_of(["RUN", *words])
                    check_analysis(analysis, tasks[key], objective)
                else:
                    options, by = evaluate.options_of(["RUN", *words], recipe.task.name)
                    for option, file in (("--data", options.data), ("--fills", options.fills)):
                        if file and not Path(file).exists():
                            raise ValueError(f"{option} {file}: no such file or folder")
                        if file and option == "--fills" and not Path(file).is_file():
                            raise ValueError(f"{option} {file} is a folder: give a file")
                    evaluate.check_decoded(evaluate.decoder_of(options)[1], recipe.task.name, tasks[key])
                    if by:
                        tasks[key].held_out_by(*by, 1)
                check_checkpoint(options.checkpoint)
                choose_device(options.device)
        except ValueError as error:
            raise ValueError(f"{source}, {cell.name}: {error}") from None
        found[cell.name] = recipe
    return found


@contextlib.contextmanager
def _locked(out: Path) -> Iterator[None]:
    """The folder of the suite, made if it is not there, held by this process alone."""
    if out.exists() and not out.is_dir():
        raise FileExistsError(f"{out} is a file: --out names a folder")
    out.mkdir(parents=True, exist_ok=True)
    with lock(
        out / LOCK, f"{out} is in use by another `statewise suite`; `statewise status {out}` shows how far it is"
    ):
        yield


def _prepare(
    out: Path, text: bytes, whole: Suite, suite: Suite, recipes: dict[str, Recipe], seeds: list[int], source: str
) -> None:
    """Writes what each cell of `suite`, the part of `whole` that is asked for, trains. Raises `FileExistsError` if
    other things are there."""
    if any(not path.name.startswith(LOCK) for path in out.iterdir()) and not _is_suite(out):
        raise FileExistsError(f"{out} exists and holds no suite: choose another --out")
    _check_same(out, whole, suite, recipes, source)
    write_atomically(out / "suite.yaml", MARK + text.removeprefix(MARK))
    for cell in suite.cells:
        group = out / cell.name
        write_group(group, recipes[cell.name], sorted({*_seeds(group), *seeds}))


def _check_same(out: Path, whole: Suite, suite: Suite, recipes: dict[str, Recipe], source: str) -> None:
    """Raises `FileExistsError` if there are runs of other recipes in the folder, or of cells that `whole` lacks."""
    names = {cell.name for cell in whole.cells}
    for group in sorted(path.parent for path in out.glob("*/*/seeds.json")):
        if (name := group.relative_to(out).as_posix()) not in names:
            raise FileExistsError(f"{out} holds runs of {name}, which {source} does not have: choose another --out")
    for cell in suite.cells:
        if has_other_recipe(out / cell.name, recipes[cell.name]):
            raise FileExistsError(f"{out / cell.name} has runs of another recipe than {source}: choose another --out")


def _is_suite(out: Path) -> bool:
    """Whether a folder holds a suite: a copy of its YAML that statewise wrote."""
    copy = out / "suite.yaml"
    return copy.is_file() and copy.read_bytes().startswith(MARK)


def _seeds(group: Path) -> list[int]:
    """The seeds of a combination's folder; none if it is not there."""
    return seeds_of(group) if is_group(group) else []


def _run_all(planned: list[Planned], jobs: int, asked: cluster.Settings | None, out: Path) -> int:
    """Runs what is not finished, `jobs` at a time or on a cluster; returns the exit code."""
    damaged: list[str] = []
    left: list[Job] = []
    for one in planned:
        try:
            done, _ = one.state()
        except (ValueError, OSError) as error:
            damaged.append(f"{one.cell.name} seed {one.seed} cannot be continued: {in_words(error)}")
            continue
        if not one.finished_by(done):
            left.append(one.job(done))
    say(
        f"{len(planned)} runs, of which {len(planned) - len(left) - len(damaged)} are finished",
        *damaged,
        sep="\n",
        flush=True,
    )
    ended_runs: list[str] = []
    failures = list(damaged)

    def progress() -> str:
        return f"{len(ended_runs) + len(planned) - len(left):>4}/{len(planned)}"

    def started(job: Job) -> None:
        say(f"{progress()} | {job.name}: {'submitted' if asked else 'started'}", flush=True)

    def ended(job: Job, code: int) -> None:
        ended_runs.append(job.name)
        if code:
            failures.append(job.name)
            say(f"{progress()} | {job.name}: failed with {read_state(job.log)[1]}", flush=True)
        else:
            say(f"{progress()} | {job.name}: finished", flush=True)

    run = partial(run_jobs, at_once=jobs)
    if asked is not None:
        run = partial(cluster.run_jobs, asked=asked, folder=out / cluster.SUBMITTED)
    received = run(left, started=started, looked_at=lambda job: None, ended=ended)
    return 128 + received if received is not None else int(bool(failures))


def _write(out: Path, report: SuiteReport, shown: SuiteReport) -> None:
    """Writes the report, and prints what is to be shown."""
    from statewise.reporting.tables import fitted_notes, fitted_tables

    written = {"table.md": report.as_markdown(), "results.json": report.as_json(), "index.html": report.as_html()}
    width = shutil.get_terminal_size((100, 24)).columns
    say(fitted_tables(*shown.table(), width, keys=3))
    say(fitted_notes(shown.notes(), width))
    write_all({out / name: content.encode() for name, content in written.items()})
    for name in written:
        say(f"wrote {out / name}")


def _report(title: str, suite: Suite, planned: list[Planned], runs: dict[Path, SuiteRun]) -> SuiteReport:
    """The report of some of the `runs`."""
    from statewise.reporting.suite import SuiteReport

    in_order = sorted(planned, key=lambda one: suite.cells.index(one.cell))
    return SuiteReport(title, suite.about, [runs[one.folder] for one in in_order], suite.metrics)


def _runs(planned: Iterable[Planned]) -> dict[Path, SuiteRun]:
    """The runs by their folders, each read once."""
    from statewise.reporting.suite import SuiteRun

    found: dict[Path, SuiteRun] = {}
    wanted: dict[str, dict[str, dict[str, Any] | None]] = {}
    for one in planned:
        if one.folder in found:
            continue
        names = one.cell.recipe, one.cell.objective, one.cell.backbone
        try:
            if one.cell.name not in wanted:
                wanted[one.cell.name] = _reports(one.cell)
            done, failed = one.state()
            finished = one.finished_by(done)
            found[one.folder] = SuiteRun.read(names, one.seed, one.folder, finished, failed, wanted[one.cell.name])
        except (ValueError, OSError) as error:  # one damaged run does not hide the others
            found[one.folder] = SuiteRun.failed(names, one.seed, one.folder, in_words(error))
    return found


def _reports(cell: Cell) -> dict[str, dict[str, Any] | None]:
    """The reports that the suite's own commands write in a run: their names, and of analyses the settings."""
    from statewise.cli import analyze, evaluate

    found: dict[str, dict[str, Any] | None] = {}
    for command, *words in cell.then:
        if command == "analyze":
            options, analysis = analyze.options_of(["RUN", *words])
            found[analyze.report_name(options, analysis)] = asdict(analysis.config)
        else:
            options, by = evaluate.options_of(["RUN", *words], cell.fields["task"]["name"])
            found[evaluate.report_name(options, by, evaluate.decoder_of(options)[1])] = None
    return found


def _dry_run(suite: Suite, recipes: dict[str, Recipe], planned: list[Planned], jobs: int) -> int:
    """Prints the number of runs, and the time of training measured on this machine by a step of each."""
    from statewise.experiments.dry_run import make_plan, task_data
    from statewise.reporting.tables import text_table

    left = [one for one in planned if not one.finished_by(one.state()[0])]
    say(
        f"{counted(len(planned), 'run')}: {counted(len(suite.cells), 'combination')}; "
        f"{counted(len(planned) - len(left), 'run')} finished"
    )
    threads = threads_of_jobs(jobs)
    hours: dict[str, float] = {}
    for cell in suite.cells:
        count = sum(one.cell is cell for one in left)
        if not count:
            continue
        recipe = recipes[cell.name]
        recipe = replace(recipe, trainer=replace(recipe.trainer, threads=recipe.trainer.threads or threads))
        plan = make_plan(recipe, task_data(recipe))
        if plan.step_seconds is None:
            raise ValueError(f"{cell.name} does not fit this machine")
        hours[cell.name] = count * plan.steps * plan.step_seconds / 3600
        say(f"  {cell.name}: {count} x {plan.steps:,} steps of {plan.step_seconds * 1000:.1f} ms", flush=True)
    by_recipe: dict[str, float] = {}
    for cell in suite.cells:
        by_recipe[cell.recipe] = by_recipe.get(cell.recipe, 0.0) + hours.get(cell.name, 0.0)
    total = sum(hours.values())
    rows = [[name, f"{found:.2f}"] for name, found in [*by_recipe.items(), ("all", total)]]
    say(text_table(["recipe", "hours of one process"], rows))
    say(
        f"{counted(len(left), 'run')} left, {jobs} at a time with {counted(threads, 'thread')} each: at most "
        f"{duration(total / jobs * 3600)} of training, and evaluations and starts besides"
    )
    return 0
