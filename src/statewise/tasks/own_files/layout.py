"""What a user says about a file of sequences: its format, its columns, and what to do with rows that are wrong."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from dataclasses import dataclass
from sys import intern
from typing import Any, Literal

from statewise.tasks.own_files.times import EPOCHS, check_format

MISSING = frozenset({"NA", "N/A", "#N/A", "<NA>", "NaN", "nan", "NaT", "NULL", "null", "None"})
"""Values that other software writes for a missing one."""
DROP = "drop"


@dataclass(frozen=True)
class SequenceFile:
    """A file of sequences and its layout."""

    path: str = ""
    """The file: text, JSON, CSV, XES, FASTA, PGN, Parquet or Feather, plain, .gz or .zip; or a folder with one sequence
    per file."""
    format: Literal["auto", "text", "json", "csv", "xes", "fasta", "pgn", "parquet", "feather"] = "auto"
    """auto: by the file's first bytes and its name (.csv, .tsv, .jsonl); else JSON if the first line is JSON, CSV if
    `column` or `group` is set, text otherwise."""
    separator: str | None = None
    """Separator of the symbols of a line, a string or a cell; null: white space; "": every character is a symbol."""
    column: str | None = None
    """Column (of CSV or JSON objects) with the symbols; null: `target` beside `prompt`, or the only column. Event logs:
    several columns, such as activity,lifecycle, make one symbol. JSON: a.b is the key b of the object a."""
    prompt_column: str | None = None
    """Column with the prompt, which is not scored; null: `prompt` beside `target`, or none. Event logs: columns whose
    values in the first event of a case are the prompt."""
    group: str | None = None
    """Event logs, which have one event per row: the column that names the case. Each case is one sequence. XES: null is
    the trace."""
    order: str | None = None
    """Event logs: the column that orders the events of a case, numbers or times; null: file order."""
    delimiter: str | None = None
    """Separator of the columns of CSV; null: whichever of , ; | and tab the header has most of."""
    encoding: str | None = None
    """Encoding of text, such as windows-1252; null: UTF-8 or UTF-16, as the file shows, or else Windows-1252."""
    time_format: str | None = None
    """Event logs: how the times of `order` are written, such as %d/%m/%Y %H:%M:%S, or s, ms, us or ns for numbers since
    1970; null: as the file shows."""
    missing: str | None = None
    """Event logs: what becomes of missing cells, which are empty or say NA, NaN, null or the like: drop leaves their
    rows out, anything else is the symbol in their place; null: empty cells are errors, NA and the like are symbols."""
    on_error: Literal["stop", "drop"] = "stop"
    """What happens to rows with errors: stop, or drop them and say how many."""
    unfinished: Literal["ignore", "mark"] = "ignore"
    """Event logs with times: mark leaves out the end symbol of cases that the end of the log seems to have cut."""

    def __post_init__(self) -> None:
        xes = self.format == "xes" or self.path.lower().removesuffix(".gz").endswith(".xes")
        if self.order is not None and self.group is None and not xes:
            raise ValueError("task.order orders the events of a case: set task.group to the column that names the case")
        columns = (self.column, self.prompt_column, self.group, self.order)
        if self.format == "text" and any(column is not None for column in columns):
            raise ValueError("lines of text have no columns: set task.format to csv or json")
        if self.delimiter is not None and (len(unescaped(self.delimiter)) != 1 or self.delimiter in '"\r\n'):
            raise ValueError(f"task.delimiter must be one character, not {self.delimiter!r}")
        if self.encoding is not None:
            try:
                text = codecs.lookup(self.encoding)._is_text_encoding
            except (LookupError, ValueError):
                text = False
            if not text:
                raise ValueError(f"task.encoding must be an encoding such as utf-8, not {self.encoding!r}")
        if self.time_format is not None:
            if self.order is None and not xes:
                raise ValueError("task.time_format is that of the column task.order, which is not set")
            if self.time_format not in EPOCHS:
                check_format(self.time_format)
        if self.missing == "":
            raise ValueError("task.missing must be drop, or a symbol")

    def symbols_of(self, text: str) -> list[str]:
        """The symbols of a line, interned: a file has few, and a string for each occurrence would be most of what it
        takes in memory. Raises `ValueError` for an empty symbol."""
        if self.separator is None:
            return list(map(intern, text.split()))
        if not self.separator:
            return list(text)
        separator = unescaped(self.separator)
        symbols = [intern(symbol.strip()) for symbol in text.split(separator)] if text.strip() else []
        while symbols and not symbols[-1]:  # exports pad short rows with empty cells
            symbols.pop()
        if not all(symbols):
            raise ValueError(f"symbol {symbols.index('') + 1} is empty: there is nothing between two {separator!r}")
        return symbols

    def join(self, symbols: Iterable[str]) -> str:
        """A line of symbols, the inverse of `symbols_of` if none of them contains the separator."""
        return (" " if self.separator is None else unescaped(self.separator)).join(symbols)

    @property
    def tab_ends_prompt(self) -> bool:
        """Whether a tab in a line of text separates prompt from answer."""
        return self.separator is None or "\t" not in unescaped(self.separator)


def unescaped(separator: str) -> str:
    """A separator as it is written in lines."""
    return separator.replace("\\t", "\t")  # a tab is hard to type in a shell


def symbols_in(value: Any, what: str, layout: SequenceFile) -> tuple[str, ...]:
    """Symbols of a cell or a JSON value. Raises `ValueError` for other values, which the message calls `what`."""
    if isinstance(value, str):
        return tuple(layout.symbols_of(value))
    if isinstance(value, list) and all(is_symbol(symbol) for symbol in value):
        return tuple(intern(str(symbol)) for symbol in value)
    if is_symbol(value):
        return (str(value),)
    hint = ": put each sequence on a line of its own" if isinstance(value, list) and list in map(type, value) else ""
    raise ValueError(f"{what} must be a string, or a list of strings or whole numbers{hint}")


def is_symbol(value: Any) -> bool:
    """Whether a JSON value or a cell is a symbol by itself."""
    return isinstance(value, (str, int)) and not isinstance(value, bool)
