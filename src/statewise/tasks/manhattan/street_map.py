"""Maps of one-way streets: directed graphs in which each crossing has at most one street per heading.

`grid_city` generates a map with the irregularities that make real cities hard to learn.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np

HEADINGS = ("N", "NE", "E", "SE", "S", "SW", "W", "NW")
"""Headings by number."""
UNREACHABLE = np.iinfo(np.uint16).max
"""The distance where no path exists."""
MOST_CROSSINGS = 20_000
"""Distances between all pairs are stored: 800 MB for so many crossings."""


class StreetMap:
    """N crossings and their streets."""

    def __init__(self, names: Sequence[str], neighbour: np.ndarray, coordinates: np.ndarray | None = None) -> None:
        """`neighbour` (N, 8) int: the crossing that a heading leads to, -1 without a street; `coordinates` (N, 2): east
        and north of each crossing, None if unknown. Raises `ValueError` without streets or for too many crossings."""
        if not (neighbour >= 0).any():
            raise ValueError("the map has no street")
        if len(names) > MOST_CROSSINGS:
            raise ValueError(
                f"the map has {len(names):,} crossings, but distances between all of them are stored: at most "
                f"{MOST_CROSSINGS:,} are possible"
            )
        assert neighbour.shape == (len(names), len(HEADINGS))
        self.names, self.neighbour, self.coordinates = list(names), neighbour.astype(np.int32), coordinates

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def streets(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(M,) begin, heading and end of every street, sorted by the first two."""
        begin, heading = np.nonzero(self.neighbour >= 0)
        return begin, heading, self.neighbour[begin, heading].astype(np.int64)

    @cached_property
    def moves(self) -> np.ndarray:
        """(N, N) uint16: fewest moves *to* the crossing of the row *from* that of the column; `UNREACHABLE`: no way."""
        found = np.empty((len(self), len(self)), np.uint16)
        for rows, moves in self.moves_to(np.arange(len(self))):
            found[rows] = moves
        return found

    def moves_to(self, goals: np.ndarray) -> Iterable[tuple[slice, np.ndarray]]:
        """Rows of `moves` for the given crossings, in blocks: (which of `goals`, (block, N) uint16)."""
        from scipy.sparse import csr_matrix
        from scipy.sparse.csgraph import dijkstra

        begin, _, end = self.streets
        backwards = csr_matrix((np.ones(len(begin)), (end, begin)), (len(self), len(self)))
        size = 256  # keeps the floats below 10 MB for Manhattan
        for start in range(0, len(goals), size):
            rows = slice(start, start + size)
            moves = dijkstra(backwards, unweighted=True, indices=goals[rows])
            yield rows, np.where(np.isfinite(moves), moves, UNREACHABLE).astype(np.uint16)

    def travel_times(self, times: np.ndarray, goals: np.ndarray) -> np.ndarray:
        """(len(goals), N): shortest time *to* each goal *from* every crossing, where street m of `streets` takes
        `times[m]` > 0; infinite where no path exists. Of parallel streets the faster counts."""
        from scipy.sparse import csr_matrix
        from scipy.sparse.csgraph import dijkstra

        begin, _, end = self.streets
        slow_first = np.argsort(-times, kind="stable")
        fastest: dict[tuple[int, int], float] = dict(
            zip(zip(end[slow_first].tolist(), begin[slow_first].tolist()), times[slow_first].tolist())
        )
        rows, columns = np.array(list(fastest)).T
        backwards = csr_matrix((np.array(list(fastest.values())), (rows, columns)), (len(self), len(self)))
        found: np.ndarray = dijkstra(backwards, indices=goals)
        return found

    @cached_property
    def streets_into(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The incoming streets of each crossing: their begins and headings, both (N, most) padded with 0, and their
        number (N,)."""
        begin, heading, end = self.streets
        order = np.argsort(end, kind="stable")
        count = np.bincount(end, minlength=len(self))
        column = np.arange(len(order)) - np.repeat(np.cumsum(count) - count, count)
        into, by = np.zeros((2, len(self), int(count.max())), np.int64)
        into[end[order], column], by[end[order], column] = begin[order], heading[order]
        return into, by, count

    def near(self, crossing: int, radius: float) -> np.ndarray:
        """Crossings at most `radius` away, nearest first: in units of `coordinates`, or in moves (in either direction,
        whichever is fewer) without coordinates."""
        if self.coordinates is not None:
            away = np.hypot(*(self.coordinates - self.coordinates[crossing]).T)
        else:
            away = np.minimum(self.moves[crossing], self.moves[:, crossing]).astype(float)
        inside = np.flatnonzero(away <= radius)
        return inside[np.argsort(away[inside], kind="stable")]

    @cached_property
    def street_length(self) -> float:
        """The median length of a street, in units of `coordinates`; 1 without them."""
        if self.coordinates is None:
            return 1.0
        begin, _, end = self.streets
        return float(np.median(np.hypot(*(self.coordinates[begin] - self.coordinates[end]).T)))


MISSING = 0.08
"""Share of street segments that are missing."""
TWO_WAY = 0.15
"""Share of two-way streets and avenues."""
DEAD_ENDS = 0.02
"""Share of crossings with a street into a dead end."""
LOOPS = 0.01
"""Share of crossings with a street back to themselves."""
LARGEST_GRID = 1_000_000
"""Most crossings of a grid, before the largest connected part is kept."""


def grid_city(rows: int, columns: int, seed: int) -> StreetMap:
    """A random city of about `rows` x `columns` crossings, determined by the arguments.

    Streets run east and west alternately, avenues north and south; some are two-way, as are those around the city and a
    diagonal avenue. Some segments are missing. The largest strongly connected part is kept; then some crossings get a
    loop, or a street into a dead end. Raises `ValueError` for fewer than 2 rows or columns, or too many crossings.
    """
    if rows < 2 or columns < 2:
        raise ValueError(f"a city has at least 2 rows and 2 columns, not {rows} and {columns}")
    if rows * columns > LARGEST_GRID:
        raise ValueError(f"a city has at most {LARGEST_GRID:,} crossings, not {rows:,} x {columns:,}")
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
