"""statewise compare: runs side by side."""

from __future__ import annotations

from pathlib import Path

from statewise.cli.arguments import Parser


def run(words: list[str]) -> int:
    """Runs the verb."""
    parser = Parser(
        "compare",
        "Sets runs side by side. Runs that differ in nothing but the seed form a group; groups are compared with\n"
        "the first. Writes report.html, table.md, report.json and curves.png.\n\n"
        "  statewise compare runs/gpt runs/nl runs/bst --out report\n"
        "  statewise compare runs/gpt runs/nl runs/bst --out report --better runs/nl --margin 0.01\n\n"
        "  statewise compare runs/gpt runs/nl --out report --metrics all\n\n"
        "The second also tests, over seeds and by the task's headline metric, whether the group of runs/nl is better\n"
        "than each other group, and whether any two groups are equal to within 0.01. The third adds what\n"
        "`statewise analyze` found of every run: metrics in the table, curves of all groups in one plot\n"
        "(analyses.png), and the pictures that it drew (drawings.png).",
    )
    parser.add_argument("runs", metavar="RUN", nargs="+", help="run directories, or directories of several seeds")
    parser.add_argument(
        "--out", metavar="DIR", required=True, help="directory of the report; must not hold anything else"
    )
    parser.add_argument(
        "--better", metavar="RUN", help="test that the group of this one of the runs is better than each other group"
    )
    parser.add_argument(
        "--margin", metavar="M", type=float, help="test of every two groups that they are equal to within M"
    )
    parser.add_argument(
        "--metrics",
        default="evaluation",
        help="those of the evaluation (default); all, also of analyses that were made of every run; or names",
    )
    parser.add_argument(
        "--relative", action="store_true", help="show curves of analyses as differences from the first group's"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    options = parser.parse_args(words)

    from statewise.cli import seeds
    from statewise.reporting.compare import compare

    def runs(name: str) -> list[Path]:
        folder = Path(name)
        return seeds.members(folder) if seeds.is_group(folder) else [folder]

    folders = [folder for name in options.runs for folder in runs(name)]
    better = None if options.better is None else runs(options.better)[0]
    comparison = compare(
        folders, better=better, margin=options.margin, metrics=options.metrics, relative=options.relative
    )
    written = comparison.write(Path(options.out))
    print(comparison.as_json() if options.json else comparison.as_text())
    if not options.json:
        for path in written:
            print(f"wrote {path}")
    return 0
