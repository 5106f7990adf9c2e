"""Event logs in XES 1.0 and 2.0 (IEEE 1849): `log > trace > event`, with typed attributes.

Read by a parser that keeps one chunk of events, whatever the size of the file; entities of the document are refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from xml.parsers import expat

import numpy as np
from typing_extensions import override

from statewise.runtime.messages import cut
from statewise.tasks.own_files.lines import Problems, opened
from statewise.tasks.own_files.sources import CHUNK, Absent, Chunk, Source

OF_TRACE = "case:"
"""Before the names of attributes of traces, in the names of columns."""
NAME, TIME = "concept:name", "time:timestamp"
TRACE = "trace"
"""The column that tells the traces of a log from one another, whether or not they have names that differ."""
BLOCK = 2**20
LOOKED_AT = 2**22
"""Bytes at the beginning in which attributes are looked for."""
VALUED = frozenset({"string", "date", "int", "float", "boolean", "id"})


class Xes(Source):
    """The events of a log. Columns are the attributes of events, and those of their traces after `case:`."""

    case, symbol, clock = TRACE, NAME, TIME

    def __init__(self, path: Path) -> None:
        self.path, self.how = path, "XES"
        parser = _Parser(path, None, 10**9)
        self.names = []
        for _ in parser.events(LOOKED_AT):
            pass
        self.names = [*parser.found]
        self.whole = parser.done
        """Whether the beginning is the whole file, so that `names` has all columns."""
        if self.whole and not any(not name.startswith(OF_TRACE) for name in self.names):
            raise ValueError(f"{path}: no trace of this log has an event with an attribute")

    @override
    def has(self, name: str) -> bool:
        if name in self.names or name == TRACE:
            return True
        if self.whole:
            return False
        parser = _Parser(self.path, None, 10**9)  # an attribute may occur late in a log
        for _ in parser.events(None):
            pass
        self.names, self.whole = [*parser.found], True
        return name in self.names

    @override
    def chunks(self, wanted: Sequence[str], problems: Problems | None) -> Iterator[Chunk]:
        parser, record = _Parser(self.path, wanted, CHUNK), 0
        for rows, lines in parser.events(None):
            columns = [list(column) for column in zip(*rows)] if wanted else []
            yield Chunk(np.arange(record, record + len(rows)), np.array(lines, np.int64), list(columns))
            record += len(rows)
        self.notes = (
            [f"{parser.empty:,} trace{'s' * (parser.empty > 1)} without an event left out"] if parser.empty else []
        )


class _Parser:
    """Reads the wanted attributes of events; None: their names alone."""

    def __init__(self, path: Path, wanted: Sequence[str] | None, size: int) -> None:
        self.path, self.wanted, self.size = path, wanted, size
        self.found: dict[str, None] = {}
        self.places = {name: place for place, name in enumerate(wanted or ())}
        self.rows: list[list[Any]] = []
        self.lines: list[int] = []
        self.done = False
        self.empty = 0
        self.depth = 0
        self.names: dict[str, int] = {}
        self.row: list[Any] | None = None
        self.of_trace: dict[str, str] = {}
        self.begin = 0
        self.count = 0
        self.inside = ""
        self.top = ""

    def events(self, most: int | None) -> Iterator[tuple[list[list[Any]], list[int]]]:
        """(cells of events, their lines), some at a time. `most`: bytes after which it stops."""
        self.parser = parser = expat.ParserCreate()
        parser.buffer_text = True
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.EntityDeclHandler = self._entity
        parser.SetParamEntityParsing(expat.XML_PARAM_ENTITY_PARSING_NEVER)
        size = 0
        with opened(self.path) as file:
            while block := file.read(BLOCK):
                self._parse(block, False)
                # Events of a trace that goes on are kept: its attributes may stand after them.
                whole = self.begin if self.inside == "trace" else len(self.rows)
                if whole >= self.size:
                    yield self.rows[:whole], self.lines[:whole]
                    self.rows, self.lines, self.begin = self.rows[whole:], self.lines[whole:], 0
                size += len(block)
                if most is not None and size >= most:
                    if self.top != "log":
                        break
                    return
            else:
                self._parse(b"", True)
        if self.top != "log":
            raise ValueError(
                f"{self.path}: this is XML, but its first element is {cut(self.top)!r}, not the log of XES"
            )
        self.done = True
        if self.rows:
            yield self.rows, self.lines

    def _parse(self, block: bytes, last: bool) -> None:
        try:
            self.parser.Parse(block, last)
        except expat.ExpatError as error:
            what = expat.errors.messages[error.code]
            raise ValueError(f"{self.path}:{error.lineno}: not XML: {what}") from None
        except (LookupError, ValueError) as error:  # of an encoding that the parser does not know
            if str(error).startswith(str(self.path)):
                raise
            raise ValueError(f"{self.path}: not XML that can be read: {error}") from None

    def _entity(self, *_: Any) -> None:
        raise ValueError(
            f"{self.path}:{self.parser.CurrentLineNumber}: the document declares entities, which are not expanded: "
            "write their text in their place"
        )

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        self.depth += 1
        depth = self.depth
        if depth == 4:
            if self.row is not None and tag in VALUED:
                key = attributes.get("key")
                place = self.places.get(key)  # type: ignore[arg-type]
                if place is not None:
                    self.row[place] = attributes.get("value", "").strip()
                elif self.wanted is None and key is not None:
                    self.found[key] = None
        elif depth == 3:
            if self.inside != "trace":
                return
            if ":" in tag:
                tag = tag.rpartition(":")[2]
            if tag == "event":
                self.row = self._begun()
                self.lines.append(self.parser.CurrentLineNumber)
                self.count += 1
            elif tag in VALUED and "key" in attributes:
                name = OF_TRACE + attributes["key"]
                self.found[name] = None
                self.of_trace[name] = attributes.get("value", "").strip()
                place = self.places.get(name)
                if place is not None:
                    for row in self.rows[self.begin :]:  # an attribute that stands after events
                        row[place] = self.of_trace[name]
        elif depth == 2:
            self.inside = tag.rpartition(":")[2]
            if self.inside == "trace":
                self.begin, self.of_trace, self.count = len(self.rows), {}, 0
                self.line = self.parser.CurrentLineNumber
        elif depth == 1:
            self.top = tag.rpartition(":")[2]
        elif depth > 1000:
            raise ValueError(f"{self.path}:{self.parser.CurrentLineNumber}: elements are nested more than 1,000 deep")

    def _begun(self) -> list[Any]:
        row: list[Any] = [_NO_CELL] * len(self.places)
        for name, value in self.of_trace.items():
            place = self.places.get(name)
            if place is not None:
                row[place] = value
        return row

    def _end(self, tag: str) -> None:
        depth = self.depth
        self.depth -= 1
        if depth == 3 and self.row is not None:
            if self.wanted is not None:
                self.rows.append(self.row)
            else:
                self.lines.clear()
            self.row = None
        elif depth == 2:
            if self.inside == "trace":
                self._close_trace()
            self.inside = ""

    def _close_trace(self) -> None:
        if not self.count:
            self.empty += 1
        place = self.places.get(TRACE)
        if place is None:
            return
        name = self.of_trace.get(OF_TRACE + NAME) or f"trace in line {self.line}"
        copies = self.names[name] = self.names.get(name, 0) + 1
        label = name if copies == 1 else f"{name} ({copies})"
        while copies > 1 and label in self.names:
            copies += 1
            label = f"{name} ({copies})"
        self.names[label] = self.names.get(label, 0) + (label != name)
        for row in self.rows[self.begin :]:
            row[place] = label


_NO_CELL = Absent(())
