"""Taxi rides against the clock: drawing, checking, distances between all crossings, and the map that rides imply.

python benchmarks/rides.py [FOLDER of a map; else a grid city about as large as Manhattan]
"""

from __future__ import annotations

import resource
import sys
import time
from pathlib import Path

import numpy as np
from timing import Bars

from statewise.analysis.map import MapSettings
from statewise.analysis.reconstruction import rides_of
from statewise.tasks.manhattan.city import grid_city
from statewise.tasks.manhattan.map_files import read_map
from statewise.tasks.manhattan.street_map import HEADINGS
from statewise.tasks.manhattan.task import Manhattan, ManhattanConfig
from statewise.types import Examples

RIDES = 20_000


def peak() -> float:
    """MB that this process has ever held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    bars = Bars()
    folder = sys.argv[1] if len(sys.argv) > 1 else None
    streets = read_map(Path(folder)) if folder else grid_city(65, 72, 1)
    begin, _, _ = streets.streets
    print(f"{folder or 'grid city'}: {len(streets):,} crossings, {len(begin):,} streets")
    import scipy.sparse.csgraph  # its import is not what is measured

    assert scipy.sparse.csgraph
    before, started = peak(), time.perf_counter()
    assert len(streets.moves) == len(streets)
    bars.at_most("moves between all crossings: seconds", time.perf_counter() - started, 10)
    bars.at_most("moves between all crossings: MB", peak() - before, 100)

    task = Manhattan(ManhattanConfig(map=folder, rows=65, columns=72))
    task.streets = streets  # whose distances are known by now
    rides: Examples | None = None
    for style in ("noisy_shortest", "shortest", "random"):
        drawing = Manhattan(ManhattanConfig(map=folder, rows=65, columns=72, rides=style))
        drawing.streets = streets
        started = time.perf_counter()
        rides = drawing.sample(np.random.default_rng(0), RIDES)
        seconds = time.perf_counter() - started
        million = rides.lengths.sum() / seconds / 1e6
        bars.at_least(f"{style} rides: million tokens a second of one core", million, 0.2)
    assert rides is not None
    started = time.perf_counter()
    checked = task.check(rides)
    seconds = time.perf_counter() - started
    assert (checked.verdicts == 0).all()
    bars.at_least("checking: million tokens a second of one core", rides.lengths.sum() / seconds / 1e6, 1)

    rng, few = np.random.default_rng(0), rides[:1000]
    wrong = rng.random(1000) < 0.2  # as often as in the rides that the authors' model drew
    place = 2 + (rng.random(1000) * (few.lengths - 3)).astype(np.int64)
    turned = len(streets) + rng.integers(len(HEADINGS), size=1000)
    few.tokens[wrong, place[wrong]] = turned[wrong]
    listed, _ = rides_of(streets, few.tokens, few.lengths)
    started = time.perf_counter()
    made = MapSettings().reconstruct(streets, listed)
    bars.at_most("map of 1,000 rides, a fifth with a wrong turn: seconds", time.perf_counter() - started, 120)
    print(f"  {len(made.new)} new streets, {made.failed} rides failed")
    bars.finish()


if __name__ == "__main__":
    main()
