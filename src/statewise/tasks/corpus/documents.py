"""Sources of documents, read as streams: text files and JSON lines, plain or .gz, parquet, folders of these, and
datasets that the `datasets` package loads, over the network or from a local folder."""

from __future__ import annotations

import itertools
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from typing_extensions import override

from statewise.runtime.json_files import loads
from statewise.runtime.messages import to_install
from statewise.runtime.text_files import CONVERT, not_utf8
from statewise.tasks.own_files.file_formats import check_text
from statewise.tasks.own_files.lines import beginning_of, opened, read_lines
from statewise.tasks.text.bpe import END

Separation = Literal["auto", "mark", "file", "blank-lines", "line"]
"""What separates the documents of a text file. `mark`: a line `<|endoftext|>`; `file`: nothing, a file is one
document; `auto`: `mark` if the file has such a line, else `file`."""
SEPARATIONS: tuple[str, ...] = get_args(Separation)
PIECE = 2**18
"""Characters above which a document is split into pieces, so that memory use does not grow with it."""
LONGEST = 2**22
"""Most characters of a piece; it ends there even where tokens could differ from those of the uncut text."""
_CUT = re.compile(r"(?<=\S)\n(?=\S)")
"""Where a text can be cut without changing its tokens: with the usual pre-tokenizers of byte-level BPE no token crosses
a line end without other white space beside it."""


class Piece(NamedTuple):
    """A document, or a part of a long one; parts are in order."""

    text: str
    first: bool
    last: bool
    place: str
    """Place of the document, for messages."""


class Source(ABC):
    """Documents, always read in the same order."""

    streamed: bool = False
    """Whether they come over a network, so that reading them twice is expensive."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Identifies the source in a corpus."""

    @abstractmethod
    def pieces(self) -> Iterator[Piece]:
        """All documents that are not empty. Raises `ValueError`, with the place, for what cannot be read."""


def find(paths: Sequence[Path], separation: Separation = "auto", field: str = "text") -> list[Source]:
    """A source for each file, and for each file in a folder, recursively: those that are not hidden, sorted by path.

    Raises `ValueError` for paths that do not exist and folders without a file.
    """
    sources: list[Source] = []
    for path in paths:
        if path.is_dir():
            every = sorted(inner for inner in path.rglob("*") if inner.is_file())
            files = [file for file in every if not any(part[0] == "." for part in file.relative_to(path).parts)]
            if not files:
                raise ValueError(f"{path}: this folder has no file")
        elif path.exists():
            files = [path]
        else:
            raise ValueError(f"{path}: no such file or folder")
        for file in files:
            if file.suffix == ".parquet":
                sources.append(Parquet(file, field))
            elif file.name.removesuffix(".gz").endswith((".jsonl", ".ndjson")):
                sources.append(JsonLines(file, field))
            else:
                sources.append(TextFile(file, separation))
    return sources


class TextFile(Source):
    """UTF-8 text; errors name the byte that is not. Blank lines around a document and its last line end are not part of
    it."""

    def __init__(self, path: Path, separation: Separation) -> None:
        self.path, self.separation = path, separation

    @property
    def name(self) -> str:
        """The file's full path."""
        return str(self.path.resolve())

    @override
    def pieces(self) -> Iterator[Piece]:
        separation = self.separation
        if separation == "auto":
            separation = "mark" if any(line.strip() == END for _, line in _lines(self.path)) else "file"
        document = _Document(self.path)
        for number, line in _lines(self.path):
            bare = line.strip()
            if (separation == "mark" and bare == END) or (separation == "blank-lines" and not bare):
                yield from document.close()
                continue
            yield from document.add(number, line)
            if separation == "line" and line.endswith("\n"):
                yield from document.close()
        yield from document.close()


class _Fields(Source):
    """A file of rows, whose `field` is a document, taken verbatim."""

    def __init__(self, path: Path, field: str) -> None:
        self.path, self.field = path, field

    @property
    def name(self) -> str:
        """The file's full path, and the field."""
        return f"{self.path.resolve()}, field {self.field}"


class JsonLines(_Fields):
    """One JSON object per line."""

    @override
    def pieces(self) -> Iterator[Piece]:
        for number, line in read_lines(self.path):
            place = f"{self.path}:{number}"
            try:
                row = loads(line)
            except ValueError as error:
                raise ValueError(f"{place}: {error}") from None
            if not isinstance(row, dict):
                raise ValueError(f"{place}: a line must be an object with the field {self.field!r}")
            yield from pieces_of_field(row, self.field, place)


class Parquet(_Fields):
    """Rows of a parquet file, counted from 1 in messages."""

    @override
    def pieces(self) -> Iterator[Piece]:
        number = 0
        for rows in parquet_column(self.path, self.field, "`field`"):
            for row in rows:
                number += 1
                place = f"{self.path}, row {number}"
                try:
                    text = row.as_py()
                except UnicodeDecodeError as error:
                    raise ValueError(not_utf8(f"{place}: {self.field}", error.start, error.reason)) from None
                yield from pieces_of_field({self.field: text}, self.field, place)


def pieces_of_field(row: dict[str, object], field: str, place: str) -> Iterator[Piece]:
    """The document in `field` of a row. Raises `ValueError` if there is none."""
    if field not in row:
        raise ValueError(f"{place}: no field {field!r}, only {', '.join(map(repr, row)) or 'none'}: set `field`")
    text = row[field]
    if not isinstance(text, str):
        raise ValueError(f"{place}: {field} is not text but {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{place}: a lone surrogate at character {error.start}, which is not text") from None
    if text.strip():
        yield from _cut(text, place)


