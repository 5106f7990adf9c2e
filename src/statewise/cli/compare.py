"""statewise compare: a report on several runs."""

from __future__ import annotations

import contextlib
import shlex
import shutil
import sys
from pathlib import Path

from statewise.cli.arguments import Parser, above
from statewise.runtime.messages import say


def run(words: list[str]) -> int:
    """Runs the command."""
    parser = Parser(
        "compare",
        "Compares runs. Runs that differ only in seed form a group; each group is compared with the first.\n"
        "Prints the tables; with --out it also writes report.html, table.md, report.json and curves.png.\n\n"
        "  statewise compare runs/gpt runs/nl runs/bst\n"
        "  statewise compare runs/gpt runs/nl runs/bst --out report\n"
        "  statewise compare runs/gpt runs/nl --better runs/nl --margin 0.01\n"
        "  statewise compare runs/gpt runs/nl --out report --metrics all\n\n"
        "The third also tests, over seeds and by the task's headline metric, whether the group of runs/nl is better\n"
        "than each other group, and whether any two groups are equal within 0.01. The last adds the analyses made\n"
        "of every run: metrics in the table, curves in analyses.png, and pictures in drawings.png; and what\n"
        "`evaluate --data` and `lm-eval` found of every run. Where a held-out loss is the headline metric, the report\n"
        "also shows it over tokens and hours, and the tokens that each group needs to match the first. Runs that\n"
        "differ in one number of their recipes, such as backbone.window, are also plotted over it in sweep.png.",
    )
    parser.add_argument(
        "runs",
        metavar="RUN",
        nargs="+",
        help="run directories, or directories of several seeds, of which those without an evaluation are left out",
    )
    parser.add_argument("--out", metavar="DIR", help="report folder; without it no file is written")
    parser.add_overwrite("replace the report in --out")
    parser.add_argument(
        "--better", metavar="RUN", help="test that the group of this run is better than each other group"
    )
    parser.add_argument("--margin", metavar="M", type=above(0), help="test that every two groups are equal within M")
    parser.add_argument(
        "--metrics",
        default="evaluation",
        help="evaluation (default); all: also of analyses and other data of every run; or names",
    )
    parser.add_argument(
        "--relative", action="store_true", help="plot curves of analyses as differences from the first group"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    options = parser.parse_args(words)

    from statewise.experiments import seeds
    from statewise.model.recipes import declared_defaults
    from statewise.reporting.compare import compare
    from statewise.reporting.html import missing
    from statewise.reporting.report import claimed, write_report

    out = None if options.out is None else Path(options.out)
    if out is None:
        for flag, given in (("--overwrite", options.overwrite), ("--relative", options.relative)):
            if given:
                raise ValueError(f"{flag} is about files of the report, and without --out DIR none is written")

    left_out: dict[str, list[int]] = {}

    def runs(name: str) -> list[Path]:
        folder = Path(name)
        if not seeds.is_group(folder):
            return [folder]
        evaluated, left_out[str(folder)] = seeds.evaluated(folder)
        if not evaluated:
            raise ValueError(
                f"no seed of {folder} is evaluated yet: continue with "
                f"`statewise train --resume {shlex.quote(str(folder))}`"
            )
        return evaluated

    with claimed(out, options.overwrite) if out is not None else contextlib.nullcontext():
        folders = [folder for name in options.runs if not seeds.is_beside_run(Path(name)) for folder in runs(name)]
        if not folders:
            raise ValueError(f"{options.runs[0]} is a file beside a run: give the run's folder")
        better = None if options.better is None else runs(options.better)[0]
        comparison = compare(
            folders,
            better=better,
            margin=options.margin,
            metrics=options.metrics,
            relative=options.relative,
            defaults=declared_defaults,
            seeds_left_out=left_out,
        )
        written = [] if out is None else write_report(comparison, out, options.overwrite)
    say(comparison.as_json() if options.json else comparison.as_text(shutil.get_terminal_size((100, 24)).columns))
    if not options.json:
        for path in written:
            say(f"wrote {path}")
    if written and missing():
        say(f"statewise: {missing()}", file=sys.stderr)
    return 0
