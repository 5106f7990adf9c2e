"""Text from a corpus (`statewise data text`), in rows of equal length.

A corpus is one stream of documents, each closed by the end-of-text token; rows are its consecutive windows, so that
every token is in exactly one row and only the last row may be shorter. Rows may hold several documents: attention
stays within a document, positions restart at its beginning, and its first token is not scored. A document cut by the
end of a row continues in the next row as a document of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from typing_extensions import override

from statewise.data_types import Examples, Headline
from statewise.runtime.bounds import bounded
from statewise.runtime.json_files import COUNT, TEXT, Shape
from statewise.tasks.base import ConsecutiveRows, Kept, RunningText, Task, Vocab, WholeTexts, kept_json, kept_text
from statewise.tasks.corpus.documents import find
from statewise.tasks.corpus.encoding import encode, word_starts
from statewise.tasks.corpus.folder import TOKENIZER, Corpus, Split, is_corpus, sha256
from statewise.tasks.corpus.survey import SplitPiece
from statewise.tasks.text.bpe import BPE, END

TEXTS_READ = 2**20
"""Tokens read at a time for uncut documents."""


@dataclass(frozen=True)
class TextConfig:
    """Fields of `task: text`."""

    path: str = ""
    """A corpus: a folder written by `statewise data text`."""
    context: int = 1024
    """Tokens of a row."""
    held_out_tokens: int | None = 4_194_304
    """Most held-out tokens to evaluate, in rows spread evenly over the held-out split; null: all of them."""

    def __post_init__(self) -> None:
        bounded(self, "context", prefix="task.", at_least=2, at_most=2**24)
        bounded(self, "held_out_tokens", prefix="task.", at_least=1)


class Tokens(Protocol):
    """A stream of token ids, on disk or in memory."""

    def __len__(self) -> int:
        """Number of tokens."""

    def read(self, start: int, stop: int) -> np.ndarray:
        """(stop - start,) tokens."""


class InMemory:
    """Tokens in memory."""

    def __init__(self, tokens: np.ndarray) -> None:
        self.tokens = tokens

    def __len__(self) -> int:
        return len(self.tokens)

    def read(self, start: int, stop: int) -> np.ndarray:
        """(stop - start,) tokens."""
        return self.tokens[start:stop]


class Windows:
    """Rows of a stream, read on access; satisfies `Rows`."""

    def __init__(self, tokens: Tokens, context: int, end: int) -> None:
        self.tokens, self.context, self.end = tokens, context, end

    def __len__(self) -> int:
        return -(-len(self.tokens) // self.context)

    def __getitem__(self, rows: np.ndarray) -> Examples:
        starts = np.asarray(rows, np.int64) * self.context
        lengths = np.minimum(self.context, len(self.tokens) - starts)
        width = int(lengths.max()) if len(lengths) else 0
        tokens = np.zeros((len(starts), width), np.int64)
        for row, (start, length) in enumerate(zip(starts.tolist(), lengths.tolist())):
            tokens[row, :length] = self.tokens.read(start, start + length)
        documents = np.ones_like(tokens)
        after_end = (tokens[:, :-1] == self.end) & (np.arange(1, width) < lengths[:, None])
        documents[:, 1:] += np.cumsum(after_end, axis=1)
        return Examples(tokens, lengths, np.zeros(len(starts), np.int64), documents)

    def continues(self, rows: np.ndarray) -> np.ndarray:
        """(n,) bool: whether each row continues the document in which the previous row ends."""
        starts = np.asarray(rows, np.int64) * self.context
        return np.array([start > 0 and self.tokens.read(start - 1, start)[0] != self.end for start in starts.tolist()])

    def spread(self, n: int) -> Examples:
        """At most n rows, spread evenly over the stream."""
        n = min(n, len(self))
        return self[np.arange(n) * len(self) // max(1, n)]


_SPLIT: Shape = {"tokens": COUNT, "documents": COUNT, "sha256": [TEXT]}
KEPT: Shape = {
    "path": TEXT,
    "fingerprint": TEXT,
    "tokenizer": TEXT,
    "end?": TEXT,
    "separation": TEXT,
    "field": TEXT,
    "training": _SPLIT,
    "held_out": _SPLIT,
}
"""Shape of what a run keeps about its data."""


class Text(RunningText, WholeTexts, ConsecutiveRows, Task):
    """Windows of a corpus."""

    Config = TextConfig
    end: int
    decoded = False  # rows have no prompt

    def __init__(self, config: TextConfig, kept: Kept | None = None) -> None:
        self.config = config
        self.context = config.context
        self.headline = Headline("loss", higher_is_better=False)
        self._corpus: Corpus | None = None
        if kept is not None:
            self.facts: dict[str, Any] = kept_json(kept, "corpus.json", KEPT)
            content = kept_text(kept, TOKENIZER)
            if sha256(content.encode()) != self.facts["tokenizer"]:
                raise ValueError(f"task/{TOKENIZER} of this run is not the tokenizer that its corpus was encoded with")
            self.bpe = BPE(content, f"task/{TOKENIZER} of this run", (self.facts.get("end", END),))
        else:
            if not config.path:
                raise ValueError("task.path is not set: give a corpus that `statewise data text` wrote by --task.path")
            self._corpus = corpus = Corpus(Path(config.path))
            self.bpe, self.facts = corpus.bpe, _facts(corpus)
        self.vocab = Vocab(self.bpe.symbols)
        self.end = self.bpe.end
        self._spellings = self.bpe.spellings()
        self._spellings[self.end] = b""  # not part of the text
        self.notes = [self._summary()]

    def files(self) -> dict[str, bytes]:
        """The tokenizer, and facts that identify the corpus."""
        return {TOKENIZER: self.bpe.content.encode(), "corpus.json": json.dumps(self.facts, indent=2).encode()}

    def data_identity(self) -> dict[str, str]:
        """The fingerprint of the corpus, and its tokenizer's checksum."""
        return {"data": self.facts["fingerprint"], "tokenizer": self.facts["tokenizer"]}

    def _summary(self) -> str:
        training, held_out = self.facts["training"], self.facts["held_out"]
        text = (
            f"corpus: {training['tokens']:,} tokens of {training['documents']:,} documents to train on, "
            f"{held_out['tokens']:,} of {held_out['documents']:,} held out"
        )
        most = self.config.held_out_tokens
        evaluated = held_out["tokens"] if most is None else self._rows_within(most) * self.context
        return text + (f", {evaluated:,} of them evaluated" if evaluated < held_out["tokens"] else "")

    def _rows_within(self, tokens: int) -> int:
        return max(1, tokens // self.context)

    # Rows

    def _opened(self) -> Corpus:
        """The corpus. Raises `ValueError` if it is missing or has changed since the run began."""
        if self._corpus is None:
            folder = Path(self.facts["path"])
            if not folder.exists():
                raise ValueError(f"{folder}: the corpus of this run no longer exists")
            corpus = Corpus(folder)
            now = _facts(corpus)
            if now["fingerprint"] != self.facts["fingerprint"]:
                names = ("tokenizer", "training", "held_out")
                changed = [name.replace("_", "-") for name in names if now[name] != self.facts[name]]
                what = f": {' and '.join(changed)} differ" if changed else ""
                raise ValueError(f"{folder}: not the corpus that the run began with{what}")
            self._corpus = corpus
        return self._corpus

    def _windows(self, tokens: Tokens) -> Windows:
        return Windows(tokens, self.context, self.end)

    def training(self) -> Windows:
        """All rows of the training split. Raises `ValueError` if it is empty."""
        corpus = self._opened()
        if not len(corpus.training):
            raise ValueError(f"{corpus.folder}: all documents of this corpus are held out: none is left to train on")
        return self._windows(corpus.training)

    @override
    def continues(self, rows: np.ndarray) -> np.ndarray:
        return self.training().continues(rows)

    def held_out(self, n: int | None = None) -> Examples:
        """Rows spread evenly over the held-out split: at most n, and at most `held_out_tokens` tokens."""
        return self._some(self._opened().held_out, n)

    @override
    def held_out_texts(self) -> Iterator[np.ndarray]:
        """Documents that begin within `held_out_tokens`."""
        split, most = self._opened().held_out, self.config.held_out_tokens
        begun = np.empty(0, np.int64)
        for start in range(0, len(split), TEXTS_READ):
            tokens = split.read(start, min(start + TEXTS_READ, len(split))).astype(np.int64)
            cuts = np.flatnonzero(tokens == self.end) + 1
            *whole, rest = np.split(np.concatenate([begun, tokens]), cuts + len(begun))
            at = start - len(begun)
            for text in whole:
                if most is not None and at >= most:
                    return
                yield text
                at += len(text)
            begun = rest
        if len(begun):
            yield begun

    def _some(self, split: Split, n: int | None) -> Examples:
        windows, most = self._windows(split), self.config.held_out_tokens
        limits = [len(windows)]
        limits += [] if n is None else [n]
        limits += [] if most is None else [self._rows_within(most)]
        return windows.spread(min(limits))

    def read(self, path: Path) -> Examples:
        """Rows of the held-out split of another corpus with the same tokenizer, as in `held_out`; or of all documents
        of a text file, JSON lines or a folder of them, separated as those of the corpus were."""
        if is_corpus(path):
            corpus = Corpus(path)
            if corpus.tokenizer_sha256 != self.facts["tokenizer"]:
                raise ValueError(
                    f"{path}: this corpus was encoded with another tokenizer than the run's: give the text files that "
                    "it was made from"
                )
            return self._some(corpus.held_out, None)
        pieces = (
            piece for source in find([path], self.facts["separation"], self.facts["field"]) for piece in source.pieces()
        )
        parts = [encoded.tokens for encoded in encode((SplitPiece(True, piece) for piece in pieces), self.bpe)]
        if not parts:
            raise ValueError(f"{path}: no text: every document is empty")
        windows = self._windows(InMemory(np.concatenate(parts)))
        return windows.spread(len(windows))

    # Text

    def units(self, examples: Examples) -> dict[str, int]:
        """`byte`: bytes of the scored tokens, 0 for end-of-text. `word`: words, as `count_words` counts them, that
        begin in a scored token; the empty one after white space at the end of a text begins in its end-of-text token.

        Nats and units cover the same tokens. The first token of each document of a row is not scored: its nats, its
        bytes and a word that begins in it do not count (later tokens of that word do). The nats of end-of-text tokens
        count, since the end of a text must be predicted too.
        """
        words = size = 0
        for row in range(len(examples)):
            length = int(examples.lengths[row])
            documents = None if examples.documents is None else examples.documents[row, :length]
            cuts = np.zeros(0, np.int64) if documents is None else np.flatnonzero(np.diff(documents)) + 1
            for part in np.split(examples.tokens[row, :length], cuts):
                first, *rest = (self._spellings[token] for token in part.tolist())
                if not rest:
                    continue
                text = first + b"".join(rest)
                size += len(text) - len(first)
                starts = _word_starts(text)
                whole = part[-1] == self.end  # else the word after the last byte begins in the next row
                words += int(((starts >= len(first)) & (whole | (starts < len(text)))).sum())
        return {"word": words, "byte": size}


def _word_starts(text: bytes) -> np.ndarray:
    """(m,) int64 offsets of the bytes at which words begin. Bytes of an incomplete character belong to a word."""
    decoded = text.decode("utf-8", errors="surrogateescape")
    starts = np.array(word_starts(decoded), np.int64)
    if len(decoded) == len(text):
        return starts
    codes = np.frombuffer(decoded.encode("utf-32-le", errors="surrogatepass"), np.uint32)
    sizes = 1 + (codes >= 0x80).astype(np.int64) + (codes >= 0x800) + (codes >= 0x10000)
    sizes[(codes >= 0xDC80) & (codes <= 0xDCFF)] = 1  # each stands for one byte that is not UTF-8
    return np.append(0, np.cumsum(sizes))[starts]


def _facts(corpus: Corpus) -> dict[str, Any]:
    """Facts that a run records about its corpus."""

    def facts_of(split: Split) -> dict[str, Any]:
        checksums = [shard.facts["sha256"] for shard in split.shards]
        return {"tokens": len(split), "documents": split.documents, "sha256": checksums}

    return {
        "path": str(corpus.folder.resolve()),
        "fingerprint": corpus.fingerprint,
        "tokenizer": corpus.tokenizer_sha256,
        "end": corpus.bpe.end_symbol,
        "separation": corpus.separation,
        "field": corpus.field,
        "training": facts_of(corpus.training),
        "held_out": facts_of(corpus.held_out),
    }
