"""statewise data manhattan: a published street map."""

from __future__ import annotations

from pathlib import Path

from statewise.cli.data.city import written
from statewise.runtime.arguments import Parser

DESCRIPTION = """Reads a street map and writes it as a folder for the task `manhattan`.

  statewise data manhattan --from DIR --out maps/manhattan
  statewise train manhattan --task.map maps/manhattan --out runs/manhattan

DIR holds edges.csv (or edges_BUILD.csv, chosen by --build; default: random) with the columns
from_node,direction,to_node, and optionally nodes.csv with node and maybe x,y or synthetic_x,synthetic_y; all may be
gzipped (.csv.gz). Directions are N, NE, E, SE, S, SW, W, NW. Pickles are never read."""


def run(words: list[str]) -> int:
    """Runs the command."""
    parser = Parser("data manhattan", DESCRIPTION)
    parser.add_argument("--from", dest="source", metavar="DIR", required=True, help="folder of the published files")
    parser.add_argument("--build", metavar="NAME", help="which list of streets, if there are several")
    parser.add_argument("--out", metavar="DIR", required=True, help="folder of the map")
    parser.add_overwrite("replace the map in --out")
    options = parser.parse_args(words)

    from statewise.tasks.manhattan.street_map import read_map

    return written(read_map(Path(options.source), options.build), Path(options.out), options.overwrite)
