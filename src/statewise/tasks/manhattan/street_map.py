"""A map of one-way streets: from each crossing a street for a heading leads to one other crossing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np

HEADINGS = ("N", "NE", "E", "SE", "S", "SW", "W", "NW")
"""A street has one of these; its number is its place here."""
FAR = np.iinfo(np.uint16).max
"""The distance where there is no way."""
MOST_CROSSINGS = 20_000
"""Distances between all pairs are kept: 800 MB at so many."""


class StreetMap:
    """N crossings, and where each heading leads from each of them."""

    def __init__(self, names: Sequence[str], neighbour: np.ndarray, places: np.ndarray | None = None) -> None:
        """`neighbour` (N, 8) int: the crossing that a heading leads to, -1 where there is no street; `places` (N, 2):
        east and north of each crossing, None: not known. Raises `ValueError` if there are no streets or too many
        crossings."""
        if not (neighbour >= 0).any():
            raise ValueError("the map has no street")
        if len(names) > MOST_CROSSINGS:
            raise ValueError(
                f"the map has {len(names):,} crossings, and distances between all of them are kept: at most "
                f"{MOST_CROSSINGS:,} can be"
            )
        assert neighbour.shape == (len(names), len(HEADINGS))
        self.names, self.neighbour, self.places = list(names), neighbour.astype(np.int32), places

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def streets(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(M,) from, heading, to of every street, ordered by the first two."""
        begin, heading = np.nonzero(self.neighbour >= 0)
        return begin, heading, self.neighbour[begin, heading].astype(np.int64)

    @cached_property
    def moves(self) -> np.ndarray:
        """(N, N) uint16: the fewest moves *to* the crossing of the row *from* that of the column; `FAR`: no way."""
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
        size = 256  # at this size the work on floats stays below 10 MB for Manhattan
        for start in range(0, len(goals), size):
            rows = slice(start, start + size)
            moves = dijkstra(backwards, unweighted=True, indices=goals[rows])
            yield rows, np.where(np.isfinite(moves), moves, FAR).astype(np.uint16)

    def travel_times(self, times: np.ndarray, goals: np.ndarray) -> np.ndarray:
        """(len(goals), N): the shortest time *to* each goal *from* everywhere, where street m of `streets` takes
        `times[m]` > 0; infinite where there is no way. Of two streets with one begin and end the faster counts."""
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
        """For each crossing the streets that lead to it: from where and by which heading, both (N, most) and padded
        with 0, and how many there are (N,)."""
        begin, heading, end = self.streets
        order = np.argsort(end, kind="stable")
        count = np.bincount(end, minlength=len(self))
        place = np.arange(len(order)) - np.repeat(np.cumsum(count) - count, count)
        into, by = np.zeros((2, len(self), int(count.max())), np.int64)
        into[end[order], place], by[end[order], place] = begin[order], heading[order]
        return into, by, count

    def near(self, crossing: int, radius: float) -> np.ndarray:
        """Crossings at most `radius` away, nearest first: in units of `places`, or in moves (there or back, whichever
        is fewer) where places are not known."""
        if self.places is not None:
            away = np.hypot(*(self.places - self.places[crossing]).T)
        else:
            away = np.minimum(self.moves[crossing], self.moves[:, crossing]).astype(float)
        inside = np.flatnonzero(away <= radius)
        return inside[np.argsort(away[inside], kind="stable")]

    @cached_property
    def street_length(self) -> float:
        """The median length of a street, in units of `places`; 1 where these are not known."""
        if self.places is None:
            return 1.0
        begin, _, end = self.streets
        return float(np.median(np.hypot(*(self.places[begin] - self.places[end]).T)))
