"""statewise suite: a named set of runs, resumable, with one table and one page."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from statewise.cli import cluster_options
from statewise.cli.commands import terminal_width
from statewise.config.suites import suite_names
from statewise.experiments import suite
from statewise.experiments.jobs import threads_of_jobs
from statewise.experiments.progress import duration
from statewise.runtime.arguments import Parser, at_least
from statewise.runtime.messages import counted, say

DESCRIPTION = """Trains a suite: a set of recipes, each with several objectives, backbones and seeds.

  statewise suite belief --dry-run
  statewise suite belief --seeds 1-5 --jobs 2 --out runs/suite
  statewise suite my.yaml --out runs/mine
  statewise suite belief --on slurm --slurm.gpus 1 --out runs/suite

The same command continues a suite that was stopped, and tries failed runs again. Writes table.md, results.json and
index.html of all runs in the folder, and the suite's pictures; a run that failed is a row with its message.
With --only or --seeds it trains and prints those runs alone.
`statewise status runs/suite` shows how far it is, `statewise compare runs/suite/parity/*` compares further."""


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
    parser.add_argument("--smoke", action="store_true", help="a tiny form of a suite, to see that everything runs")
    parser.add_argument(
        "--saved", metavar="DIR", help="use finished runs of the same recipe and seed in DIR, which stay unchanged"
    )
    cluster_options.add_options(parser)
    options = parser.parse_args(words)
    slurm = cluster_options.read(options)
    chosen = suite.Chosen.of(options.suite, options.seeds, options.only, smoke=options.smoke)
    if options.out is None and not options.dry_run:
        raise ValueError("--out is missing: the folder of the suite")
    say(f"{chosen.source}: loading PyTorch", flush=True)
    if options.dry_run:
        return _dry_run(chosen, Path(options.out or options.suite), options.jobs)
    if options.table and options.saved:
        raise ValueError("--table trains and links nothing: omit --saved")
    out = Path(options.out)
    saved = None if options.saved is None else Path(options.saved)
    outcome = suite.train(
        chosen, out, jobs=options.jobs, slurm=slurm, report_only=options.table, progress=True, saved=saved
    )
    _show(outcome)
    again = shlex.join(["statewise", "suite", *words])
    if outcome.runs.signal is not None and slurm:
        say(
            f"the jobs continue; statewise status {out} shows them, and the same command waits for them",
            file=sys.stderr,
        )
    elif outcome.runs.signal is not None:
        say(f"stopped and saved; the same command continues: {again}", file=sys.stderr)
    elif outcome.runs.failed:
        say(f"some runs failed; the same command tries them again: {again}", file=sys.stderr)
    return outcome.runs.exit_code


def _show(outcome: suite.SuiteOutcome) -> None:
    """Prints the table of the chosen runs, and the files of the report."""
    from statewise.reporting.tables import fitted_notes, fitted_tables

    width = terminal_width()
    say(fitted_tables(*outcome.chosen.table(), width, keys=3))
    say(fitted_notes([*outcome.chosen.notes(), *outcome.notes], width))
    for path in outcome.files:
        say(f"wrote {path}")


def _dry_run(chosen: suite.Chosen, out: Path, jobs: int) -> int:
    """Prints the number of runs, and the time of training measured on this machine by a step of each."""
    from statewise.reporting.tables import text_table

    recipes, planned = chosen.recipes(), chosen.planned(out)
    left = suite.left_of(planned)
    say(
        f"{counted(len(planned), 'run')}: {counted(len(chosen.cells), 'combination')}; "
        f"{counted(len(planned) - len(left), 'run')} finished"
    )
    hours = {cell.recipe: 0.0 for cell in chosen.cells}
    for one in suite.expected(chosen, recipes, left, jobs):
        say(f"  {one.cell.name}: {one.runs} x {one.steps:,} steps of {one.step_seconds * 1000:.1f} ms", flush=True)
        hours[one.cell.recipe] += one.hours
    total = sum(hours.values())
    rows = [[name, f"{some:.2f}"] for name, some in [*hours.items(), ("all", total)]]
    say(text_table(["recipe", "hours of one process"], rows))
    say(
        f"{counted(len(left), 'run')} left, {jobs} at a time with {counted(threads_of_jobs(jobs), 'thread')} each: at "
        f"most {duration(total / jobs * 3600)} of training, plus evaluations and start-up"
    )
    return 0
