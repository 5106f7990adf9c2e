"""Sequences from a table with an event a row: the events of each case, in the order of their times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from statewise.runtime.messages import counted, series
from statewise.tasks.own_files.layout import DROP, MISSING, SequenceFile, is_symbol
from statewise.tasks.own_files.lines import Problems
from statewise.tasks.own_files.log import EventLog, settled
from statewise.tasks.own_files.roles import Roles
from statewise.tasks.own_files.sources import Absent, Ids, Source, unknown_column, written
from statewise.tasks.own_files.times import EPOCHS, Moments, Reader, ordered
from statewise.tasks.own_files.unfinished import cut_cases


class _Names:
    """Numbers of the values of a column."""

    def __init__(self, column: str, layout: SequenceFile, *, replaced: bool) -> None:
        self.column, self.missing, self.replaced = column, layout.missing, replaced
        self.ids = Ids()
        self.count: Counter[str] = Counter()
        """Missing cells, by how they are written."""

    def read(self, cells: Sequence[Any], lines: np.ndarray, problems: Problems, kept: np.ndarray) -> np.ndarray:
        """(n,) int64 numbers of the values. Clears `kept` (n,) of rows without one, and reports them if that is an
        error."""
        ids = self.ids
        if set(map(type, cells)) <= {str}:
            texts: Sequence[Any] = cells
        else:
            texts = [cell if isinstance(cell, str) else str(cell) if is_symbol(cell) else None for cell in cells]
        codes = ids.of(texts)
        gone = [
            code
            for text, code in ((text, ids.get(text)) for text in (None, "", *(MISSING if self.missing else ())))
            if code is not None
        ]
        if not gone:
            return codes
        for place in np.flatnonzero(np.isin(codes, gone)).tolist():
            if not kept[place]:
                continue
            cell = cells[place]
            text = texts[place]
            absent = cell is None or isinstance(cell, Absent)
            if text is None and (not absent or self.missing is None):
                kept[place] = False
                if isinstance(cell, Absent) and cell.names:
                    wrong = unknown_column(self.column, cell.names)
                elif absent and isinstance(cell, Absent):
                    wrong = f"column {self.column!r} is missing{HINT}"
                else:
                    wrong = f"column {self.column!r} must be a string or a whole number"
                problems.add(int(lines[place]), wrong, f"{self.column} {type(cell).__name__}")
            elif self.missing is None or (self.missing != DROP and not self.replaced):
                kept[place] = False
                problems.add(int(lines[place]), f"column {self.column!r} is empty{HINT}", f"{self.column} empty")
            else:
                self.count["empty" if text == "" else "null" if absent else repr(text)] += 1
                if self.missing == DROP:
                    kept[place] = False
                else:
                    codes[place] = ids[self.missing]
        return codes

    def notes(self) -> list[str]:
        """What became of missing cells."""
        if not self.count:
            return []
        kinds = series(f"{number:,} {name}" for name, number in self.count.most_common())
        became = "rows left out" if self.missing == DROP else f"read as {self.missing!r}"
        return [f"column {self.column!r}: {kinds} cell{'s' * (self.count.total() > 1)}: {became}"]


HINT = ": set --task.missing drop to leave such rows out, or --task.missing SYMBOL"


def read_cases(source: Source, roles: Roles, layout: SequenceFile, problems: Problems) -> EventLog:
    """A sequence from each case. Raises `ValueError` as `reading.read_log` does."""
    case = roles.case
    assert case is not None
    cycle, stages = _lifecycle(source, roles), set[str]()
    optional = [name for name in (roles.clock, cycle) if name is not None]
    wanted = list(dict.fromkeys([case, *roles.symbols, *roles.prompts, *optional]))
    place = {name: number for number, name in enumerate(wanted)}
    names = {name: _Names(name, layout, replaced=name != case) for name in (case, *roles.symbols)}
    values = {
        name: _Names(name, replace(layout, missing=layout.missing or "missing"), replaced=True)
        for name in roles.prompts
    }
    reader = None if roles.clock is None else Reader(roles.clock, layout.time_format)
    blocks: list[list[np.ndarray]] = []
    moments: list[Moments] = []
    timeless = Counter[str]()
    for chunk in source.chunks(wanted, problems):
        kept = np.ones(len(chunk.lines), bool)
        if cycle is not None and len(stages) < 10:
            stages.update(cell.lower() for cell in chunk.cells[place[cycle]] if isinstance(cell, str))
        columns = [names[name].read(chunk.cells[place[name]], chunk.lines, problems, kept) for name in names]
        columns += [values[name].read(chunk.cells[place[name]], chunk.lines, problems, kept) for name in values]
        if reader is not None:
            cells = chunk.cells[place[reader.column]]
            found, wrong = reader.read(cells, chunk.lines)
            if roles.order is None:  # the times do not order events: they may be missing
                timeless.update(["missing"] * len(wrong))
            for row, what in wrong.items() if roles.order is not None else ():
                if kept[row]:
                    kept[row] = False
                    cell = cells[row]
                    if layout.missing == DROP and (written(cell) in MISSING or written(cell) == ""):
                        timeless[repr(cell) if isinstance(cell, str) and cell else "empty"] += 1
                    else:
                        problems.add(int(chunk.lines[row]), what, f"{reader.column} {_kind_of(cell)}")
            moments.append(found.take(kept))
        blocks.append([one[kept] for one in (chunk.lines, chunk.records, *columns)])
    lines, records, cases, *codes = (
        (np.concatenate(part) for part in zip(*blocks)) if blocks else (np.zeros(0, int),) * 3
    )
    notes = [*source.notes, *(note for one in (*names.values(), *values.values()) for note in one.notes())]
    order = None
    how = ""
    if reader is not None and len(lines) and not (roles.order is None and timeless):
        try:
            every = Moments.joined(moments)
            moments.clear()
            order = ordered(every, reader.column, layout.time_format if layout.time_format in EPOCHS else None)
        except ValueError as error:
            raise ValueError(f"{source.path}: {error}") from None
        for row, what in order.wrong.items():
            problems.add(int(lines[row]), what, f"{reader.column} order")
        how = f" ({order.how})" if order.how else ""
    if roles.order is not None and timeless:
        kinds = series(f"{number:,} {name}" for name, number in timeless.most_common())
        notes.append(f"column {roles.order!r}: {kinds} cell{'s' * (timeless.total() > 1)}: rows left out")
    good = np.ones(len(lines), bool)
    good[list(order.wrong) if order is not None else []] = False
    left = settled(source.path, layout, problems, int(good.sum()))
    if not good.any():
        raise ValueError(f"{source.path}: there is a header, but no row under it")
    _, case_of = _by_first(cases[good])
    case_names = _taken(names[case].ids, cases[good], case_of)
    keys = [] if order is None or roles.order is None else [key[good] for key in order.keys]
    placed = np.lexsort((*keys, case_of))
    width = len(roles.symbols)
    events = _joined(
        [one[good][placed] for one in codes[:width]], [names[name].ids for name in roles.symbols], source.path
    )
    lengths = np.bincount(case_of)
    first_lines = np.full(len(lengths), np.iinfo(np.int64).max)
    np.minimum.at(first_lines, case_of, lines[good])
    log = EventLog(
        *events,
        np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        records[good][placed],
        first_lines,
        np.zeros(len(lengths), np.int64),
        None if order is None or order.times is None else order.times[good][placed],
        None if order is None or order.steps is None else order.steps[good][placed],
        case_names,
        np.zeros(len(lengths), bool),
        source,
        tuple(getattr(source, "first", source.names)),
        f"{source.how}, column {'+'.join(roles.symbols)!r}, one sequence for each {case!r}"
        + ("" if roles.order is None else f", ordered by {roles.order!r}{how}"),
    )
    if layout.unfinished == "mark":
        unfinished, said = cut_cases(log.codes, log.offsets, log.times)
        log, notes = replace(log, unfinished=unfinished), [*notes, said]
    if roles.prompts:
        log = _prompted(log, [one[good][placed] for one in codes[width:]], [values[name].ids for name in roles.prompts])
    return replace(log, notes=tuple(notes), doubts=(*left, *_doubts(log, roles, layout, cycle, stages)))


def _kind_of(cell: Any) -> str:
    return "missing" if isinstance(cell, Absent) or cell is None or cell == "" else "value"


def _by_first(codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The different numbers in the order in which they first occur, and (n,) the place of each in that order."""
    different, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return different[order], rank[inverse.ravel()]


