"""Running text from a corpus (`statewise data text`), in rows of equal length.

A corpus is one long stream of documents, each closed by the end-of-text token; a row is a window of it, so that
every token stands in exactly one row and only the last row may be shorter. Rows may hold several documents: attention
stays within a document, positions restart at it, and its first token is not scored. Where a row ends inside a document,
what follows stands in the next row as a document of its own, whose first token is not scored either.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from statewise.tasks.base import Kept, RunningText, Task, WholeTexts
from statewise.tasks.bpe import BPE, END
from statewise.tasks.corpus.documents import find
from statewise.tasks.corpus.encoding import encode
from statewise.tasks.corpus.folder import TOKENIZER, Corpus, Side, is_corpus, sha256
from statewise.tasks.corpus.survey import Sided
from statewise.tasks.vocab import Vocab
from statewise.types import Completion, Examples, Headline

TEXTS_READ = 2**20
"""Tokens read at a time where documents are wanted whole."""


@dataclass(frozen=True)
class TextConfig:
    """Fields of `task: text`."""

    path: str = ""
    """A corpus: the folder that `statewise data text` wrote."""
    context: int = 1024
    """Tokens of a row."""
    held_out_tokens: int | None = 4_194_304
    """Held-out tokens that are evaluated, at most: rows evenly spread over all that are held out; null: all of them."""

    def __post_init__(self) -> None:
        if self.context < 2:
            raise ValueError(f"task.context must be at least 2, not {self.context}")
        if self.held_out_tokens is not None and self.held_out_tokens < 1:
            raise ValueError(f"task.held_out_tokens must be at least 1, not {self.held_out_tokens}")


class Tokens(Protocol):
    """A long stream of token ids, on disk or in memory."""

    def __len__(self) -> int:
        """How many there are."""

    def read(self, start: int, stop: int) -> np.ndarray:
        """(stop - start,) tokens."""


class Held:
    """Tokens in memory."""

    def __init__(self, tokens: np.ndarray) -> None:
        self.tokens = tokens

    def __len__(self) -> int:
        return len(self.tokens)

    def read(self, start: int, stop: int) -> np.ndarray:
        """See `Tokens`."""
        return self.tokens[start:stop]


class Windows:
    """Rows of a stream, read when asked for; satisfies `types.Rows`."""

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

    def spread(self, n: int) -> Examples:
        """n rows, evenly spread over all; all of them if there are no more."""
        n = min(n, len(self))
        return self[np.arange(n) * len(self) // max(1, n)]


class Text(Task, RunningText, WholeTexts):
    """Windows of a corpus."""

    Config = TextConfig
    end: int
    decoded = False  # rows have no prompt

    def __init__(self, config: TextConfig, kept: Kept | None = None) -> None:
        self.config = config
        self.context = config.context
        self.headline = Headline("loss", higher_is_better=False)
        self._corpus: Corpus | None = None
        if kept:
            self.facts: dict[str, Any] = json.loads(kept["corpus.json"])
            if sha256(kept[TOKENIZER]) != self.facts["tokenizer"]:
                raise ValueError(f"{TOKENIZER} of this run is not the one that its corpus was encoded with")
            self.bpe = BPE(kept[TOKENIZER].decode(), f"{TOKENIZER} of this run", (END,))
        else:
            if not config.path:
                raise ValueError("task.path is not set: give a corpus that `statewise data text` wrote by --task.path")
            self._corpus = corpus = Corpus(Path(config.path))
            self.bpe, self.facts = corpus.bpe, _facts(corpus)
        self.vocab = Vocab(self.bpe.symbols)
        self.end = self.bpe.end
        self._spellings = self.bpe.spellings()
        self._spellings[self.end] = b""  # it ends a text and is no part of it
        self.notes = [self._summary()]

    def files(self) -> dict[str, bytes]:
        """The tokenizer, and by what the corpus is known again."""
        return {TOKENIZER: self.bpe.content.encode(), "corpus.json": json.dumps(self.facts, indent=2).encode()}

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
        """The corpus. Raises `ValueError` if it is gone or is another than when the run began."""
        if self._corpus is None:
            folder = Path(self.facts["path"])
            if not folder.exists():
                raise ValueError(f"{folder}: the corpus of this run is not there any more")
            corpus = Corpus(folder)
            now = _facts(corpus)
            if now["fingerprint"] != self.facts["fingerprint"]:
                names = ("tokenizer", "training", "held_out")
                changed = [name.replace("_", "-") for name in names if now[name] != self.facts[name]]
                what = f": {' and '.join(changed)} differ" if changed else ""
                raise ValueError(f"{folder}: this is not the corpus that the run began with{what}")
            self._corpus = corpus
        return self._corpus

    def _windows(self, tokens: Tokens) -> Windows:
        return Windows(tokens, self.context, self.end)

    def training(self) -> Windows:
        """All rows of the training documents. Raises `ValueError` if there are none."""
        corpus = self._opened()
        if not len(corpus.training):
            raise ValueError(f"{corpus.folder}: all documents of this corpus are held out: there is none to train on")
        return self._windows(corpus.training)

    def held_out(self, n: int | None = None) -> Examples:
        """Rows of the held-out documents: at most n, and at most `held_out_tokens`, evenly spread over all."""
        return self._some(self._opened().held_out, n)

    def held_out_texts(self) -> Iterator[np.ndarray]:
        """See `WholeTexts`; as many as begin within `held_out_tokens`."""
        side, most = self._opened().held_out, self.config.held_out_tokens
        begun = np.empty(0, np.int64)
        for start in range(0, len(side), TEXTS_READ):
            tokens = side.read(start, min(start + TEXTS_READ, len(side))).astype(np.int64)
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

    def _some(self, side: Side, n: int | None) -> Examples:
        windows, most = self._windows(side), self.config.held_out_tokens
        limits = [len(windows)]
        limits += [] if n is None else [n]
        limits += [] if most is None else [self._rows_within(most)]
        return windows.spread(min(limits))

    def read(self, path: Path) -> Examples:
        """Rows of the held-out documents of another corpus with the same tokenizer, as in `held_out`; or of all
        documents of a text file, JSON lines or a folder of them, read in the way that the corpus was."""
        if is_corpus(path):
            corpus = Corpus(path)
            if corpus.tokenizer_sha256 != self.facts["tokenizer"]:
                raise ValueError(
                    f"{path}: this corpus was encoded with another tokenizer than the run's, and tokens cannot be "
                    "encoded again: give the text files that it was made of"
                )
            return self._some(corpus.held_out, None)
        pieces = (piece for source in find([path], self.facts["separation"], self.facts["field"])
                  for piece in source.pieces())  # fmt: skip
        parts = [encoded.tokens for encoded in encode((Sided(True, piece) for piece in pieces), self.bpe)]
        if not parts:
            raise ValueError(f"{path}: no text: every document is empty")
        windows = self._windows(Held(np.concatenate(parts)))
        return windows.spread(len(windows))

    # Text

    def encode(self, text: str) -> np.ndarray:
        """Token ids of a text; `<|endoftext|>` in it is the mark."""
        tokens = self.bpe.encode(text)
        if self.bpe.decode(tokens) != text:
            raise ValueError(f"the tokenizer of this run does not give {text[:60]!r} back as it was")
        return tokens

    def decode(self, tokens: Sequence[int] | np.ndarray) -> str:
        """The text; `encode` takes it back, save where it was cut inside a word (see `BPE.gives_back`)."""
        return self.bpe.decode(tokens)

    def score(self, examples: Examples, completions: Sequence[Completion]) -> dict[str, float]:
        """`exact_match`: the row's own continuation and nothing else."""
        right = [np.array_equal(completion.tokens, examples.answer(row)) for row, completion in enumerate(completions)]
        return {"exact_match": float(np.mean(right))}

    def units(self, examples: Examples) -> dict[str, int]:
        """`byte`: bytes of text that the scored tokens stand for, the end of a text being none. `word`: white-space
        separated words that begin in a scored token.

        The first token of each document of a row is not scored: neither its nats nor its bytes count, nor a word that
        begins in it (what later tokens add to that word does). Nats of end-of-text tokens do count: that a text ends
        must be foretold too. So both figures are clean: nats and units are those of the same tokens.
        """
        words = size = 0
        for row in range(len(examples)):
            length = int(examples.lengths[row])
            documents = None if examples.documents is None else examples.documents[row, :length]
            cuts = np.zeros(0, np.int64) if documents is None else np.flatnonzero(np.diff(documents)) + 1
            for part in np.split(examples.tokens[row, :length], cuts):
                first, *rest = (self._spellings[token] for token in part.tolist())
                text = first + b"".join(rest)
                size += len(text) - len(first)
                words += int((_word_starts(text) >= len(first)).sum())
        return {"word": words, "byte": size}


