"""statewise data city: the street map of a grid city."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from statewise.runtime.arguments import Parser, at_least
from statewise.runtime.messages import say

if TYPE_CHECKING:
    from statewise.tasks.manhattan.street_map import StreetMap

DESCRIPTION = """Writes the map of a city on a grid: alternating one-way streets and avenues, some two-way, a diagonal,
gaps, dead ends and loops. The same numbers give the same city.

  statewise data city --rows 12 --columns 16 --seed 1 --out maps/city
  statewise train city-small --task.map maps/city --out runs/city

The task `manhattan` also makes such a city from task.rows, task.columns and task.city_seed. Use files to change a
city."""


def run(words: list[str]) -> int:
    """Runs the command."""
    parser = Parser("data city", DESCRIPTION)
    parser.add_argument("--rows", type=at_least(2), default=12, help="rows of crossings (default: 12)")
    parser.add_argument("--columns", type=at_least(2), default=16, help="columns of crossings (default: 16)")
    parser.add_argument("--seed", type=at_least(0), default=1, help="seed of the generated city (default: 1)")
    parser.add_argument("--out", metavar="DIR", required=True, help="folder of the map")
    parser.add_overwrite("replace the map in --out")
    options = parser.parse_args(words)

    from statewise.tasks.manhattan.street_map import grid_city

    return written(grid_city(options.rows, options.columns, options.seed), Path(options.out), options.overwrite)


def written(streets: StreetMap, folder: Path, overwrite: bool) -> int:
    """Writes a map and prints a summary."""
    from statewise.tasks.manhattan.street_map import write_map

    files = write_map(streets, folder, overwrite)
    begin, _, _ = streets.streets
    dead_ends = int((streets.neighbour < 0).all(axis=1).sum())
    places = "with" if streets.coordinates is not None else "without"
    say(f"{len(streets):,} crossings {places} coordinates and {len(begin):,} streets; {dead_ends} dead ends")
    for path in files:
        say(f"wrote {path}")
    return 0
