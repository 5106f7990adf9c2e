"""Maps of one-way streets: directed graphs in which each crossing has at most one street per heading.

`grid_city` generates a map with the irregularities that make real cities hard to learn. On disk, a map is a folder with
`nodes.csv` and `edges.csv`, plain or gzipped, in the published format.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from statewise.runtime import overwriting
from statewise.runtime.durable import write_atomically
from statewise.tasks.base import kept_text
from statewise.tasks.own_files.lines import Problems, read_lines

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
        distances = np.empty((len(self), len(self)), np.uint16)
        for rows, moves in self.moves_to(np.arange(len(self))):
            distances[rows] = moves
        return distances

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
        shortest: np.ndarray = dijkstra(backwards, indices=goals)
        return shortest

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


NODES, EDGES = "nodes.csv", "edges.csv"
EDGE_COLUMNS = ("from_node", "direction", "to_node")
SIGNS = {
    NODES: overwriting.begins_with(b"node\n", b"node,x,y\n"),
    EDGES: overwriting.begins_with(f"{','.join(EDGE_COLUMNS)}\n".encode()),
}
"""Signs by which a map that `write_map` wrote is recognised."""
COORDINATES = (("x", "y"), ("synthetic_x", "synthetic_y"))
"""Names of the columns of a crossing's coordinates, east and north."""

Lines = Iterable[tuple[int, str]]


