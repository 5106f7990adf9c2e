"""statewise rides: check taxi rides from any source, or draw their map."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from statewise.runtime.arguments import Parser, above, at_least
from statewise.runtime.json_files import printable
from statewise.runtime.messages import say
from statewise.runtime.overwriting import claimed_file

if TYPE_CHECKING:
    from statewise.analysis.world_models.map import MapSettings
    from statewise.data_types import Examples
    from statewise.tasks.manhattan.task import Manhattan

DESCRIPTION = """Reads rides, one `ORIGIN DESTINATION turn ... end` per line, gzipped or not.

  statewise rides check FILE --map maps/manhattan
  statewise rides map FILE --map maps/manhattan --out reconstructed/
  statewise rides map --map maps/city --draw 1000 --corrupt 0.05 --out drawn/

check counts valid rides and the errors of others; --write-labels writes one label per line. map writes the map that
rides imply, with its plot; rides that never end are left out and counted. Without FILE, map draws valid rides;
--corrupt changes one random turn in a share of them, which shows how much such errors spoil a map."""


def run(words: list[str]) -> int:
    """Runs the command."""
    from statewise.analysis.world_models.map import MapSettings

    parser = Parser("rides", DESCRIPTION)
    parser.add_argument("action", choices=["check", "map"])
    parser.add_argument("file", metavar="FILE", nargs="?", help="rides (map: default are drawn ones)")
    parser.add_argument("--map", metavar="DIR", required=True, help="the true map; see statewise data manhattan")
    parser.add_argument("--first", type=at_least(1), metavar="N", help="only the first N rides of the file")
    parser.add_argument("--write-labels", metavar="FILE", help="check: write `line,label,moves` here, lines from 0")
    parser.add_argument("--out", metavar="DIR", help="map: folder for report and plots")
    parser.add_overwrite("replace files of the same names in --out, or the file of --write-labels")
    parser.add_argument("--draw", type=at_least(1), default=1000, metavar="N", help="map: rides to draw without FILE")
    parser.add_argument("--corrupt", type=float, default=0.0, help="map: share of drawn rides with a changed turn")
    parser.add_argument("--seed", type=at_least(0), default=1, help="map: seed of drawn rides (default: 1)")
    parser.add_argument(
        "--degree",
        type=at_least(1),
        default=MapSettings.degree,
        help="map: maximum streets leaving a crossing (default: 4, or more if the map has more)",
    )
    parser.add_argument(
        "--radius",
        type=above(0),
        default=MapSettings.radius,
        help="map: longest new street, in median street lengths (default: 6.5)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args(words)
    unfit = {
        "--out": options.action == "check" and options.out is not None,
        "--write-labels": options.action == "map" and options.write_labels is not None,
        "--corrupt": options.corrupt != 0 and (options.action == "check" or options.file is not None),
    }
    for option in filter(unfit.__getitem__, unfit):
        raise ValueError(f"{option} does not go with rides {options.action}" + " of a file" * (option == "--corrupt"))
    if options.action == "check" and options.file is None:
        raise ValueError("FILE is missing: the rides to check")
    if options.action == "map" and options.out is None:
        raise ValueError("--out is missing: the folder for the map's report and plots")

    from statewise.analysis.base import claimed_report

    if options.action == "map":
        with claimed_report(Path(options.out), "map", options.overwrite):
            return _map(options, MapSettings(options.degree, options.radius))
    if options.write_labels is None:
        return _check(options, None)
    with claimed_file(Path(options.write_labels), options.overwrite, "--write-labels") as labels:
        _check(options, labels)
    if not options.json:
        say(f"wrote {options.write_labels}")
    return 0


def _read(options: argparse.Namespace) -> tuple[Manhattan, Examples, Sequence[int]]:
    """The map, and the chosen rides with the numbers of their lines."""
    from statewise.tasks.manhattan.task import Manhattan, ManhattanConfig

    task = Manhattan(ManhattanConfig(map=options.map))
    lines: Sequence[int]
    if options.file is None:
        rides, lines = task.draw_with_errors(options.draw, options.corrupt, options.seed), range(1, options.draw + 1)
    else:
        rides, lines = task.read_any(Path(options.file))
        if options.first is not None:
            rides, lines = rides[: options.first], lines[: options.first]
    return task, rides, lines


def _map(options: argparse.Namespace, settings: MapSettings) -> int:
    from statewise.analysis.base import Origin
    from statewise.analysis.world_models.map import findings
    from statewise.cli.findings import show_findings

    task, rides, _ = _read(options)
    origin = Origin("map", f"{options.file or 'drawn rides'} on {options.map}", {"settings": vars(settings)})
    drawn_map = replace(findings(task, rides, settings), origin=origin)
    written = drawn_map.save(options.out, overwrite=options.overwrite)
    if options.json:
        say(printable(drawn_map.report()))
    else:
        show_findings(drawn_map, written)
    return 0


def _check(options: argparse.Namespace, labels: Path | None) -> int:
    """Prints the verdicts on rides, and writes them to the file `labels`."""
    from statewise.reporting.tables import metrics_table
    from statewise.runtime.durable import write_atomically

    task, rides, lines = _read(options)
    checked = task.check(rides)
    if labels is not None:
        write_atomically(labels, checked.labels(lines).encode())
    say(printable(checked.metrics()) if options.json else metrics_table(checked.metrics()))
    return 0
