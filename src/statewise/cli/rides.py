"""statewise rides: look at a file of taxi rides, whoever made them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from statewise.cli.arguments import Parser

if TYPE_CHECKING:
    from statewise.tasks.manhattan.task import Manhattan
    from statewise.types import Examples

VERBS = ("check", "map")
DESCRIPTION = """Looks at rides, `ORIGIN DESTINATION turn ... end`, one a line, and gzipped or not.

  statewise rides check FILE --map maps/manhattan
  statewise rides map FILE --map maps/manhattan --out reconstructed/
  statewise rides map --map maps/manhattan --draw 1000 --corrupt 0.05 --out reconstructed/

check says how many are valid, and why others are not; --labels writes a label a line. map makes the map that they
imply, with its picture. Without a file rides are drawn: valid ones, of which a share may have one turn changed at
random, to see how much of a map such errors spoil."""


def run(words: list[str]) -> int:
    """Runs the verb."""
    from statewise.analysis.map import MapSettings

    parser = Parser("rides", DESCRIPTION)
    parser.add_argument("verb", metavar="check|map", choices=VERBS)
    parser.add_argument("file", metavar="FILE", nargs="?", help="rides; without it they are drawn (map)")
    parser.add_argument("--map", metavar="DIR", required=True, help="the true map; see statewise data manhattan")
    parser.add_argument("--first", type=int, metavar="N", help="only the first N rides of the file")
    parser.add_argument("--labels", metavar="FILE", help="check: write `line,label,moves` there, lines from 0")
    parser.add_argument("--out", metavar="DIR", help="map: where report and pictures go")
    parser.add_argument("--draw", type=int, default=1000, metavar="N", help="map: so many rides where there is no file")
    parser.add_argument("--corrupt", type=float, default=0.0, help="map: share of the drawn rides with a changed turn")
    parser.add_argument("--seed", type=int, default=1, help="map: of drawn rides (default 1)")
    parser.add_argument(
        "--degree",
        type=int,
        default=MapSettings.degree,
        help="map: most streets that leave a crossing (default 4, or more where the map has more)",
    )
    parser.add_argument(
        "--radius",
        type=float,
        default=MapSettings.radius,
        help="map: how far new streets may lead, in median lengths of a street (default 6.5)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args(words)
    if options.first is not None and options.first < 1:
        raise ValueError(f"--first must be at least 1, not {options.first}")
    unfit = {
        "--out": options.verb == "check" and options.out is not None,
        "--labels": options.verb == "map" and options.labels is not None,
        "--corrupt": options.corrupt != 0 and (options.verb == "check" or options.file is not None),
    }
    for option in filter(unfit.__getitem__, unfit):
        raise ValueError(f"{option} does not go with rides {options.verb}" + " of a file" * (option == "--corrupt"))
    if options.verb == "check" and options.file is None:
        raise ValueError("give the file of rides to check")
    if options.verb == "map" and options.out is None:
        raise ValueError("give a folder for the map's report and pictures by --out")

    from statewise.tasks.manhattan.task import Manhattan, ManhattanConfig

    task = Manhattan(ManhattanConfig(map=options.map))
    if options.file is None:
        rides, lines = _drawn(task, options.draw, options.corrupt, options.seed), list(range(1, options.draw + 1))
    else:
        rides, lines = task.read_any(Path(options.file))
        if options.first is not None:
            rides, lines = rides[: options.first], lines[: options.first]
    if options.verb == "check":
        return _check(task, rides, lines, options.labels, options.json)

    from statewise.analysis.map import findings
    from statewise.cli.findings import as_plain_data, save_pictures, tell

    settings = MapSettings(options.degree, options.radius)
    found = findings(task, rides, settings)
    folder = Path(options.out)
    folder.mkdir(parents=True, exist_ok=True)
    written = [folder / "map.json", *save_pictures(found, folder, "map")]
    content = {"settings": vars(settings), **as_plain_data(found)}
    written[0].write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    if options.json:
        print(json.dumps(content, indent=2))
    else:
        tell(f"{options.file or 'drawn rides'} on {options.map}", found, written)
    return 0


def _check(task: Manhattan, rides: Examples, lines: list[int], labels: str | None, as_json: bool) -> int:
    from statewise.reporting.tables import metrics_table
    from statewise.tasks.manhattan.checking import VERDICTS

    checked = task.check(rides)
    named = [VERDICTS[verdict] for verdict in checked.verdicts]
    if labels is not None:
        rows = [f"{line - 1},{name},{moves}" for line, name, moves in zip(lines, named, checked.moves.tolist())]
        Path(labels).write_text("\n".join(["line,label,moves", *rows]) + "\n", encoding="utf-8")
    count = Counter(named)
    metrics: dict[str, float] = {"rides": len(named), **{name: count[name] for name in VERDICTS}}
    metrics["valid_share"] = count["valid"] / len(named)
    print(json.dumps(metrics, indent=2) if as_json else metrics_table(metrics))
    if labels is not None and not as_json:
        print(f"wrote {labels}")
    return 0


def _drawn(task: Manhattan, n: int, corrupt: float, seed: int) -> Examples:
    """Valid rides, of which a share has one turn changed to another heading."""
    import numpy as np

    if n < 1 or not 0 <= corrupt <= 1:
        raise ValueError("--draw must be at least 1, and --corrupt a share from 0 to 1")
    rng = np.random.default_rng(seed)
    rides = task.sample(rng, n)
    chosen = np.flatnonzero(rng.random(n) < corrupt)
    place = 2 + (rng.random(len(chosen)) * (rides.lengths[chosen] - 3)).astype(np.int64)
    turn = rides.tokens[chosen, place] - task.N
    rides.tokens[chosen, place] = task.N + (turn + rng.integers(1, 8, len(chosen))) % 8
    return rides
