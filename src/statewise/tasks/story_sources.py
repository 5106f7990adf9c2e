"""Where stories come from: a text file, or a data set that the `datasets` package can load."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from statewise.tasks.bpe import END, SEPARATOR
from statewise.tasks.lines import Problems, read_lines

Story = tuple[int, str]
"""The line (or row) at which a story begins, and its text, which may be empty."""


class Source(ABC):
    """Stories, all of one file or of one split."""

    @property
    @abstractmethod
    def name(self) -> str:
        """By this a run remembers it."""

    @abstractmethod
    def read(self) -> list[Story]:
        """All stories in order. Raises `ValueError`, with the place, for what cannot be read."""

    @abstractmethod
    def place(self, number: int) -> str:
        """How a person finds story `number` again."""


@dataclass(frozen=True)
class StoryFile(Source):
    """A text file, plain or .gz, in which a line with the end-of-text mark alone closes each story."""

    path: Path

    @property
    def name(self) -> str:
        """The file's full path."""
        return str(self.path.resolve())

    def place(self, number: int) -> str:
        """`FILE:LINE`."""
        return f"{self.path}:{number}"

    def read(self) -> list[Story]:
        """All stories; blank lines inside them are kept, those around them and white space at their ends are not."""
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
            # `read_lines` passes over blank lines: the numbers tell how many there were.
            text += "\n" * (number - last) + line if first else line
            first, last = first or number, number
        if first:
            problems.add(first, f"the last story is not closed by a line {END}")
        problems.raise_if_any()
        return stories


@dataclass(frozen=True)
class DataSet(Source):
    """A split of what `datasets.load_dataset` finds under a name: on its hub, or in a folder of files."""

    dataset: str
    split: str
    field: str

    @property
    def name(self) -> str:
        """Data set, split and field."""
        return f"data set {self.dataset}, split {self.split}, field {self.field}"

    def place(self, number: int) -> str:
        """Data set, split and row."""
        return f"data set {self.dataset}, split {self.split}, row {number}"

    def read(self) -> list[Story]:
        """A story a row, rows counted from 1."""
        try:
            import datasets
        except ImportError:
            raise ValueError("task.dataset needs the extra `data`: pip install 'statewise[data]'") from None
        try:
            rows = datasets.load_dataset(self.dataset, split=self.split)
        except Exception as error:  # of many kinds, by where the data lie; each says what it missed
            reason = " ".join(str(error).split()) or type(error).__name__
            raise ValueError(f"data set {self.dataset}, split {self.split}, cannot be loaded: {reason}") from None
        if self.field not in rows.column_names:
            raise ValueError(
                f"data set {self.dataset} has no field {self.field!r}: set task.dataset_field to one of "
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
    """Checksum by which a run knows its stories again."""
    digest = hashlib.sha256()
    for _, text in stories:
        digest.update(text.encode() + b"\0")
    return digest.hexdigest()


def _mark_within(text: str) -> str | None:
    """What is wrong with a text that holds a mark of ours."""
    if END in text:
        return f"the mark {END} inside a story: it closes one, on a line of its own"
    if SEPARATOR in text:
        return f"the mark {SEPARATOR} inside a story: it is kept for joining suffix and prefix"
    return None
