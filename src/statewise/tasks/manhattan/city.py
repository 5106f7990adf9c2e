"""Grid cities: one-way streets with the irregularities that make real cities hard to learn."""

from __future__ import annotations

import numpy as np

from statewise.tasks.manhattan.street_map import HEADINGS, StreetMap

MISSING = 0.08
"""Share of street segments that are missing."""
TWO_WAY = 0.15
"""Share of two-way streets and avenues."""
DEAD_ENDS = 0.02
"""Share of crossings with a street into a dead end."""
LOOPS = 0.01
"""Share of crossings with a street back to themselves."""
MOST = 1_000_000
"""Most crossings of a city."""


def grid_city(rows: int, columns: int, seed: int) -> StreetMap:
    """A random city of about `rows` x `columns` crossings, determined by the arguments.

    Streets run east and west alternately, avenues north and south; some are two-way, as are those around the city and a
    diagonal avenue. Some segments are missing. The largest strongly connected part is kept; then some crossings get a
    loop, or a street into a dead end. Raises `ValueError` for fewer than 2 rows or columns, or too many crossings.
    """
    if rows < 2 or columns < 2:
        raise ValueError(f"a city has at least 2 rows and 2 columns, not {rows} and {columns}")
    if rows * columns > MOST:
        raise ValueError(f"a city has at most {MOST:,} crossings, not {rows:,} x {columns:,}")
    rng = np.random.default_rng([seed, rows, columns])
    number = np.arange(rows * columns).reshape(rows, columns)  # row 0 lies in the south
    neighbour = np.full((rows * columns, len(HEADINGS)), -1)

    def add_street(line: np.ndarray, heading: str, forward: bool, back: bool) -> None:
        """Adds segments from each crossing of `line` to the next, or back, or both, except missing ones."""
        present = rng.random(len(line) - 1) >= MISSING
        begins, ends, number = line[:-1][present], line[1:][present], HEADINGS.index(heading)
        if forward:
            neighbour[begins, number] = ends
        if back:
            neighbour[ends, (number + 4) % len(HEADINGS)] = begins

    for index, line in enumerate(number):
        both = index in (0, rows - 1) or rng.random() < TWO_WAY
        add_street(line, "E", both or index % 2 == 0, both or index % 2 == 1)
    for index, line in enumerate(number.T):
        both = index in (0, columns - 1) or rng.random() < TWO_WAY
        add_street(line, "N", both or index % 2 == 0, both or index % 2 == 1)
    add_street(np.diagonal(number), "NE", True, True)

    kept = _largest_component(neighbour)
    coordinates = np.stack(np.divmod(kept, columns)[::-1], axis=1).astype(float)
    names = [f"{int(north)}-{int(east)}" for east, north in coordinates]
    renumbered = np.full(rows * columns + 1, -1)  # the last entry maps -1 to -1
    renumbered[kept] = np.arange(len(kept))
    neighbour = renumbered[neighbour[kept]]
    north_west, south_east = HEADINGS.index("NW"), HEADINGS.index("SE")  # no street of the grid has these
    loops = rng.random(len(kept)) < LOOPS
    neighbour[loops, north_west] = np.flatnonzero(loops)
    ending = np.flatnonzero(rng.random(len(kept)) < DEAD_ENDS)
    neighbour[ending, south_east] = len(kept) + np.arange(len(ending))
    neighbour = np.concatenate([neighbour, np.full((len(ending), len(HEADINGS)), -1)])
    return StreetMap(
        [*names, *(f"{names[crossing]}-end" for crossing in ending)],
        neighbour,
        np.concatenate([coordinates, coordinates[ending] + [0.4, -0.4]]),
    )


def _largest_component(neighbour: np.ndarray) -> np.ndarray:
    """The crossings of the largest strongly connected component, in order."""
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import connected_components

    begin, heading = np.nonzero(neighbour >= 0)
    graph = csr_matrix((np.ones(len(begin)), (begin, neighbour[begin, heading])), (len(neighbour),) * 2)
    _, part = connected_components(graph, connection="strong")
    return np.flatnonzero(part == np.bincount(part).argmax())
