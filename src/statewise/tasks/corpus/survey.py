"""Splits a corpus and samples the texts that train a tokenizer, in a first pass over the documents.

A hash of a document's text decides its split, so that equal documents are in the same one whatever their order.
"""

from __future__ import annotations

import hashlib
import heapq
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from statewise.tasks.corpus.documents import Piece, Source
from statewise.tasks.text.bpe import END

SAMPLE = 2**26
"""Most characters that train a tokenizer, sampled from the whole corpus by their hashes."""
STREAMED = 10_000
"""Most documents that the first pass reads from a network."""
RANKS = 2**64


@dataclass(frozen=True)
class Plan:
    """The way in which documents are split."""

    below: int
    """Documents whose rank (hash) is below this are held out."""
    cut: int | None
    """If the corpus is a single document: number of characters before its held-out part."""
    sample: list[str]
    """Texts that train a tokenizer."""
    characters: int | None
    """Number of characters of all documents; None if not all were read."""
    notes: list[str]


class SplitPiece(NamedTuple):
    """A piece and its split."""

    held_out: bool
    piece: Piece


class _Sampled(NamedTuple):
    key: int  # negated, so that a heap drops the largest
    order: int
    document: int
    start: int
    text: str


def survey(sources: Sequence[Source], share: float, *, sample: bool) -> Plan:
    """Reads the documents and plans the split: `share` of them are held out, at least one, or all if it is 1.

    Raises `ValueError` if there is no text, or none would be left to train on.
    """
    limit = STREAMED if any(source.streamed for source in sources) else None
    threshold = int(share * RANKS)
    documents = characters = highest = start = rank = marks = 0
    lowest, complete = RANKS, True
    heap: list[_Sampled] = []
    kept = 0
    for piece in (piece for source in sources for piece in source.pieces()):
        if piece.first:
            if limit is not None and (documents == limit or characters >= SAMPLE):
                complete = False
                break
            rank, start = _rank(piece.text), 0
            documents, lowest, highest = documents + 1, min(lowest, rank), max(highest, rank)
        if sample:
            key = _rank("sample" + piece.text)  # not the rank, or the sample would be the held-out documents
            heapq.heappush(heap, _Sampled(-key, -documents, rank, start, piece.text))
            kept += len(piece.text)
            while kept > SAMPLE and len(heap) > 1:
                kept -= len(heapq.heappop(heap).text)
        start += len(piece.text)
        characters += len(piece.text)
        marks += piece.text.count(END)
    if not documents:
        raise ValueError(f"{_names(sources)}: no text: every document is empty")
    cut, notes = None, []
    if share == 1:
        threshold = RANKS
    elif documents == 1 and complete:
        threshold, cut = 0, _find_cut(sources, int((1 - share) * characters), characters)
        notes = [f"there is only one document: its last {characters - cut:,} characters are held out"]
    elif lowest == highest:
        raise ValueError(f"{_names(sources)}: {_no_split(documents)}")
    else:
        threshold = _splitting(threshold, lowest, highest)
    if marks:
        notes.append(
            f"{END} occurs {marks:,} time{'s' * (marks > 1)} inside documents, as text: to end a document it must be "
            "a line of its own, with `documents` mark or auto"
        )
    texts = [
        one.text if cut is None else one.text[: max(0, cut - one.start)]
        for one in sorted(heap, reverse=True)
        if one.document >= threshold
    ]
    return Plan(threshold, cut, texts, characters if complete else None, notes)


def survey_tokens(documents: Iterable[np.ndarray], share: float) -> tuple[int, int]:
    """The rank below which `share` of the documents of token ids are held out, at least one, or all if it is 1; and the
    number of tokens. Raises `ValueError` if there is no document, or none would be left to train on."""
    threshold = int(share * RANKS)
    count = tokens = highest = 0
    lowest = RANKS
    for ids in documents:
        rank = rank_of_tokens(ids)
        count, tokens = count + 1, tokens + len(ids)
        lowest, highest = min(lowest, rank), max(highest, rank)
    if not count:
        raise ValueError("no tokens: every document is empty")
    if share == 1:
        return RANKS, tokens
    if lowest == highest:
        raise ValueError(_no_split(count))
    return _splitting(threshold, lowest, highest), tokens


def _splitting(threshold: int, lowest: int, highest: int) -> int:
    """The threshold, moved where a split would be empty, to leave the other as near to its share as possible."""
    return min(max(threshold, lowest + 1), highest)


def _no_split(documents: int) -> str:
    same = f"all {documents:,} documents are the same" if documents > 1 else "there is only one document"
    return f"{same}: none is left to train on"


def rank_of_tokens(ids: np.ndarray) -> int:
    """The hash that decides the split of a document of token ids."""
    return int.from_bytes(hashlib.blake2b(ids.astype("<u4").tobytes(), digest_size=8).digest(), "big")


def split(sources: Sequence[Source], plan: Plan) -> Iterator[SplitPiece]:
    """All pieces with their splits."""
    held_out, start = False, 0
    for piece in (piece for source in sources for piece in source.pieces()):
        if plan.cut is not None:
            end, cut = start + len(piece.text), plan.cut - start
            if 0 < cut < len(piece.text):
                yield SplitPiece(False, piece._replace(text=piece.text[:cut], last=True))
                yield SplitPiece(True, piece._replace(text=piece.text[cut:]))
            else:
                yield SplitPiece(cut <= 0, piece._replace(last=end == plan.cut or piece.last))
            start = end
            continue
        if piece.first:
            held_out = _rank(piece.text) < plan.below
        yield SplitPiece(held_out, piece)


_BREAKS = (re.compile(r"\n[ \t\r]*\n\s*"), re.compile(r"\n"))


def _find_cut(sources: Sequence[Source], target: int, characters: int) -> int:
    """The place to cut a single document: at the blank line nearest to `target`, else the nearest line end, else there.
    Blank lines and line ends must leave half to one and a half times the wanted share after them."""
    share = characters - target
    nearest: list[int | None] = [None, None]
    start = 0
    for piece in (piece for source in sources for piece in source.pieces()):
        for kind, pattern in enumerate(_BREAKS):
            for match in pattern.finditer(piece.text):
                cut, best = start + match.end(), nearest[kind]
                fits = 0 < cut < characters and share <= 2 * (characters - cut) <= 3 * share
                if fits and (best is None or abs(cut - target) < abs(best - target)):
                    nearest[kind] = cut
        start += len(piece.text)
    if characters < 2:
        raise ValueError(f"{_names(sources)}: a single character cannot be both trained on and held out")
    return next((cut for cut in nearest if cut is not None), min(max(1, target), characters - 1))


def _rank(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def _names(sources: Sequence[Source]) -> str:
    return sources[0].name + (f" and {len(sources) - 1} more" if len(sources) > 1 else "")
