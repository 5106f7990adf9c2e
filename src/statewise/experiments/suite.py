"""Trains the runs of a suite, continues them, and reports on all of them.

OUT/suite.yaml  OUT/table.md  OUT/results.json  OUT/index.html  OUT/pictures/NAME*.png  OUT/pictures/NAME.md
OUT/RECIPE/OBJECTIVE-BACKBONE/recipe.yaml  seeds.json  seed-1/  seed-1.log  seed-1.state.json  seed-2/ ...
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from statewise.config.suites import Cell, Suite, read_suite, suite_given
from statewise.experiments import cluster
from statewise.experiments.jobs import (
    Job,
    RunsOutcome,
    Show,
    read_state,
    run_jobs,
    show_line,
    show_nothing,
    statewise,
    threads_of_jobs,
)
from statewise.experiments.requests import AnalysisRequest, EvaluationRequest
from statewise.experiments.seeds import has_other_recipe, is_group, parse, seeds_of, write_group
from statewise.run import Run
from statewise.runtime.durable import lock, write_all, write_atomically
from statewise.runtime.messages import in_words

if TYPE_CHECKING:
    from statewise.config.recipe import Recipe
    from statewise.reporting.suite import SuiteReport, SuiteRun

MARK = b"# A copy, by `statewise suite`, of the suite whose runs are in this folder.\n"
"""First line of OUT/suite.yaml, by which the folder of a suite is recognised."""
LOCK = ".lock"
"""Held while runs are prepared, trained and reported."""


@dataclass(frozen=True)
class Chosen:
    """A suite, and the combinations and seeds of it that are chosen."""

    text: bytes
    """The YAML of the suite."""
    source: str
    """Origin of the YAML, for messages."""
    title: str
    whole: Suite
    cells: list[Cell]
    """The chosen combinations."""
    only: Sequence[str]
    """The texts that chose them; empty: all combinations are chosen."""
    seeds: list[int]
    seeds_given: bool
    """Whether the seeds are not those of the suite."""

    @classmethod
    def of(cls, suite: str, seeds: str | None = None, only: Sequence[str] = (), *, smoke: bool = False) -> Chosen:
        """The combinations of a suite, the name of one of ours or a YAML file, with one of the texts `only` at the
        beginning of a word of RECIPE/OBJECTIVE-BACKBONE, and the `seeds`, such as `1-5`; with `smoke` so small that
        they only show that everything runs. Raises `ValueError` for unknown suites, for texts that fit no combination,
        and for malformed seeds."""
        text, source = suite_given(suite)
        whole = read_suite(text, source, smoke=smoke)
        numbers = parse(seeds) if seeds is not None else parse(whole.seeds, f"{source}: seeds")
        for part in only:
            if not part or not any(_has_word(part, cell) for cell in whole.cells):
                raise ValueError(f"`only` {part or repr(part)}: no run of {source} has this in its name")
        cells = [cell for cell in whole.cells if not only or any(_has_word(part, cell) for part in only)]
        return cls(text, source, f"Suite {Path(suite).stem}", whole, cells, only, numbers, seeds is not None)

    def planned(self, out: Path) -> list[Planned]:
        """The runs in the folder `out`, in the order of training: one seed of everything comes before the next seed,
        so that an early table is complete in breadth."""
        return [Planned(cell, seed, out / cell.name) for seed in self.seeds for cell in self.cells]

    def recipes(self, *, commands: bool = True) -> dict[str, Recipe]:
        """The recipe of each combination. Raises `ValueError` for one that does not parse, or whose parts do not go
        together, and with `commands` also for further commands that do not parse or do not suit the runs."""
        import torch

        from statewise.model.building import make_objective, make_task
        from statewise.model.recipes import read_recipe

        recipes, tasks = {}, {}
        for cell in self.cells:
            recipe = read_recipe(cell.text, source=f"{self.source}, {cell.name}")
            try:
                key = json.dumps(recipe.as_dict()["task"], sort_keys=True)
                if key not in tasks:
                    tasks[key] = make_task(recipe)
                with torch.device("meta"):
                    objective = make_objective(recipe, tasks[key])
                for request in _requests(cell) if commands else ():
                    request.check(tasks[key], recipe.task.name, objective)
            except ValueError as error:
                raise ValueError(f"{self.source}, {cell.name}: {error}") from None
            recipes[cell.name] = recipe
        return recipes


@dataclass(frozen=True)
class Planned:
    """One run of a suite."""

    cell: Cell
    seed: int
    group: Path
    """The folder of the runs of its combination."""

    @property
    def folder(self) -> Path:
        """The directory of the run."""
        return self.group / f"seed-{self.seed}"

    @property
    def log(self) -> Path:
        """The file with the output of its commands."""
        return self.group / f"seed-{self.seed}.log"

    def names(self) -> list[str]:
        """Names of its commands: `train`, and then each as the suite has it."""
        return ["train", *(" ".join(words) for words in self.cell.then)]

    def state(self) -> tuple[list[str], str]:
        """The commands that have succeeded, and why the next one failed. Training that was completed by other means
        counts."""
        done, failed = read_state(self.log)
        run = Run(self.folder)
        trained = run.exists() and run.complete()
        return (["train", *(name for name in done if name != "train")] if trained else []), failed

    def finished_by(self, done: list[str]) -> bool:
        """Whether these are all its commands."""
        return set(self.names()) <= set(done)

    def job(self, done: list[str]) -> Job:
        """The job with all commands but these."""
        new = ["--config", str(self.group / "recipe.yaml"), "--seed", str(self.seed)]
        new += ["--out", str(self.folder), "--resume-if-there"]
        train = ["--resume", str(self.folder)] if Run(self.folder).exists() else new
        every = [statewise("train", *train)]
        every += [statewise(words[0], str(self.folder), *words[1:]) for words in self.cell.then]
        left = {name: command for name, command in zip(self.names(), every, strict=True) if name not in done}
        return Job(f"{self.cell.name} seed {self.seed}", left, self.log, done)


@dataclass(frozen=True)
class SuiteOutcome:
    """The outcome of the runs of a suite, and the report on them."""

    runs: RunsOutcome
    report: SuiteReport
    """All runs that the folder holds."""
    chosen: SuiteReport
    """The runs that were chosen."""
    files: list[Path]
    """The files of the report."""
    notes: list[str] = field(default_factory=list)
    """What the pictures of the suite cannot show, and why."""


def train(
    chosen: Chosen,
    out: Path,
    *,
    jobs: int = 1,
    slurm: cluster.SlurmOptions | None = None,
    report_only: bool = False,
    progress: bool = False,
    saved: Path | None = None,
) -> SuiteOutcome:
    """Trains the chosen runs that are not finished, `jobs` at a time or all on a Slurm cluster, and writes the report
    on all runs in the folder `out`. `report_only`: trains nothing. `progress`: prints a line when a run starts and
    ends. `saved`: a folder in which finished runs of these recipes and seeds are looked for; the folder `out` gets
    links to their checkpoints, and its own reports: nothing is written into them. Raises `FileExistsError` if the
    folder holds anything else, or runs of other recipes."""

    recipes = chosen.recipes(commands=not report_only)
    with contextlib.ExitStack() as held:
        outcome = RunsOutcome(out, [])
        if report_only:
            if not _is_suite(out):
                raise ValueError(f"{out} holds no suite: train one without `table` first")
            _check_same(out, chosen, recipes)
        else:
            held.enter_context(_locked(out))
            _prepare(out, chosen, recipes)
            if saved is not None:
                _link_saved(saved, chosen.planned(out), recipes, show_line if progress else show_nothing)
            outcome = _run_all(chosen.planned(out), jobs, slurm, out, show_line if progress else show_nothing)
        there = [
            Planned(cell, seed, out / cell.name) for cell in chosen.whole.cells for seed in _seeds(out / cell.name)
        ]
        shown = chosen.planned(out) if chosen.seeds_given else [one for one in there if one.cell in chosen.cells]
        if not there or not shown:
            raise ValueError(
                f"{out} holds no run of {chosen.source}"
                + f" with {' or '.join(chosen.only)} in its name" * bool(chosen.only)
            )
        runs = _read_runs([*there, *shown])
        report, of_chosen = (_report(chosen, some, runs) for some in (there, shown))
        files, notes = _pictures(chosen, there, runs)
        return SuiteOutcome(outcome, report, of_chosen, _write(out, report, files), notes)


def _has_word(text: str, cell: Cell) -> bool:
    """Whether a word of the cell's name begins with `text`: s3/ does not stand for mess3/."""
    return re.search(r"(?<!\w)" * bool(re.match(r"\w", text)) + re.escape(text), cell.name) is not None