_WORD = re.compile(r"\S+")


def _word_starts(text: bytes) -> np.ndarray:
    """(m,) int64 bytes at which white-space separated words begin. A byte of a character that was cut is no space."""
    decoded = text.decode("utf-8", errors="surrogateescape")
    starts = np.array([found.start() for found in _WORD.finditer(decoded)], np.int64)
    if len(decoded) == len(text):
        return starts
    codes = np.frombuffer(decoded.encode("utf-32-le", errors="surrogatepass"), np.uint32)
    sizes = 1 + (codes >= 0x80).astype(np.int64) + (codes >= 0x800) + (codes >= 0x10000)
    sizes[(codes >= 0xDC80) & (codes <= 0xDCFF)] = 1  # by these a byte stands that is no character
    return (np.cumsum(sizes) - sizes)[starts]


def _facts(corpus: Corpus) -> dict[str, Any]:
    """What a run remembers of its corpus."""

    def facts_of(side: Side) -> dict[str, Any]:
        sums = [shard.facts["sha256"] for shard in side.shards]
        return {"tokens": len(side), "documents": side.documents, "sha256": sums}

    return {
        "path": str(corpus.folder.resolve()),
        "fingerprint": corpus.fingerprint,
        "tokenizer": corpus.tokenizer_sha256,
        "separation": corpus.separation,
        "field": corpus.field,
        "training": facts_of(corpus.training),
        "held_out": facts_of(corpus.held_out),
    }
