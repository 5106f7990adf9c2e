"""statewise status: how far the runs of a folder are."""

from __future__ import annotations

from dataclasses import asdict

from statewise.cli.commands import terminal_width
from statewise.experiments.progress import duration
from statewise.experiments.status import statuses, summary, time_left
from statewise.reporting.tables import fitted_tables
from statewise.runtime.arguments import Parser
from statewise.runtime.json_files import printable
from statewise.runtime.messages import say

DESCRIPTION = """Shows how far a run, the runs of several seeds, or a suite are, wherever they run.

  statewise status runs/g55"""


def run(words: list[str]) -> int:
    """Runs the command."""
    parser = Parser("status", DESCRIPTION)
    parser.add_argument("folder", metavar="DIR", help="a run, the folder of several seeds, or of a suite")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(words)
    runs = statuses(options.folder)
    if options.json:
        say(printable({"runs": [asdict(one) for one in runs], "left": time_left(runs)}))
        return 0
    rows = [
        [
            one.name,
            one.state,
            f"{one.step:,}" + (f"/{one.steps:,}" if one.steps else ""),
            "-" if one.left is None else duration(one.left),
            one.note[:60] or "-",
        ]
        for one in runs
    ]
    width = terminal_width()
    say(fitted_tables(["run", "state", "step", "time left", "note"], rows, width))
    say(summary(runs))
    return 0
