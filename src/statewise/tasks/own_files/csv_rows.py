"""CSV files with a header, row by row with line numbers."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path

from statewise.tasks.own_files.lines import Problems, raw_lines, read_lines


def read_csv(path: Path, delimiter: str | None) -> tuple[list[str], Iterator[tuple[int, dict[str, str]]]]:
    """Column names, and (number of the first line, stripped cells by column) of every row that is not empty.
    `delimiter`: what separates columns; None: whichever of , ; | and tab the header has most of.

    Raises `ValueError` as `FILE:LINE: what is wrong`; for rows, while they are read.
    """
    _, header = next(read_lines(path))
    if delimiter is None:
        outside_quotes = re.sub(r'"[^"]*"', "", header)
        tabbed = path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix
        marks = "\t,;|" if tabbed.lower() == ".tsv" else ",;\t|"
        delimiter = "\t" if marks[0] == "\t" and "\t" in outside_quotes else max(marks, key=outside_quotes.count)
    rows = _rows(path, delimiter)
    header_row = next(rows, None)
    if header_row is None:
        raise ValueError(f"{path}: every cell is empty")
    _, columns = header_row
    return columns, _cells(path, columns, rows)


def _cells(
    path: Path, columns: list[str], rows: Iterator[tuple[int, list[str]]]
) -> Iterator[tuple[int, dict[str, str]]]:
    problems = Problems(path)
    for line, cells in rows:
        if len(cells) == len(columns):
            yield line, dict(zip(columns, cells))
        else:
            problems.add(line, f"{len(cells)} cells, but the header has {len(columns)} columns")
    problems.raise_if_any()


def _rows(path: Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader((line for _, line in raw_lines(path)), delimiter=delimiter, strict=True)
    while True:
        number = reader.line_num + 1
        # The limit is the process's: set for this one read, so that readers left half-way change nothing for others.
        before = csv.field_size_limit(2**31 - 1)  # a cell may hold a whole sequence
        try:
            cells = [cell.strip() for cell in next(reader)]
        except StopIteration:
            return
        except csv.Error as error:
            raise ValueError(f"{path}:{number}: not CSV: {error}: is a quotation mark not closed?") from None
        finally:
            csv.field_size_limit(before)
        if any(cells):
            yield number, cells
