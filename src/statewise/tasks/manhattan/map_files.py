"""Maps on disk: a folder with `nodes.csv` and `edges.csv`, gzipped or not, as the published conversion has them."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

from statewise.tasks.lines import Problems, read_lines
from statewise.tasks.manhattan.street_map import HEADINGS, StreetMap

NODES, EDGES = "nodes.csv", "edges.csv"
EDGE_COLUMNS = ("from_node", "direction", "to_node")
PLACES = (("x", "y"), ("synthetic_x", "synthetic_y"))
"""Columns that may say where a crossing lies, east and north."""

Lines = Iterable[tuple[int, str]]


def read_map(folder: Path, build: str | None = None) -> StreetMap:
    """The map of a folder. `build` chooses among several lists of streets, `edges_BUILD.csv`; without it `edges.csv` is
    read, or else `edges_random.csv`, on which the published random traversals were made.

    Without a list of crossings those of the streets are taken, and their places are not known. A crossing without any
    street is left out. Raises `FileNotFoundError` or `ValueError`, with file and line: a street of a crossing that the
    list of crossings does not have, two streets with one heading, an unknown heading, a place that is no number.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: there is no such folder; a map is one with {EDGES} and {NODES}")
    edges, nodes = _edges_file(folder, build), _find(folder, NODES)
    return _make(read_lines(edges), edges, *((read_lines(nodes), nodes) if nodes else (None, folder / NODES)))


def of_files(files: Mapping[str, bytes]) -> StreetMap:
    """The map that `as_files` gave."""
    edges, nodes = (enumerate(files[name].decode().splitlines(), 1) for name in (EDGES, NODES))
    return _make(edges, Path(EDGES), nodes, Path(NODES))


def as_files(streets: StreetMap) -> dict[str, bytes]:
    """`nodes.csv` and `edges.csv` of a map."""
    places = None if streets.places is None else streets.places.tolist()
    nodes = [[name, *(places[number] if places else ())] for number, name in enumerate(streets.names)]
    edges = [
        [streets.names[begin], HEADINGS[heading], streets.names[end]]
        for begin, heading, end in zip(*(column.tolist() for column in streets.streets))
    ]
    return {
        NODES: _as_csv([["node", *(("x", "y") if places else ())], *nodes]),
        EDGES: _as_csv([list(EDGE_COLUMNS), *edges]),
    }


def write_map(streets: StreetMap, folder: Path) -> list[Path]:
    """Writes a map into a new or empty folder. Raises `FileExistsError` if it holds anything."""
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise FileExistsError(f"{folder}: is not empty; choose another folder for the map")
    files = as_files(streets)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return [folder / name for name in files]


def _as_csv(rows: list[list[object]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def _find(folder: Path, name: str) -> Path | None:
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def _edges_file(folder: Path, build: str | None) -> Path:
    """The list of streets. Raises if there is none, or not one alone."""
    for name in [f"edges_{build}.csv"] if build else [EDGES, "edges_random.csv"]:
        named = _find(folder, name)
        if named is not None:
            return named
    found = sorted({path.name.partition(".csv")[0] for path in folder.glob("edges_*.csv*")})
    builds = ", ".join(name.removeprefix("edges_") for name in found)
    if found and build:
        raise FileNotFoundError(f"{folder}: has no edges_{build}.csv; there are the builds {builds}")
    if found:
        raise ValueError(f"{folder}: has several lists of streets: choose one by --build, of {builds}")
    pickles = sorted(folder.glob("*.pkl"))
    hint = f"; {pickles[0].name} is a pickle, which can run code when read: convert it to CSV" if pickles else ""
    raise FileNotFoundError(f"{folder}: has no {EDGES} (or {EDGES}.gz) with {','.join(EDGE_COLUMNS)}{hint}")


def _make(edges: Lines, edges_file: Path, nodes: Lines | None, nodes_file: Path) -> StreetMap:
    places = None if nodes is None else _crossings(nodes, nodes_file)
    headings = {heading: number for number, heading in enumerate(HEADINGS)}
    problems, streets = Problems(edges_file), []
    first: dict[tuple[str, str], int] = {}
    for line, row in _rows(edges, edges_file, EDGE_COLUMNS):
        begin, heading, end = (row[column] for column in EDGE_COLUMNS)
        if heading not in headings:
            problems.add(line, f"unknown heading {heading!r}: there are {', '.join(HEADINGS)}")
        elif places is None and (wrong := _bad_name(begin) or _bad_name(end)):
            problems.add(line, wrong)
        elif places is not None and not (begin in places and end in places):
            missing = end if begin in places else begin
            problems.add(line, f"a street of crossing {missing}, which {nodes_file} does not have")
        elif (begin, heading) in first:
            problems.add(line, f"a second street {heading} from {begin}; the first is in line {first[begin, heading]}")
        else:
            first[begin, heading] = line
            streets.append((begin, headings[heading], end))
    problems.raise_if_any()
    touched = {name for begin, _, end in streets for name in (begin, end)}
    names = sorted(touched) if places is None else [name for name in places if name in touched]
    numbers = {name: number for number, name in enumerate(names)}
    neighbour = np.full((len(names), len(HEADINGS)), -1, np.int32)
    for begin, number, end in streets:
        neighbour[numbers[begin], number] = numbers[end]
    known = places is not None and None not in places.values()
    return StreetMap(names, neighbour, np.array([places[name] for name in names]) if known and places else None)


def _crossings(lines: Lines, file: Path) -> dict[str, tuple[float, float] | None]:
    """The place of each crossing, None where the file says none."""
    problems = Problems(file)
    places: dict[str, tuple[float, float] | None] = {}
    for line, row in _rows(lines, file, ("node",)):
        name = row["node"]
        wrong = _bad_name(name)
        if wrong:
            problems.add(line, wrong)
            continue
        if name in places:
            problems.add(line, f"crossing {name} is listed twice")
            continue
        places[name] = None
        for east, north in (pair for pair in PLACES if set(pair) <= set(row)):
            try:
                places[name] = float(row[east]), float(row[north])
                if not np.isfinite(places[name]).all():  # type: ignore[arg-type]
                    raise ValueError
            except ValueError:
                problems.add(line, f"the place of crossing {name} is not two numbers: {row[east]!r}, {row[north]!r}")
            break
    problems.raise_if_any()
    return places


def _bad_name(name: str) -> str:
    """What is wrong with the name of a crossing, which is a word of rides; empty: nothing."""
    if not name or name.split() != [name]:
        return f"a crossing cannot be named {name!r}: rides are words with spaces between them"
    if name in HEADINGS or name == "end":
        return f"a crossing cannot be named {name}: that is another word of rides"
    return ""


def _rows(lines: Lines, file: Path, needed: Iterable[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """(line number, fields by column) of lines behind a header. Raises `ValueError` if `needed` columns are missing."""
    header: list[str] | None = None
    for line, text in lines:
        fields = [field.strip() for field in next(csv.reader([text]))]
        if header is None:
            header = fields
            missing = [column for column in needed if column not in header]
            if missing:
                raise ValueError(f"{file}:{line}: the header has no column {', '.join(missing)}")
        elif len(fields) != len(header):
            raise ValueError(f"{file}:{line}: {len(fields)} fields, but the header has {len(header)}")
        else:
            yield line, dict(zip(header, fields))
