"""Taxi rides against the clock: drawing, checking, distances between all crossings, and the map that rides imply.

python benchmarks/rides.py [DIR of a map; else a grid city about as large as Manhattan]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from own_process import peak
from timing import Benchmark, parser

from statewise.analysis.world_models.map import MapSettings
from statewise.analysis.world_models.reconstruction import rides_of
from statewise.data_types import Examples
from statewise.tasks.manhattan.street_map import HEADINGS, grid_city, read_map
from statewise.tasks.manhattan.task import Manhattan, ManhattanConfig


def main(words: Sequence[str] | None = None) -> int:
    command = parser(__doc__)
    command.add_argument("folder", nargs="?", help="folder of a map")
    given = command.parse_args(words)
    bench, folder = Benchmark(given.smoke), given.folder
    rows, columns, count, mapped = (8, 9, 200, 50) if bench.smoke else (65, 72, 20_000, 1000)
    streets = read_map(Path(folder)) if folder else grid_city(rows, columns, 1)
    begin, _, _ = streets.streets
    print(f"{folder or 'grid city'}: {len(streets):,} crossings, {len(begin):,} streets")
    import scipy.sparse.csgraph  # its import is not what is measured

    assert scipy.sparse.csgraph
    before, started = peak(), time.perf_counter()
    assert len(streets.moves) == len(streets)
    bench.at_most("moves between all crossings: seconds", time.perf_counter() - started, 10)
    bench.at_most("moves between all crossings: MB", peak() - before, 100)

    task = Manhattan(ManhattanConfig(map=folder, rows=rows, columns=columns))
    task.streets = streets  # whose distances are known by now
    rides: Examples | None = None
    for style in ("noisy_shortest", "shortest", "random"):
        drawing = Manhattan(ManhattanConfig(map=folder, rows=rows, columns=columns, rides=style))
        drawing.streets = streets
        started = time.perf_counter()
        rides = drawing.sample(np.random.default_rng(0), count)
        seconds = time.perf_counter() - started
        million = rides.lengths.sum() / seconds / 1e6
        bench.at_least(f"{style} rides: million tokens a second of one core", million, 0.2)
    assert rides is not None
    started = time.perf_counter()
    checked = task.check(rides)
    seconds = time.perf_counter() - started
    assert (checked.verdicts == 0).all()
    bench.at_least("checking: million tokens a second of one core", rides.lengths.sum() / seconds / 1e6, 1)

    rng, few = np.random.default_rng(0), rides[:mapped]
    wrong = rng.random(mapped) < 0.2  # as often as in the rides that the authors' model drew
    place = 2 + (rng.random(mapped) * (few.lengths - 3)).astype(np.int64)
    turned = len(streets) + rng.integers(len(HEADINGS), size=mapped)
    few.tokens[wrong, place[wrong]] = turned[wrong]
    listed = rides_of(streets, few.tokens, few.lengths).ended
    started = time.perf_counter()
    made = MapSettings().reconstruct(streets, listed)
    bench.at_most(f"map of {mapped:,} rides, a fifth with a wrong turn: seconds", time.perf_counter() - started, 120)
    print(f"  {len(made.new)} new streets, {made.failed} rides failed")
    return bench.exit_code()


if __name__ == "__main__":
    sys.exit(main())
