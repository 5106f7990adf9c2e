"""A city of our own: a grid of one-way streets with what makes real ones hard to learn."""

from __future__ import annotations

import numpy as np

from statewise.tasks.manhattan.street_map import HEADINGS, StreetMap

MISSING = 0.08
"""Share of the pieces of street that are missing."""
TWO_WAY = 0.15
"""Share of streets and avenues that go both ways."""
DEAD_ENDS = 0.02
"""Share of crossings from which a street leads into a dead end."""
LOOPS = 0.01
"""Share of crossings with a street back to themselves."""


def grid_city(rows: int, columns: int, seed: int) -> StreetMap:
    """A city of about `rows` x `columns` crossings, the same for the same numbers.

    Streets run east or west in turns, avenues north or south, some both ways, those around the city all; a diagonal
    avenue runs both ways. Some pieces are missing, some crossings have a loop or a dead end, which can only be entered.
    Of all else only what can be reached from everywhere, and leads everywhere, is kept. Raises `ValueError` for fewer
    than 2 rows or columns.
    """
    if rows < 2 or columns < 2:
        raise ValueError(f"a city has at least 2 rows and 2 columns, not {rows} and {columns}")
    rng = np.random.default_rng([seed, rows, columns])
    number = np.arange(rows * columns).reshape(rows, columns)  # row 0 lies in the south
    neighbour = np.full((rows * columns, len(HEADINGS)), -1)

    def lay(line: np.ndarray, heading: str, onwards: bool, back: bool) -> None:
        """Pieces of street from each crossing of `line` to the next, or back, or both, but for those missing."""
        there = rng.random(len(line) - 1) >= MISSING
        begins, ends, number = line[:-1][there], line[1:][there], HEADINGS.index(heading)
        if onwards:
            neighbour[begins, number] = ends
        if back:
            neighbour[ends, (number + 4) % len(HEADINGS)] = begins

    for place, line in enumerate(number):
        both = place in (0, rows - 1) or rng.random() < TWO_WAY
        lay(line, "E", both or place % 2 == 0, both or place % 2 == 1)
    for place, line in enumerate(number.T):
        both = place in (0, columns - 1) or rng.random() < TWO_WAY
        lay(line, "N", both or place % 2 == 0, both or place % 2 == 1)
    lay(np.diagonal(number), "NE", True, True)

    kept = _main_part(neighbour)
    places = np.stack(np.divmod(kept, columns)[::-1], axis=1).astype(float)
    names = [f"{int(north)}-{int(east)}" for east, north in places]
    renumbered = np.full(rows * columns + 1, -1)  # the last answers for -1
    renumbered[kept] = np.arange(len(kept))
    neighbour = renumbered[neighbour[kept]]
    north_west, south_east = HEADINGS.index("NW"), HEADINGS.index("SE")  # no street of the grid has these
    loops = rng.random(len(kept)) < LOOPS
    neighbour[loops, north_west] = np.flatnonzero(loops)
    ending = np.flatnonzero(rng.random(len(kept)) < DEAD_ENDS)
    neighbour[ending, south_east] = len(kept) + np.arange(len(ending))
    neighbour = np.concatenate([neighbour, np.full((len(ending), len(HEADINGS)), -1)])
    return StreetMap(
        [*names, *(f"{names[place]}-end" for place in ending)],
        neighbour,
        np.concatenate([places, places[ending] + [0.4, -0.4]]),
    )


def _main_part(neighbour: np.ndarray) -> np.ndarray:
    """The crossings of the largest part in which each can be reached from each, in order."""
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import connected_components

    begin, heading = np.nonzero(neighbour >= 0)
    graph = csr_matrix((np.ones(len(begin)), (begin, neighbour[begin, heading])), (len(neighbour),) * 2)
    _, part = connected_components(graph, connection="strong")
    return np.flatnonzero(part == np.bincount(part).argmax())