def _taken(ids: dict[str, int], codes: np.ndarray, ranks: np.ndarray) -> list[str]:
    """Names in the order of their ranks."""
    every = list(ids)
    number = np.empty(int(ranks.max()) + 1, np.int64)
    number[ranks] = codes
    return [every[code] for code in number.tolist()]


def _joined(columns: list[np.ndarray], ids: list[dict[str, int]], path: Path) -> tuple[list[str], np.ndarray]:
    """Symbols and codes of events whose symbol is made of several columns, with a plus sign between."""
    every = [list(one) for one in ids]
    if len(columns) == 1:
        different, codes = _by_first(columns[0])
        return [every[0][code] for code in different.tolist()], codes
    joint = columns[0]
    for column, one in zip(columns[1:], ids[1:]):
        joint = joint * len(one) + column
        _, joint = _by_first(joint)
    different, first, codes = np.unique(joint, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    symbols = ["+".join(names[column[row]] for names, column in zip(every, columns)) for row in first[order].tolist()]
    if len(set(symbols)) < len(symbols):
        twice = next(symbol for symbol in symbols if symbols.count(symbol) > 1)
        raise ValueError(
            f"{path}: the columns make the symbol {twice!r} in two ways, since their values have plus signs: replace "
            "those"
        )
    return symbols, rank[codes.ravel()]


def _prompted(log: EventLog, columns: list[np.ndarray], ids: list[dict[str, int]]) -> EventLog:
    """The log with the values of columns in the first event of each case as prompts."""
    starts, width = log.offsets[:-1], len(columns)
    symbols = list(log.symbols)
    known = {symbol: code for code, symbol in enumerate(symbols)}
    added = np.empty((len(starts), width), np.int64)
    for number, (column, names) in enumerate(zip(columns, ids)):
        every = list(names)
        added[:, number] = [known.setdefault(every[code], len(known)) for code in column[starts].tolist()]
    before = np.repeat(starts, width)

    def spread(array: np.ndarray, inserted: np.ndarray) -> np.ndarray:
        return np.insert(array, before, inserted)

    every_symbol = list(known)
    codes = spread(log.codes, added.ravel())
    different, codes = _by_first(codes)
    return replace(
        log,
        symbols=[every_symbol[code] for code in different.tolist()],
        codes=codes,
        offsets=log.offsets + width * np.arange(len(log.offsets)),
        rows=spread(log.rows, np.repeat(log.rows[starts], width)),
        prompts=np.full(len(starts), width, np.int64),
        times=None if log.times is None else spread(log.times, np.repeat(log.times[starts], width)),
        steps=None if log.steps is None else spread(log.steps, np.repeat(log.steps[starts], width)),
    )


def _lifecycle(source: Source, roles: Roles) -> str | None:
    """The column of the stages of activities, if there is one that is not used."""
    return next(
        (
            name
            for name in source.names
            if "lifecycle" in name.lower() and not name.startswith("case:") and name not in roles.symbols
        ),
        None,
    )


def _doubts(log: EventLog, roles: Roles, layout: SequenceFile, cycle: str | None, stages: set[str]) -> Iterator[str]:
    """Signs that the columns are not those that the user means. `stages`: what the column `cycle` has, in small
    letters."""
    assert log.cases is not None
    if layout.missing is None:
        for number, case in enumerate(log.cases):
            if case in MISSING:
                length = int(log.lengths[number])
                yield (
                    f"{counted(length, 'event')} {'has' if length == 1 else 'have'} the case {case!r}, which often "
                    "stands for a missing value: if it does, set --task.missing drop"
                )
    if cycle is not None and {"start", "complete"} <= stages:
        columns = ",".join([*roles.symbols, cycle])
        yield (
            f"column {cycle!r} says whether an event is the start or the end of an activity, so that most activities "
            f"occur twice in a row: set --task.column {columns} to distinguish them"
        )
