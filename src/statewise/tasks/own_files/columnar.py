"""Parquet and Feather files, read by pyarrow."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import override

from statewise.runtime.messages import to_install
from statewise.tasks.own_files.lines import Problems
from statewise.tasks.own_files.sources import CHUNK, Chunk, Source


class Columnar(Source):
    """A Parquet or Feather file. Rows are counted as lines, from 1."""

    def __init__(self, path: Path, kind: str) -> None:
        self.path, self.kind = path, kind
        self.how = kind.capitalize()
        try:
            self.arrow: Any = importlib.import_module("pyarrow")
        except ImportError:
            raise ValueError(f"{path}: {self.how} files need pyarrow: {to_install('data')}") from None
        self.names = list(self._schema().names)
        if not self.names:
            raise ValueError(f"{path}: the file has no columns")
        if len(set(self.names)) < len(self.names):
            twice = next(name for name in self.names if self.names.count(name) > 1)
            raise ValueError(f"{path}: there are {self.names.count(twice)} columns {twice!r}")

    def _schema(self) -> Any:
        with self._failing():
            if self.kind == "parquet":
                return importlib.import_module("pyarrow.parquet").ParquetFile(self.path).schema_arrow
            return importlib.import_module("pyarrow.feather").read_table(self.path, memory_map=True).schema

    def _failing(self) -> Any:
        return _Failing(self.path, self.how, self.arrow)

    @override
    def chunks(self, wanted: Sequence[str], problems: Problems | None) -> Iterator[Chunk]:
        record = 0
        with self._failing():
            if self.kind == "parquet":
                file = importlib.import_module("pyarrow.parquet").ParquetFile(self.path)
                batches = file.iter_batches(CHUNK, columns=list(wanted))
            else:
                feather = importlib.import_module("pyarrow.feather")
                table = feather.read_table(self.path, columns=list(wanted), memory_map=True)
                batches = table.to_batches(CHUNK)
            for batch in batches:
                cells = [self._cells(batch.column(batch.schema.get_field_index(name))) for name in wanted]
                records = np.arange(record, record + batch.num_rows)
                record += batch.num_rows
                yield Chunk(records, records + 1, list(cells))

    def _cells(self, array: Any) -> list[Any]:
        """Cells as text would give them: whole floats are whole numbers, times ISO 8601, None is missing."""
        types = self.arrow.types
        if types.is_dictionary(array.type):
            array = array.dictionary_decode()
        if types.is_temporal(array.type) or types.is_boolean(array.type):
            array = array.cast(self.arrow.string())
        cells: list[Any] = array.to_pylist()
        if types.is_floating(array.type):
            return [
                None if cell is None or cell != cell else int(cell) if cell.is_integer() else str(cell)
                for cell in cells
            ]
        if types.is_string(array.type) or types.is_large_string(array.type):
            return [None if cell is None else cell.strip() for cell in cells]
        return [cell.decode("utf-8", "replace") if isinstance(cell, bytes) else cell for cell in cells]


class _Failing:
    """Turns the errors of pyarrow into `ValueError`."""

    def __init__(self, path: Path, how: str, arrow: Any) -> None:
        self.path, self.how, self.arrow = path, how, arrow

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, (self.arrow.ArrowException, OSError, EOFError)):
            raise ValueError(f"{self.path}: damaged {self.how} file: {str(error).splitlines()[0]}") from None
