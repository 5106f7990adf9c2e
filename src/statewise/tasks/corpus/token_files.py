"""Documents of files that hold token ids: parquet with a list of ids in each row, or flat arrays of ids."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from typing_extensions import override

from statewise.tasks.corpus.documents import parquet_column

PIECE = 2**20
"""Tokens of a flat file read at a time."""
SUFFIXES = (".parquet", ".npy", ".bin")


class TokenFile(ABC):
    """A file of token ids."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def name(self) -> str:
        """Identifies the file in a corpus."""
        return str(self.path.resolve())

    @abstractmethod
    def pieces(self) -> Iterator[tuple[str, np.ndarray, bool]]:
        """(place for messages, ids, whether a document ends after them) in order; documents may also end inside. Raises
        `ValueError`, with the place, for what cannot be read."""

    def documents(self, vocabulary: int, end: int) -> Iterator[np.ndarray]:
        """The ids of each document, in order, closed by `end`, which also ends one inside a piece. Empty documents are
        skipped. Raises `ValueError`, with the place, for ids that are not below `vocabulary`."""
        begun: list[np.ndarray] = []
        for place, ids, last in self.pieces():
            if len(ids) and not (ids.min() >= 0 and ids.max() < vocabulary):
                number = int(np.flatnonzero((ids < 0) | (ids >= vocabulary))[0])
                raise ValueError(
                    f"{place}, token {number + 1}: {ids[number]}, but the tokens of this tokenizer are 0 to "
                    f"{vocabulary - 1}: give the one that the file was made with"
                )
            ids = ids.astype(np.int64, copy=False)  # `end` may not fit the file's type
            *whole, rest = np.split(ids, np.flatnonzero(ids == end) + 1)
            for part in whole:
                document = np.concatenate([*begun, part])
                begun = []
                if len(document) > 1:
                    yield document
            begun += [rest] if len(rest) else []
            if last and begun:
                yield np.concatenate([*begun, np.array([end])])
                begun = []


class ParquetTokens(TokenFile):
    """A row's list of ids is a document."""

    def __init__(self, path: Path, field: str) -> None:
        super().__init__(path)
        self.field = field

    @override
    def pieces(self) -> Iterator[tuple[str, np.ndarray, bool]]:
        """Places are row numbers, counted from 1."""
        number = 0
        for rows in parquet_column(self.path, self.field, "`field`"):
            ids, lengths = self._lists(rows, number)
            for part in np.split(ids, np.cumsum(lengths)[:-1]) if len(lengths) else ():
                number += 1
                yield f"{self.path}, row {number}", part, True

    def _lists(self, rows: Any, before: int) -> tuple[np.ndarray, np.ndarray]:
        """The ids of the lists of an array, concatenated, and the lengths of the lists."""
        from pyarrow import types

        kind, what = rows.type, f"{self.path}: column {self.field!r}"
        is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
        if not is_list or not types.is_integer(kind.value_type):
            raise ValueError(f"{what} holds {kind}, not lists of whole numbers: set `field`")
        for row in np.flatnonzero(rows.is_null().to_numpy(zero_copy_only=False)).tolist():
            raise ValueError(f"{self.path}, row {before + row + 1}: {self.field} is null, not a list of token ids")
        ids = rows.flatten()
        if ids.null_count:
            row = next(row for row, value in enumerate(rows) if None in value.as_py())
            raise ValueError(f"{self.path}, row {before + row + 1}: {self.field} has a null among its token ids")
        return ids.to_numpy(zero_copy_only=False), np.array(rows.value_lengths())


class FlatTokens(TokenFile):
    """One array of ids, in which the end-of-text token ends each document: `.npy`, or raw numbers of type `kind`."""

    def __init__(self, path: Path, kind: str) -> None:
        super().__init__(path)
        self.kind = kind

    @override
    def pieces(self) -> Iterator[tuple[str, np.ndarray, bool]]:
        """Places are those of the first id of each piece."""
        with open(self.path, "rb") as file:
            kind, count = self._header(file)
            size = self.path.stat().st_size - file.tell()
            if size != count * kind.itemsize:
                raise ValueError(
                    f"{self.path}: truncated or damaged: {size:,} bytes of ids, not {count * kind.itemsize:,}"
                )
            if not count:
                raise ValueError(f"{self.path}: the file has no token")
            for start in range(0, count, PIECE):
                ids = np.frombuffer(file.read(min(PIECE, count - start) * kind.itemsize), kind)
                yield f"{self.path}, after the first {start:,}", ids, start + PIECE >= count

    def _header(self, file: BinaryIO) -> tuple[np.dtype, int]:
        """The type and number of the ids; the file is left where they begin."""
        if self.path.suffix != ".npy":
            kind = np.dtype(self.kind).newbyteorder("<")
            return kind, -(-self.path.stat().st_size // kind.itemsize)
        try:
            version = np.lib.format.read_magic(file)
            read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
            shape, _, kind = read(file)
        except Exception as error:  # the header is parsed as Python, which raises almost anything
            problem = " ".join(str(error).split())[:200] or type(error).__name__
            raise ValueError(f"{self.path}: not an .npy file, or damaged: {problem}") from None
        if kind.kind not in "iu" or len(shape) != 1:
            raise ValueError(f"{self.path}: an array of {kind} with shape {shape}, not of whole numbers with one axis")
        return kind, shape[0]


def find(paths: Sequence[Path], field: str = "tokens", kind: str = "uint16") -> list[TokenFile]:
    """Each file, and each in a folder, recursively: those of `SUFFIXES`, sorted by path. `field`: column of parquet
    files; `kind`: type of the numbers of `.bin` files.

    Raises `ValueError` for paths that do not exist, folders without such a file, and other files.
    """
    made: list[TokenFile] = []
    for path in paths:
        if path.is_dir():
            files = sorted(inner for inner in path.rglob("*") if inner.suffix in SUFFIXES and inner.is_file())
            if not files:
                raise ValueError(f"{path}: this folder has no file of token ids ({', '.join(SUFFIXES)})")
        elif not path.exists():
            raise ValueError(f"{path}: no such file or folder")
        elif path.suffix not in SUFFIXES:
            raise ValueError(
                f"{path}: files of token ids end in {', '.join(SUFFIXES)}; for text use `statewise data text`"
            )
        else:
            files = [path]
        made += [ParquetTokens(file, field) if file.suffix == ".parquet" else FlatTokens(file, kind) for file in files]
    return made