def _requests(cell: Cell) -> Iterator[AnalysisRequest | EvaluationRequest]:
    """The further commands on each run of the combination."""
    for command, *words in cell.then:
        if command == "analyze":
            yield AnalysisRequest.read(["RUN", *words])
        else:
            yield EvaluationRequest.read(["RUN", *words], task=cell.fields["task"]["name"])


@contextlib.contextmanager
def _locked(out: Path) -> Iterator[None]:
    """Makes the folder of the suite if it is missing, and holds it for this process alone."""
    if out.exists() and not out.is_dir():
        raise FileExistsError(f"{out} is a file: `out` names a folder")
    out.mkdir(parents=True, exist_ok=True)
    with lock(
        out / LOCK, f"{out} is in use by another `statewise suite`; `statewise status {out}` shows how far it is"
    ):
        yield


def _prepare(out: Path, chosen: Chosen, recipes: dict[str, Recipe]) -> None:
    """Writes the recipe and the seeds of each chosen combination. Raises `FileExistsError` if the folder holds anything
    else, or runs of other recipes."""
    if any(not path.name.startswith(LOCK) for path in out.iterdir()) and not _is_suite(out):
        raise FileExistsError(f"{out} exists and holds no suite: choose another `out`")
    _check_same(out, chosen, recipes)
    write_atomically(out / "suite.yaml", MARK + chosen.text.removeprefix(MARK))
    for cell in chosen.cells:
        group = out / cell.name
        write_group(group, recipes[cell.name], sorted({*_seeds(group), *chosen.seeds}))


