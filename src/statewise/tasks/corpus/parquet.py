"""Columns of parquet files, read a few rows at a time by the package pyarrow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from statewise.runtime.messages import to_install

ROWS = 1024
"""Rows read at a time."""


def column(path: Path, name: str, flag: str) -> Iterator[Any]:
    """A column as pyarrow arrays of at most `ROWS` rows; `flag` is the option that names the column. Raises
    `ValueError` if the file is damaged, or has no such column."""
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
            for batch in file.iter_batches(ROWS, columns=[name]):
                yield batch.column(0)
    except pyarrow.ArrowException as error:
        raise ValueError(f"{path}: cannot be read as parquet, damaged or cut: {_line(error)}") from None
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {_line(error)}") from None


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
