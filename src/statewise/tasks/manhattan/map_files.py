"""Maps on disk: a folder with `nodes.csv` and `edges.csv`, plain or gzipped, in the published format."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

from statewise.runtime import overwriting
from statewise.runtime.durable import write_atomically
from statewise.tasks.base import kept_text
from statewise.tasks.manhattan.street_map import HEADINGS, StreetMap
from statewise.tasks.own_files.lines import Problems, read_lines

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
    found = sorted({path.name.partition(".csv")[0] for path in folder.glob("edges_*.csv*")})
    builds = ", ".join(name.removeprefix("edges_") for name in found)
    if found and build:
        raise FileNotFoundError(f"{folder}: has no edges_{build}.csv; it has the builds {builds}")
    if found:
        raise ValueError(f"{folder}: has several lists of streets: choose one by --build, of {builds}")
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