def _check_same(out: Path, chosen: Chosen, recipes: dict[str, Recipe]) -> None:
    """Raises `FileExistsError` if the folder holds runs of other recipes, or of combinations that the suite lacks."""
    names = {cell.name for cell in chosen.whole.cells}
    for group in sorted(path.parent for path in out.glob("*/*/seeds.json")):
        if (name := group.relative_to(out).as_posix()) not in names:
            raise FileExistsError(
                f"{out} holds runs of {name}, which {chosen.source} does not have: choose another `out`"
            )
    for cell in chosen.cells:
        if has_other_recipe(out / cell.name, recipes[cell.name]):
            raise FileExistsError(
                f"{out / cell.name} has runs of another recipe than {chosen.source}: choose another `out`"
            )


def _is_suite(out: Path) -> bool:
    """Whether a folder holds a suite: a copy of its YAML that statewise wrote."""
    copy = out / "suite.yaml"
    return copy.is_file() and copy.read_bytes().startswith(MARK)


def _seeds(group: Path) -> list[int]:
    """The seeds of a combination's folder; empty if the folder is missing."""
    return seeds_of(group) if is_group(group) else []


def _run_all(
    planned: list[Planned], jobs: int, slurm: cluster.SlurmOptions | None, out: Path, show: Show
) -> RunsOutcome:
    """Runs what is not finished, `jobs` at a time or on a cluster."""
    failed: list[str] = []
    left: list[Job] = []
    lines: list[str] = []
    for one in planned:
        name = f"{one.cell.name} seed {one.seed}"
        try:
            done, _ = one.state()
        except (ValueError, OSError) as error:
            failed.append(name)
            lines.append(f"{name} cannot be continued: {in_words(error)}")
            continue
        if not one.finished_by(done):
            left.append(one.job(done))
    for line in (f"{len(planned)} runs, of which {len(planned) - len(left) - len(failed)} are finished", *lines):
        show(line)
    ended_runs: list[str] = []

    def progress() -> str:
        return f"{len(ended_runs) + len(planned) - len(left):>4}/{len(planned)}"

    def started(job: Job) -> None:
        show(f"{progress()} | {job.name}: {'submitted' if slurm else 'started'}")

    def ended(job: Job, code: int) -> None:
        ended_runs.append(job.name)
        if code:
            failed.append(job.name)
        how = f"failed with {read_state(job.log)[1]}" if code else "finished"
        show(f"{progress()} | {job.name}: {how}")

    run = partial(run_jobs, at_once=jobs)
    if slurm is not None:
        run = partial(cluster.run_jobs, options=slurm, folder=out / cluster.SUBMITTED, show=show)
    received = run(left, started=started, looked_at=lambda job: None, ended=ended)
    in_cluster = slurm is not None and (slurm.detach or received is not None)
    return RunsOutcome(out, failed, received, in_cluster)


