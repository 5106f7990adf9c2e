"""Encoding documents as token ids, in batches, and counting their words.

Words are counted as lm-evaluation-harness counts them for its perplexity per word: they are what `re.split(r"\\s+",
text)` gives. Each stretch of white space lies between two words, so a text that begins or ends with white space has an
empty word there, and an empty text is one empty word.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from statewise.tasks.corpus.survey import SplitPiece
from statewise.tasks.text.bpe import BPE

BATCH = 2**22
"""Characters encoded at a time: enough to keep all threads busy."""


class Encoded(NamedTuple):
    """The tokens of a piece of a document; the last piece ends with the end-of-text token."""

    held_out: bool
    tokens: np.ndarray
    last: bool
    words: int
    """Number of words that the piece adds to its document."""
    size: int
    """Number of bytes of the text."""


def token_type(bpe: BPE) -> np.dtype:
    """The smaller of uint16 and uint32 that fits every token id."""
    return np.dtype("<u2" if len(bpe.symbols) <= 2**16 else "<u4")


def encode(pieces: Iterable[SplitPiece], bpe: BPE) -> Iterator[Encoded]:
    """Token ids of every piece, in order. Raises `ValueError` if the tokenizer changes a text."""
    spellings, kind = bpe.spellings(), token_type(bpe)
    before = ""  # the last character of the document's piece before
    for batch in _batches(pieces):
        for (held_out, piece), ids in zip(batch, bpe.encode_documents([sided.piece.text for sided in batch])):
            content = piece.text.encode()
            if b"".join([spellings[token] for token in ids]) != content:
                raise ValueError(
                    f"{piece.place}: this tokenizer does not reproduce the document exactly: choose a byte-level one "
                    "that neither normalises text nor adds a leading space"
                )
            if bpe.end in ids:
                raise ValueError(
                    f"{piece.place}: this tokenizer encodes {bpe.end_symbol} inside a text as the special token"
                )
            tokens = np.array([*ids, bpe.end] if piece.last else ids, kind)
            words = count_words(before + piece.text) - (count_words(before) if before else 0)
            before = "" if piece.last else piece.text[-1:]
            yield Encoded(held_out, tokens, piece.last, words, len(content))


def _batches(pieces: Iterable[SplitPiece]) -> Iterator[list[SplitPiece]]:
    batch: list[SplitPiece] = []
    size = 0
    for sided in pieces:
        batch.append(sided)
        size += len(sided.piece.text)
        if size >= BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


_SPACE = re.compile(r"\s+")


def count_words(text: str) -> int:
    """Number of words, at least 1."""
    # Several times faster than the split, and white space is the same to both.
    return max(1, len(text.split()) + text[:1].isspace() + text[-1:].isspace())


def word_starts(text: str) -> list[int]:
    """(count_words(text),) offsets of the characters at which words begin; an empty last one begins at the end."""
    return [0, *(space.end() for space in _SPACE.finditer(text))]
