"""statewise compare: runs side by side."""

from __future__ import annotations

from pathlib import Path

from statewise.cli.arguments import Parser


def run(words: list[str]) -> int:
    """Runs the verb."""
    parser = Parser(
        "compare",
        "Sets runs side by side. Runs that differ in nothing but the seed form a group; groups are compared with\n"
        "the first. Writes report.html, table.md, report.json and curves.png.",
    )
    parser.add_argument("runs", metavar="RUN", nargs="+", help="run directories, or directories of several seeds")
    parser.add_argument(
        "--out", metavar="DIR", required=True, help="directory of the report; must not hold anything else"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    options = parser.parse_args(words)

    from statewise.cli import seeds
    from statewise.reporting.compare import compare

    folders: list[Path] = []
    for name in options.runs:
        folder = Path(name)
        folders += seeds.members(folder) if seeds.is_group(folder) else [folder]
    comparison = compare(folders)
    written = comparison.write(Path(options.out))
    print(comparison.as_json() if options.json else comparison.as_text())
    if not options.json:
        for path in written:
            print(f"wrote {path}")
    return 0