UNLIKE = ("threads", "compile", "keep", "log_every", "checkpoint_every", "tensorboard")
"""Fields of a trainer in which a saved run may differ: they change weights by rounding at most."""


def _link_saved(saved: Path, planned: list[Planned], recipes: dict[str, Recipe], show: Show) -> None:
    """Takes finished runs below `saved` that have the recipe and the seed of a planned run that does not exist, as
    `Run.linked` does. Raises `FileNotFoundError` if `saved` is no folder."""
    from statewise.model.recipes import read_recipe

    if not saved.is_dir():
        raise FileNotFoundError(f"{saved} is no folder: `saved` names one that holds runs")

    def identity(recipe: Recipe, seed: int) -> str:
        fields = {**recipe.as_dict(), "seed": seed}
        fields["trainer"] = {name: value for name, value in fields["trainer"].items() if name not in UNLIKE}
        return json.dumps(fields, sort_keys=True)

    wanted = {identity(recipes[one.cell.name], one.seed): one for one in planned if not one.folder.exists()}
    for path in sorted(saved.glob("**/config.json")):
        run, one, usable = Run(path.parent), None, False
        with contextlib.suppress(ValueError, OSError):  # damaged runs, and files of others with this name
            recipe = read_recipe(json.dumps(run.recipe()), source=str(path))
            one = wanted.get(identity(recipe, recipe.seed))
            usable = one is not None and not one.folder.exists() and run.complete()
        if one is not None and usable:
            run.linked(one.folder)
            show(f"{one.cell.name} seed {one.seed}: {path.parent}")


def _pictures(chosen: Chosen, there: list[Planned], runs: dict[Path, SuiteRun]) -> tuple[dict[str, bytes], list[str]]:
    """The files of the suite's pictures that have runs, by their path in its folder, and notes."""
    from statewise.experiments.compare import compare
    from statewise.reporting.suite_pictures import picture_files

    files: dict[str, bytes] = {}
    notes: list[str] = []
    for picture in chosen.whole.pictures:
        some = [one for one in there if one.cell.recipe in picture.recipes]
        if not any(runs[one.folder].headline for one in some):
            if any(cell.recipe in picture.recipes for cell in chosen.cells):
                notes.append(f"picture {picture.name}: no finished run")
            continue
        report = _report(chosen, some, runs)
        # The table has a column of minutes in any case.
        metrics = _expected(chosen, picture.metrics, report.runs)
        shown = {name: chosen.whole.metrics.get(name, "") for name in metrics if name != "minutes"}
        report = replace(report, title=picture.title, about="", shown=shown)
        made, lacking = picture_files(
            report, partial(compare, metrics="all"), metrics, picture.curves, picture.drawings
        )
        files |= {f"pictures/{picture.name}{end}": content for end, content in made.items()}
        notes += [f"picture {picture.name}: {lack}" for lack in lacking]
    return files, notes


