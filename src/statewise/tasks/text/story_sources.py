"""Sources of stories: a text file, or a dataset that the `datasets` package loads."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from statewise.runtime.messages import to_install
from statewise.tasks.own_files.lines import Problems, read_lines
from statewise.tasks.text.bpe import END, SEPARATOR

Story = tuple[int, str]
"""The line (or row) where a story begins, and its text, which may be empty."""


class Source(ABC):
    """The stories of a file or of a split of a dataset."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Identifies the source in a run."""

    @abstractmethod
    def read(self) -> list[Story]:
        """All stories in order. Raises `ValueError`, with the line or row, for what cannot be read."""

    @abstractmethod
    def place(self, number: int) -> str:
        """The place of line or row `number`, for messages."""


@dataclass(frozen=True)
class StoryFile(Source):
    """A text file, plain or .gz, in which a line `<|endoftext|>` ends each story."""

    path: Path

    @property
    def name(self) -> str:
        """The file's full path."""
        return str(self.path.resolve())

    def place(self, number: int) -> str:
        """`FILE:LINE`."""
        return f"{self.path}:{number}"

    def read(self) -> list[Story]:
        """All stories, stripped of white space; blank lines inside them are kept."""
        stories: list[Story] = []
        problems = Problems(self.path)
        text, first, last = "", 0, 0
        for number, line in read_lines(self.path):
            if line.strip() == END:
                stories.append((first or number, text.strip()))
                text, first, last = "", 0, number
                continue
            wrong = _mark_within(line)
            if wrong:
                problems.add(number, wrong)
            # `read_lines` skips blank lines: restore them from the line numbers.
            text += "\n" * (number - last) + line if first else line
            first, last = first or number, number
        if first:
            problems.add(first, f"the last story does not end with a line {END}")
        problems.raise_if_any()
        return stories


@dataclass(frozen=True)
class DataSet(Source):
    """A split of a dataset that `datasets.load_dataset` finds by name: on its hub or in a local folder."""

    dataset: str
    split: str
    field: str

    @property
    def name(self) -> str:
        """Dataset, split and field."""
        return f"dataset {self.dataset}, split {self.split}, field {self.field}"

    def place(self, number: int) -> str:
        """Dataset, split and row."""
        return f"dataset {self.dataset}, split {self.split}, row {number}"

    def read(self) -> list[Story]:
        """One story per row, rows counted from 1."""
        try:
            import datasets
        except ImportError:
            raise ValueError(f"task.dataset needs the extra `data`: {to_install('data')}") from None
        try:
            rows = datasets.load_dataset(self.dataset, split=self.split)
        except Exception as error:  # the type depends on where the data is
            reason = " ".join(str(error).split()) or type(error).__name__
            raise ValueError(f"dataset {self.dataset}, split {self.split}, cannot be loaded: {reason}") from None
        if self.field not in rows.column_names:
            raise ValueError(
                f"dataset {self.dataset} has no field {self.field!r}: set task.dataset_field to one of "
                f"{', '.join(rows.column_names)}"
            )
        stories: list[Story] = []
        for number, text in enumerate(rows[self.field], 1):
            if not isinstance(text, str):
                raise ValueError(f"{self.place(number)}: {self.field} is not text but {type(text).__name__}")
            wrong = _mark_within(text)
            if wrong:
                raise ValueError(f"{self.place(number)}: {wrong}")
            stories.append((number, text.strip()))
        return stories


def fingerprint(stories: Iterable[Story]) -> str:
    """A checksum that identifies the stories of a run."""
    digest = hashlib.sha256()
    for _, text in stories:
        digest.update(text.encode() + b"\0")
    return digest.hexdigest()


def _mark_within(text: str) -> str | None:
    """The problem of a text that contains a special token; empty if it does not."""
    if END in text:
        return f"the token {END} inside a story: it ends one, on a line of its own"
    if SEPARATOR in text:
        return f"the token {SEPARATOR} inside a story: it is reserved for joining suffix and prefix"
    return None
