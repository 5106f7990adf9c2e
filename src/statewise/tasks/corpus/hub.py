"""Documents of a dataset that the `datasets` package loads, by name over the network or from a local folder."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from statewise.runtime.messages import to_install
from statewise.tasks.corpus.documents import Piece, Source, pieces_of_field

KNOWN = {"fineweb-edu": ("HuggingFaceFW/fineweb-edu", "sample-10BT"), "tinystories": ("roneneldan/TinyStories", None)}
"""Name and configuration of datasets with a short name."""


class DataSet(Source):
    """A split of a dataset, streamed, one document per row."""

    streamed = True

    def __init__(self, dataset: str, split: str, field: str) -> None:
        self.dataset, self.config = KNOWN.get(dataset, (dataset, None))
        self.split, self.field = split, field

    @property
    def name(self) -> str:
        """Dataset, split and field."""
        config = f", configuration {self.config}" if self.config else ""
        return f"dataset {self.dataset}{config}, split {self.split}, field {self.field}"

    def pieces(self) -> Iterator[Piece]:
        """See `Source.pieces`; rows are counted from 1."""
        try:
            import datasets
        except ImportError:
            raise ValueError(f"--hub needs the extra `data`: {to_install('data')}") from None
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