def _write(out: Path, report: SuiteReport, pictures: dict[str, bytes]) -> list[Path]:
    contents = {
        "table.md": report.as_markdown().encode(),
        "results.json": report.as_json().encode(),
        "index.html": report.as_html().encode(),
        **pictures,
    }
    if pictures:
        (out / "pictures").mkdir(exist_ok=True)
    write_all({out / name: content for name, content in contents.items()})
    return [out / name for name in contents]


def _report(chosen: Chosen, planned: list[Planned], runs: dict[Path, SuiteRun]) -> SuiteReport:
    """The report on some of the `runs`, in the order of the suite."""
    from statewise.reporting.suite import SuiteReport

    suite = chosen.whole
    in_order = [runs[one.folder] for one in sorted(planned, key=lambda one: suite.cells.index(one.cell))]
    shown = {name: suite.metrics[name] for name in _expected(chosen, suite.metrics, in_order)}
    return SuiteReport(chosen.title, suite.about, in_order, shown)


def _expected(chosen: Chosen, metrics: Iterable[str], runs: Sequence[SuiteRun]) -> list[str]:
    """The metrics that these runs should have. With `only`, those that some run has: others may be of combinations
    that are left out, and are not missed."""
    return [name for name in metrics if not chosen.only or any(run.number(name) is not None for run in runs)]


def _read_runs(planned: Iterable[Planned]) -> dict[Path, SuiteRun]:
    """The runs by their folders, each read once."""
    from statewise.reporting.suite import SuiteRun

    runs: dict[Path, SuiteRun] = {}
    reports: dict[str, dict[str, dict[str, Any] | None]] = {}
    for one in planned:
        if one.folder in runs:
            continue
        names = one.cell.recipe, one.cell.objective, one.cell.backbone
        try:
            if one.cell.name not in reports:
                reports[one.cell.name] = {
                    request.report_name: request.settings if isinstance(request, AnalysisRequest) else None
                    for request in _requests(one.cell)
                }
            done, failed = one.state()
            finished = one.finished_by(done)
            runs[one.folder] = SuiteRun.read(names, one.seed, one.folder, finished, failed, reports[one.cell.name])
        except (ValueError, OSError) as error:  # one damaged run does not hide the others
            runs[one.folder] = SuiteRun.failed(names, one.seed, one.folder, in_words(error))
    return runs


@dataclass(frozen=True)
class Expected:
    """Seconds that the unfinished runs of one combination take."""

    cell: Cell
    runs: int
    steps: int
    """Steps of a run."""
    step_seconds: float
    """Seconds of a step, measured on this machine."""

    @property
    def hours(self) -> float:
        """Hours of training of one process that trains one run after the other."""
        return self.runs * self.steps * self.step_seconds / 3600


def left_of(planned: Iterable[Planned]) -> list[Planned]:
    """The runs that are not finished."""
    return [one for one in planned if not one.finished_by(one.state()[0])]


def expected(chosen: Chosen, recipes: dict[str, Recipe], left: Sequence[Planned], jobs: int) -> Iterator[Expected]:
    """The time of the runs that are `left`, measured by a step of each combination, while `jobs` run at a time. Raises
    `ValueError` for a model that does not fit this machine."""
    from statewise.experiments.dry_run import make_plan, task_data

    threads = threads_of_jobs(jobs)
    for cell in chosen.cells:
        if not (count := sum(one.cell is cell for one in left)):
            continue
        recipe = recipes[cell.name]
        recipe = replace(recipe, trainer=replace(recipe.trainer, threads=recipe.trainer.threads or threads))
        plan = make_plan(recipe, task_data(recipe))
        if plan.step_seconds is None:
            raise ValueError(f"{cell.name} does not fit this machine")
        yield Expected(cell, count, plan.steps, plan.step_seconds)
