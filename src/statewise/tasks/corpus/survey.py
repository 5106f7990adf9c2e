"""What of a corpus is held out, and which texts a tokenizer is learned from: decided before any is encoded.

A document is held out by a hash of its text, so that equal documents land on the same side, whatever their
order, and no list of them is needed.
"""

from __future__ import annotations

import hashlib
import heapq
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from statewise.tasks.bpe import END
from statewise.tasks.corpus.documents import Piece, Source

SAMPLE = 2**26
"""Characters of text that a tokenizer is learned from, at most: chosen over the whole corpus by their hashes."""
STREAMED = 10_000
"""Documents that are looked at beforehand where they come over a network."""
RANKS = 2**64


@dataclass(frozen=True)
class Plan:
    """How documents are shared out."""

    below: int
    """Documents with a rank below this are held out."""
    cut: int | None
    """Of the only document of a corpus: characters before its held-out part."""
    sample: list[str]
    """Training text for a tokenizer."""
    characters: int | None
    """Characters in all; None if not everything was looked at."""
    notes: list[str]


class Sided(NamedTuple):
    """A piece and its side."""

    held_out: bool
    piece: Piece


class _Sampled(NamedTuple):
    key: int  # negated, so that a heap gives up the largest
    order: int
    document: int
    start: int
    text: str


def survey(sources: Sequence[Source], share: float, *, sample: bool) -> Plan:
    """Reads what there is and decides; `share` of the documents are to be held out, at least one, or all if it is 1.

    Raises `ValueError` if there is no text, or nothing would be left to train on.
    """
    limit = STREAMED if any(source.streamed for source in sources) else None
    threshold = int(share * RANKS)
    documents = characters = below = lowest_count = start = rank = marks = 0
    lowest, complete = RANKS, True
    heap: list[_Sampled] = []
    kept = 0
    for piece in (piece for source in sources for piece in source.pieces()):
        if piece.first:
            if limit is not None and (documents == limit or characters >= SAMPLE):
                complete = False
                break
            rank, start = _rank(piece.text), 0
            documents, below = documents + 1, below + (rank < threshold)
            lowest_count = 1 if rank < lowest else lowest_count + (rank == lowest)
            lowest = min(lowest, rank)
        if sample:
            key = _rank("sample" + piece.text)  # apart from the rank, or the sample would be what is held out
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
    elif below in (0, documents):
        threshold = lowest + 1
        if lowest_count == documents:
            raise ValueError(f"{_names(sources)}: all {documents:,} documents are the same: none is left to train on")
    if marks:
        notes.append(
            f"{END} stands {marks:,} time{'s' * (marks > 1)} inside documents, where it is text: to end a document it "
            "must be a line of its own, with --documents mark or auto"
        )
    texts = [one.text if cut is None else one.text[: max(0, cut - one.start)]
             for one in sorted(heap, reverse=True) if one.document >= threshold]  # fmt: skip
    return Plan(threshold, cut, texts, characters if complete else None, notes)


def share_out(sources: Sequence[Source], plan: Plan) -> Iterator[Sided]:
    """All pieces with their sides."""
    held_out, start = False, 0
    for piece in (piece for source in sources for piece in source.pieces()):
        if plan.cut is not None:
            end, cut = start + len(piece.text), plan.cut - start
            if 0 < cut < len(piece.text):
                yield Sided(False, piece._replace(text=piece.text[:cut], last=True))
                yield Sided(True, piece._replace(text=piece.text[cut:]))
            else:
                yield Sided(cut <= 0, piece._replace(last=end == plan.cut or piece.last))
            start = end
            continue
        if piece.first:
            held_out = _rank(piece.text) < plan.below
        yield Sided(held_out, piece)


_BREAKS = (re.compile(r"\n[ \t\r]*\n\s*"), re.compile(r"\n"))


def _find_cut(sources: Sequence[Source], target: int, characters: int) -> int:
    """Where the one document is cut: at the blank line nearest to `target`, else the nearest line end, else there. Of
    either only those count that leave half to one and a half times as much behind them as is to be held out."""
    share = characters - target
    nearest: list[int | None] = [None, None]
    start = 0
    for piece in (piece for source in sources for piece in source.pieces()):
        for kind, pattern in enumerate(_BREAKS):
            for found in pattern.finditer(piece.text):
                place, best = start + found.end(), nearest[kind]
                fits = 0 < place < characters and share <= 2 * (characters - place) <= 3 * share
                if fits and (best is None or abs(place - target) < abs(best - target)):
                    nearest[kind] = place
        start += len(piece.text)
    if characters < 2:
        raise ValueError(f"{_names(sources)}: a single character cannot be both trained on and held out")
    return next((place for place in nearest if place is not None), min(max(1, target), characters - 1))


def _rank(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def _names(sources: Sequence[Source]) -> str:
    return sources[0].name + (f" and {len(sources) - 1} more" if len(sources) > 1 else "")