def read_map(folder: Path, build: str | None = None) -> StreetMap:
    """Reads a map. `build` selects one of several lists of streets, `edges_BUILD.csv`; without it `edges.csv` is read,
    or else `edges_random.csv`, on which the published random traversals were made.

    Without a list of crossings those of the streets are used, without coordinates. Crossings without a street are
    dropped. Raises `FileNotFoundError` or `ValueError`, with file and line, for a street of an unlisted crossing, two
    streets with the same heading from a crossing, an unknown heading, or coordinates that are not numbers.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such folder; a map is a folder with {EDGES} and {NODES}")
    edges, nodes = _edges_file(folder, build), _find(folder, NODES)
    return _make(read_lines(edges), edges, *((read_lines(nodes), nodes) if nodes else (None, folder / NODES)))


def of_files(files: Mapping[str, bytes]) -> StreetMap:
    """The map in the files that `as_files` returned."""
    edges, nodes = (enumerate(kept_text(files, name).splitlines(), 1) for name in (EDGES, NODES))
    return _make(edges, Path("task", EDGES), nodes, Path("task", NODES))


def as_files(streets: StreetMap) -> dict[str, bytes]:
    """`nodes.csv` and `edges.csv` of a map."""
    coordinates = None if streets.coordinates is None else streets.coordinates.tolist()
    nodes = [[name, *(coordinates[number] if coordinates else ())] for number, name in enumerate(streets.names)]
    edges = [
        [streets.names[begin], HEADINGS[heading], streets.names[end]]
        for begin, heading, end in zip(*(column.tolist() for column in streets.streets))
    ]
    return {
        NODES: _as_csv([["node", *(("x", "y") if coordinates else ())], *nodes]),
        EDGES: _as_csv([list(EDGE_COLUMNS), *edges]),
    }


def write_map(streets: StreetMap, folder: Path, overwrite: bool = False) -> list[Path]:
    """Writes a map as a new or empty folder, or with `overwrite` in place of one that has only a map. Raises
    `FileExistsError` for any other."""
    files = as_files(streets)
    # Crossings of one map and streets of another may fit, so the folder is replaced as a whole.
    with overwriting.claimed_folder(folder, (NODES, EDGES), SIGNS, "map", overwrite) as whole:
        for name, content in files.items():
            write_atomically(whole / name, content)
    return [folder / name for name in files]


def _as_csv(rows: list[list[object]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def _find(folder: Path, name: str) -> Path | None:
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def _edges_file(folder: Path, build: str | None) -> Path:
    """The list of streets. Raises if there is none, or several."""
    for name in [f"edges_{build}.csv"] if build else [EDGES, "edges_random.csv"]:
        named = _find(folder, name)
        if named is not None:
            return named
    names = sorted({path.name.partition(".csv")[0] for path in folder.glob("edges_*.csv*")})
    builds = ", ".join(name.removeprefix("edges_") for name in names)
    if names and build:
        raise FileNotFoundError(f"{folder}: has no edges_{build}.csv; it has the builds {builds}")
    if names:
        raise ValueError(f"{folder}: has several lists of streets: choose one by `build`, of {builds}")
    pickles = sorted(folder.glob("*.pkl"))
    hint = f"; {pickles[0].name} is a pickle, which can run code when read: convert it to CSV" if pickles else ""
    raise FileNotFoundError(f"{folder}: has no {EDGES} (or {EDGES}.gz) with {','.join(EDGE_COLUMNS)}{hint}")


def _make(edges: Lines, edges_file: Path, nodes: Lines | None, nodes_file: Path) -> StreetMap:
    coordinates = None if nodes is None else _crossings(nodes, nodes_file)
    headings = {heading: number for number, heading in enumerate(HEADINGS)}
    problems, streets = Problems(edges_file), []
    first: dict[tuple[str, str], int] = {}
    for line, row in _rows(edges, edges_file, EDGE_COLUMNS):
        begin, heading, end = (row[column] for column in EDGE_COLUMNS)
        if heading not in headings:
            problems.add(line, f"unknown heading {heading!r}: choose one of {', '.join(HEADINGS)}")
        elif coordinates is None and (wrong := _bad_name(begin) or _bad_name(end)):
            problems.add(line, wrong)
        elif coordinates is not None and not (begin in coordinates and end in coordinates):
            missing = end if begin in coordinates else begin
            problems.add(line, f"a street of crossing {missing}, which {nodes_file} does not have")
        elif (begin, heading) in first:
            problems.add(line, f"a second street {heading} from {begin}; the first is in line {first[begin, heading]}")
        else:
            first[begin, heading] = line
            streets.append((begin, headings[heading], end))
    problems.raise_if_any()
    touched = {name for begin, _, end in streets for name in (begin, end)}
    names = sorted(touched) if coordinates is None else [name for name in coordinates if name in touched]
    numbers = {name: number for number, name in enumerate(names)}
    neighbour = np.full((len(names), len(HEADINGS)), -1, np.int32)
    for begin, number, end in streets:
        neighbour[numbers[begin], number] = numbers[end]
    known = coordinates is not None and None not in coordinates.values()
    return StreetMap(
        names, neighbour, np.array([coordinates[name] for name in names]) if known and coordinates else None
    )


def _crossings(lines: Lines, file: Path) -> dict[str, tuple[float, float] | None]:
    """Coordinates of each crossing, None where the file has none."""
    problems = Problems(file)
    coordinates: dict[str, tuple[float, float] | None] = {}
    for line, row in _rows(lines, file, ("node",)):
        name = row["node"]
        wrong = _bad_name(name)
        if wrong:
            problems.add(line, wrong)
            continue
        if name in coordinates:
            problems.add(line, f"crossing {name} is listed twice")
            continue
        coordinates[name] = None
        for east, north in (pair for pair in COORDINATES if set(pair) <= set(row)):
            try:
                coordinates[name] = float(row[east]), float(row[north])
                if not np.isfinite(coordinates[name]).all():  # type: ignore[arg-type]
                    raise ValueError
            except ValueError:
                problems.add(line, f"coordinates of crossing {name} are not numbers: {row[east]!r}, {row[north]!r}")
            break
    problems.raise_if_any()
    return coordinates


def _bad_name(name: str) -> str:
    """The problem with a crossing's name, which is a word of rides; empty if there is none."""
    if not name or name.split() != [name]:
        return f"a crossing cannot be named {name!r}: rides are words separated by spaces"
    if name in HEADINGS or name == "end":
        return f"a crossing cannot be named {name}: rides use that word otherwise"
    return ""


def _rows(lines: Lines, file: Path, needed: Iterable[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """(line number, cells by column) of lines under a header. Raises `ValueError` if `needed` columns are missing."""
    header: list[str] | None = None
    for line, text in lines:
        try:
            fields = [field.strip() for field in next(csv.reader([text]), [])]
        except csv.Error as error:
            raise ValueError(f"{file}:{line}: not CSV: {error}") from None
        if header is None:
            header = fields
            missing = [column for column in needed if column not in header]
            if missing:
                raise ValueError(f"{file}:{line}: the header has no column {', '.join(missing)}")
        elif len(fields) != len(header):
            raise ValueError(f"{file}:{line}: {len(fields)} fields, but the header has {len(header)}")
        else:
            yield line, dict(zip(header, fields))
