"""statewise compare: a report on several runs."""

from __future__ import annotations

from statewise.cli.commands import terminal_width
from statewise.runtime.arguments import Parser, above
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
        "of every run: metrics in the table, curves in analyses.png, and pictures in drawings.png; and the results\n"
        "of `evaluate --data` and `lm-eval` on every run. Where a held-out loss is the headline metric, the report\n"
        "also shows it over tokens and hours, and the tokens that each group needs to match the first. Runs that\n"
        "differ in one number of their recipes, such as backbone.window, are also plotted over it in sweep.png.",
    )
    parser.add_argument(
        "runs",
        metavar="RUN",
        nargs="+",
        help="run directories, or directories of several seeds; seeds without an evaluation are left out",
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

    from statewise.experiments.compare import compare

    if options.out is None:
        for flag, chosen in (("--overwrite", options.overwrite), ("--relative", options.relative)):
            if chosen:
                raise ValueError(f"{flag} concerns files of the report, which are only written with --out DIR")

    comparison = compare(
        options.runs,
        options.out,
        better=options.better,
        margin=options.margin,
        metrics=options.metrics,
        relative=options.relative,
        overwrite=options.overwrite,
    )
    say(comparison.as_json() if options.json else comparison.as_text(terminal_width()))
    if not options.json:
        for path in comparison.files:
            say(f"wrote {path}")
    return 0