def _cut(text: str, place: str) -> Iterator[Piece]:
    start = 0
    while start < len(text):
        end = len(text)
        if end - start > PIECE:
            cut = _CUT.search(text, start + PIECE, start + LONGEST)
            end = cut.end() if cut else min(end, start + LONGEST)
        yield Piece(text[start:end], start == 0, end == len(text), place)
        start = end


class _Document:
    """Collects the lines of one document after another."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._begin()

    def _begin(self) -> None:
        self.lines: list[str] = []
        self.blank: list[str] = []  # part of the document only if a further line follows
        self.size, self.number, self.handed = 0, 0, False

    def add(self, number: int, line: str) -> Iterator[Piece]:
        if not line.strip():
            if self.lines:
                self.blank.append(line)
            return
        if self.size >= LONGEST or (self.size >= PIECE and not self.blank and self._may_cut(line)):
            yield self._piece(last=False)
            self.lines, self.size, self.handed = [], 0, True
        self.number = self.number or number
        for one in (*self.blank, line):
            self.lines.append(one)
            self.size += len(one)
        self.blank = []

    def _may_cut(self, line: str) -> bool:
        return _CUT.search(self.lines[-1][-2:] + line[0]) is not None

    def close(self) -> Iterator[Piece]:
        if self.lines:
            self.lines[-1] = self.lines[-1].rstrip("\r\n")
            yield self._piece(last=True)
        self._begin()

    def _piece(self, last: bool) -> Piece:
        return Piece("".join(self.lines), not self.handed, last, f"{self.path}:{self.number}")


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """(line number, line with its line end); a very long line comes in parts. Raises `ValueError` with the line, or
    the byte's offset (in the decompressed text), if the file is not text."""
    offset, number, rest = 0, 1, b""
    with opened(path) as file:
        check_text(beginning_of(file), path)
        while raw := file.readline(LONGEST):
            data = rest + raw
            rest = b""
            try:
                line = data.decode()
            except UnicodeDecodeError as error:
                if error.reason != "unexpected end of data" or len(raw) < LONGEST:
                    raise ValueError(not_utf8(str(path), offset + error.start, error.reason) + CONVERT) from None
                line, rest = data[: error.start].decode(), data[error.start :]
            if "\0" in line:
                raise ValueError(f"{path}: byte {offset + data.index(0)}: a zero byte: this is not a text file")
            if len(raw) == LONGEST and not raw.endswith(b"\n") and line.isspace():  # else read as a blank line
                raise ValueError(f"{path}:{number}: {LONGEST:,} bytes of white space: this is not a text file")
            yield number, line.removeprefix("\ufeff") if offset == 0 else line
            offset += len(data) - len(rest)
            number += raw.endswith(b"\n")
    if rest:
        raise ValueError(not_utf8(str(path), offset, "unexpected end of data") + CONVERT)


ROWS_AT_ONCE = 1024
"""Rows of a parquet file that are read at a time."""


def parquet_column(path: Path, name: str, flag: str) -> Iterator[Any]:
    """A column of a parquet file as pyarrow arrays of at most `ROWS_AT_ONCE` rows; `flag` is the option that names the
    column. Raises `ValueError` if the file is damaged, or has no such column."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ValueError(f"{path}: parquet files need the extra `data`: {to_install('data')}") from None
    if not path.is_file():
        raise ValueError(f"{path}: no such file")
    if not path.stat().st_size:
        raise ValueError(f"{path}: the file is empty")
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            columns = file.schema_arrow.names
            if name not in columns:
                there = ", ".join(map(repr, columns)) or "none"
                raise ValueError(f"{path}: no column {name!r}, only {there}: set {flag}")
            for batch in file.iter_batches(ROWS_AT_ONCE, columns=[name]):
                yield batch.column(0)
    except pyarrow.ArrowException as error:
        raise ValueError(f"{path}: cannot be read as parquet, damaged or truncated: {_line(error)}") from None
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {_line(error)}") from None


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


KNOWN_DATASETS = {
    "fineweb-edu": ("HuggingFaceFW/fineweb-edu", "sample-10BT"),
    "tinystories": ("roneneldan/TinyStories", None),
}
"""Name and configuration of datasets with a short name."""


class DataSet(Source):
    """A split of a dataset, streamed, one document per row; messages count rows from 1."""

    streamed = True

    def __init__(self, dataset: str, split: str, field: str) -> None:
        self.dataset, self.config = KNOWN_DATASETS.get(dataset, (dataset, None))
        self.split, self.field = split, field

    @property
    def name(self) -> str:
        """Dataset, split and field."""
        config = f", configuration {self.config}" if self.config else ""
        return f"dataset {self.dataset}{config}, split {self.split}, field {self.field}"

    @override
    def pieces(self) -> Iterator[Piece]:
        try:
            import datasets
        except ImportError:
            raise ValueError(f"`hub` needs the extra `data`: {to_install('data')}") from None
        what = f"dataset {self.dataset}, split {self.split}"
        try:
            rows = iter(datasets.load_dataset(self.dataset, self.config, split=self.split, streaming=True))
        except Exception as error:  # the type depends on where the data is
            raise ValueError(f"{what}, cannot be loaded: {_reason(error)}") from None
        for number in itertools.count(1):
            try:
                row = next(rows, None)
            except Exception as error:
                raise ValueError(f"{what}, row {number}: cannot be read: {_reason(error)}") from None
            if row is None:
                return
            yield from pieces_of_field(row, self.field, f"{what}, row {number}")


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
