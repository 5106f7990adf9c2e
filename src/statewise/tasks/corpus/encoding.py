"""Documents to token ids, many at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from statewise.tasks.bpe import BPE, END
from statewise.tasks.corpus.survey import Sided

BATCH = 2**22
"""Characters that are encoded at a time: enough to keep all threads busy."""


class Encoded(NamedTuple):
    """The tokens of one piece of a document; those of the last end with the end-of-text token."""

    held_out: bool
    tokens: np.ndarray
    last: bool
    words: int
    """White-space separated words."""
    size: int
    """Bytes of its text."""


def token_type(bpe: BPE) -> np.dtype:
    """The smallest type that holds every token id."""
    return np.dtype("<u2" if len(bpe.symbols) <= 2**16 else "<u4")


def encode(pieces: Iterable[Sided], bpe: BPE) -> Iterator[Encoded]:
    """Token ids of every piece, in order. Raises `ValueError` if a text would not be given back exactly."""
    spellings, kind = bpe.spellings(), token_type(bpe)
    for batch in _batches(pieces):
        for (held_out, piece), ids in zip(batch, bpe.encode_documents([sided.piece.text for sided in batch])):
            content = piece.text.encode()
            if b"".join([spellings[token] for token in ids]) != content:
                raise ValueError(
                    f"{piece.place}: this tokenizer does not give the document back as it was: take a byte-level one "
                    "that neither changes letters nor puts a space in front"
                )
            if bpe.end in ids:
                raise ValueError(f"{piece.place}: this tokenizer takes {END} inside a text for the mark")
            tokens = np.array([*ids, bpe.end] if piece.last else ids, kind)
            yield Encoded(held_out, tokens, piece.last, len(piece.text.split()), len(content))


def _batches(pieces: Iterable[Sided]) -> Iterator[list[Sided]]:
    batch: list[Sided] = []
    size = 0
    for sided in pieces:
        batch.append(sided)
        size += len(sided.piece.text)
        if size >= BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
