"""JSON lines, and arrays of JSON: lists, strings, or objects, whose keys are the columns of a table."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
from typing_extensions import override

from statewise.runtime.json_files import loads
from statewise.tasks.own_files.encodings import Text
from statewise.tasks.own_files.lines import Problems
from statewise.tasks.own_files.sources import CHUNK, LETTERS, Absent, Chunk, Source
from statewise.tasks.own_files.times import fraction

KINDS: dict[type, str] = {dict: "an object", list: "a list", str: "a string"}
FIRST = 100
"""Objects whose keys are listed."""
BLOCK = 2**20
"""Characters of an array that are read at a time."""
_WHITE = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()


class JsonValues:
    """The values of a file, all of one kind."""

    def __init__(self, text: Text) -> None:
        self.text, self.path = text, text.path
        self.array = _is_array(text)
        _, value = next(iter(self.values(None)), (0, None))
        self.kind = type(value)
        if self.kind not in KINDS:
            # The problem is found again, and named, as those of other lines are.
            self.kind = dict if value is None else self.kind
        each = KINDS.get(self.kind, "another value")
        self.how = f"a JSON array, each element {each}" if self.array else f"JSON lines, each {each}"

    def values(self, problems: Problems | None) -> Iterator[tuple[int, Any]]:
        """(line number, value) of all that are of one kind; others are reported. Without `problems` nothing is, and
        None stands for what cannot be read."""
        first: Any = None
        for number, value in self._parsed():
            wrong = ""
            if isinstance(value, ValueError):
                wrong, kind = str(value), "not JSON"
            elif type(value) not in KINDS:
                wrong, kind = "must be a JSON object, list or string", ""
            elif value == {}:
                wrong, kind = "an object without a key", ""
            elif first is not None and type(value) is not type(first):
                one, other = KINDS[type(first)], KINDS[type(value)]
                where = "element" if self.array else "line"
                wrong, kind = f"{other}, but the first {where} is {one}: all must be alike", ""
            if not wrong:
                first = value if first is None else first
                yield number, value
            elif problems is None:
                yield number, None
            else:
                problems.add(number, wrong, kind or None)

    def _parsed(self) -> Iterator[tuple[int, Any]]:
        if self.array:
            yield from _elements(self.text)
            return
        for number, line in self.text.lines():
            try:
                yield number, loads(line, parse_float=fraction)
            except ValueError as error:
                yield number, error


def _is_array(text: Text) -> bool:
    """Whether a file is one array whose elements are the sequences or records, not a list on each line."""
    lines = [line for _, line in islice(text.lines(), 2)]
    first = lines[0].lstrip("\ufeff \t")
    if not first.startswith("["):
        return False
    if len(lines) == 1:
        return re.match(r"\[\s*[\[{]", first) is not None
    try:
        loads(first)
    except ValueError:
        return re.match(r'\[\s*([\[{"]|-?[0-9]|$)', first) is not None
    return False


def _elements(text: Text) -> Iterator[tuple[int, Any]]:
    """(line number, value) of the elements of an array, without the whole file in memory. The last value is the
    `ValueError` of what is not JSON, after which nothing can be read."""
    with text.open() as file:
        buffer, at, line, size, ended = "", 0, 1, BLOCK, False

        def more() -> bool:
            nonlocal buffer, at, line, size, ended
            line += buffer.count("\n", 0, at)
            piece = file.read(size)
            buffer, at, ended = buffer[at:] + piece, 0, not piece
            return not ended

        def next_mark() -> str:
            nonlocal at
            while True:
                match = _WHITE.match(buffer, at)
                assert match is not None
                at = match.end()
                if at < len(buffer):
                    return buffer[at]
                if not more():
                    return ""

        def here() -> int:
            return line + buffer.count("\n", 0, at)

        assert next_mark() == "["
        at += 1
        if next_mark() == "]":
            return
        while True:
            next_mark()
            size = BLOCK
            while True:
                try:
                    value, end = _DECODER.raw_decode(buffer, at)
                except (ValueError, RecursionError) as error:
                    # What is cut off at the end of the buffer may go on.
                    place = getattr(error, "pos", len(buffer))
                    cut = place >= len(buffer) - 64 or "Unterminated" in str(error)
                    if not (cut and not ended):
                        number = line + buffer.count("\n", 0, place)
                        what = getattr(error, "msg", "nested too deeply")
                        yield number, ValueError(f"not JSON: {what[0].lower()}{what[1:]}")
                        return
                else:
                    if end < len(buffer) or ended:
                        break
                size *= 2
                more()
            try:
                value = loads(buffer[at:end], parse_float=fraction)
            except ValueError as error:
                value = error
            yield here(), value
            at = end
            mark = next_mark()
            if mark == ",":
                at += 1
            elif mark == "]":
                at += 1
                if next_mark():
                    yield here(), ValueError("not JSON: there is more after the array")
                return
            else:
                yield here(), ValueError("not JSON: the array does not end" if not mark else "not JSON: no comma")
                return


class JsonObjects(Source):
    """Objects, whose keys are columns; a.b is the key b of the object a, or of each object of the list a."""

    def __init__(self, values: JsonValues) -> None:
        self.path, self.values = values.path, values
        self.how = values.how
        firsts = [value for _, value in islice(values.values(None), FIRST) if isinstance(value, dict)]
        self.names = list(dict.fromkeys(name for value in firsts for name in value))
        self.first = list(firsts[0]) if firsts else []
        """Keys of the first object."""
        self.nested = list(dict.fromkeys(name for value in firsts for name in _paths(value)))
        """Paths of values within objects."""
        if not self.names:
            problems = Problems(self.path, by_kind=True)
            for _ in values.values(problems):
                pass
            problems.raise_if_any()

    @override
    def has(self, name: str) -> bool:
        return name in self.names or name in self.nested

    @override
    def check(self, name: str) -> None:
        if not self.has(name):
            from statewise.tasks.own_files.sources import unknown_column

            raise ValueError(f"{self.path}: {unknown_column(name, [*self.names, *self.nested])}")

    @override
    def chunks(self, wanted: Sequence[str], problems: Problems | None) -> Iterator[Chunk]:
        values, record = self.values.values(problems), 0
        paths = [name.split(".") for name in wanted]
        while some := _some(values):
            lines = np.fromiter((number for number, _ in some), np.int64, len(some))
            objects = [value if isinstance(value, dict) else {} for _, value in some]
            cells = [
                [value[name] if name in value else _within(value, path) for value in objects]
                for name, path in zip(wanted, paths)
            ]
            yield Chunk(np.arange(record, record + len(some)), lines, list(cells))
            record += len(some)


def _some(values: Iterator[tuple[int, Any]]) -> list[tuple[int, Any]]:
    """The next records."""
    some, letters = [], 0
    for number, value in values:
        some.append((number, value))
        if isinstance(value, dict):
            letters += sum(len(cell) for cell in value.values() if isinstance(cell, (str, list)))
        if len(some) == CHUNK or letters > LETTERS:
            break
    return some


def _within(value: dict[str, Any], path: Sequence[str]) -> Any:
    """What is at a path of keys; of lists, what is there in each object."""
    found: Any = value
    for key in path:
        if isinstance(found, list):
            inner = [one[key] for one in found if isinstance(one, dict) and key in one]
            if len(inner) < len(found) or not found:
                return Absent(list(value))
            found = inner
        elif isinstance(found, dict) and key in found:
            found = found[key]
        else:
            return Absent(list(value))
    return found


def _paths(value: dict[str, Any], before: str = "", depth: int = 4) -> Iterator[str]:
    for name, inner in value.items():
        some = inner[0] if isinstance(inner, list) and inner else inner
        if isinstance(some, dict) and depth:
            for key in some:
                yield f"{before}{name}.{key}"
            yield from _paths(some, f"{before}{name}.", depth - 1)
