"""Making a corpus: documents are read, split, encoded and written as a stream, never held in memory.

A corpus exists as a whole or not at all (`overwriting.claimed_folder`); an interrupted run starts over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from statewise.runtime import overwriting
from statewise.runtime.durable import write_atomically
from statewise.tasks.corpus import tokenizers
from statewise.tasks.corpus.documents import Source
from statewise.tasks.corpus.encoding import Encoded, count_words, encode, token_type
from statewise.tasks.corpus.folder import (
    FILES,
    INDEX,
    SIGNS,
    SPLITS,
    TOKENIZER,
    Corpus,
    ShardWriter,
    make_index,
    split_facts,
)
from statewise.tasks.corpus.survey import SplitPiece, rank_of_tokens, split, survey, survey_tokens
from statewise.tasks.corpus.token_files import TokenFile
from statewise.tasks.text.bpe import BPE


@dataclass(frozen=True)
class Listener:
    """Callbacks for progress while a corpus is written."""

    stage: Callable[[str, int | None], None] = lambda what, characters: None
    """A stage begins; the number of characters it will process, if known."""
    advance: Callable[[int], None] = lambda characters: None
    note: Callable[[str], None] = lambda note: None


def write(
    sources: Sequence[Source],
    out: Path,
    tokenizer: str,
    *,
    held_out: float = 0.01,
    shard_tokens: int = 100_000_000,
    overwrite: bool = False,
    documents: str = "auto",
    field: str = "text",
    listener: Listener | None = None,
) -> Corpus:
    """Writes the documents of `sources` to the folder `out`. `tokenizer`: see `tokenizers.FORMS`; `documents` and
    `field`: how the sources were found, recorded in the corpus.

    Raises `ValueError` for sources that cannot be read, `FileExistsError` if `out` exists (with `overwrite`: if it has
    anything besides a corpus), `BlockingIOError` if another process is writing it.
    """
    listener = listener or Listener()
    _check_sizes(held_out, shard_tokens)
    vocabulary = tokenizers.vocabulary_to_learn(tokenizer)
    if vocabulary is not None and held_out == 1:
        raise ValueError(f"`tokenizer` {tokenizer} is trained on training documents, and `held_out` 1 leaves none")
    bpe = tokenizers.load(tokenizer) if vocabulary is None else None
    with overwriting.claimed_folder(out, FILES, SIGNS, "corpus", overwrite) as folder:
        listener.stage("reading the documents", None)
        plan = survey(sources, held_out, sample=vocabulary is not None)
        for note in plan.notes:
            listener.note(note)
        if vocabulary is not None:
            listener.stage(f"training a tokenizer of {vocabulary:,} tokens", None)
            bpe = tokenizers.learn(plan.sample, vocabulary)
            plan.sample.clear()
        assert bpe is not None
        listener.stage("encoding", plan.characters)
        read = {"sources": [one.name for one in sources], "documents": documents, "field": field, "held_out": held_out}
        _fill(folder, encode(_reported(split(sources, plan), listener), bpe), bpe, shard_tokens, read)
    return Corpus(out.resolve())


def write_tokens(
    files: Sequence[TokenFile],
    out: Path,
    tokenizer: str,
    *,
    held_out: float = 0.01,
    shard_tokens: int = 100_000_000,
    overwrite: bool = False,
    listener: Listener | None = None,
) -> Corpus:
    """Writes files of token ids, made with the existing tokenizer `tokenizer`, to the folder `out`. Raises what `write`
    raises, and `ValueError` for ids that the tokenizer does not have."""
    listener = listener or Listener()
    _check_sizes(held_out, shard_tokens)
    if tokenizers.vocabulary_to_learn(tokenizer) is not None:
        raise ValueError(f"`tokenizer` {tokenizer}: token ids need the tokenizer that they were made with")
    bpe = tokenizers.load(tokenizer)
    spellings = bpe.spellings()
    with overwriting.claimed_folder(out, FILES, SIGNS, "corpus", overwrite) as folder:
        listener.stage("reading the documents", None)
        below, tokens = survey_tokens(_documents(files, bpe), held_out)
        listener.stage("writing", tokens)

        def encoded() -> Iterator[Encoded]:
            for ids in _documents(files, bpe):
                listener.advance(len(ids))
                content = b"".join([spellings[token] for token in ids[:-1].tolist()])
                words = count_words(content.decode(errors="surrogateescape"))
                yield Encoded(rank_of_tokens(ids) < below, ids, True, words, len(content))

        read = {"sources": [file.name for file in files], "documents": "auto", "field": "text", "held_out": held_out}
        _fill(folder, encoded(), bpe, shard_tokens, read)
    return Corpus(out.resolve())


def _documents(files: Sequence[TokenFile], bpe: BPE) -> Iterator[np.ndarray]:
    return (ids for file in files for ids in file.documents(len(bpe.symbols), bpe.end))


def _check_sizes(held_out: float, shard_tokens: int) -> None:
    if not 0 < held_out <= 1:
        raise ValueError(f"`held_out` must be more than 0 and at most 1, not {held_out}")
    if shard_tokens < 1:
        raise ValueError(f"`shard_tokens` must be at least 1, not {shard_tokens}")


def _fill(folder: Path, pieces: Iterator[Encoded], bpe: BPE, shard_tokens: int, read: Mapping[str, Any]) -> None:
    """Writes all files of a corpus, the index last. `read`: how the documents were read."""
    content = bpe.content.encode()
    write_atomically(folder / TOKENIZER, content)
    kind = token_type(bpe)
    writers = [ShardWriter(folder, name.replace("_", "-"), kind, shard_tokens) for name in SPLITS]
    words, sizes = [0, 0], [0, 0]
    for encoded in pieces:
        writers[encoded.held_out].add(encoded.tokens, last=encoded.last)
        words[encoded.held_out] += encoded.words
        sizes[encoded.held_out] += encoded.size
    shards = [writer.close() for writer in writers]
    splits = {name: split_facts(*facts) for name, facts in zip(SPLITS, zip(shards, words, sizes))}
    for name, facts in splits.items():
        if not facts["tokens"] and not (name == "training" and read["held_out"] == 1):
            raise ValueError("the documents changed while they were read: none is left to train on, or to hold out")
    write_atomically(folder / INDEX, make_index(splits, content, bpe, read=read))


def _reported(pieces: Iterator[SplitPiece], listener: Listener) -> Iterator[SplitPiece]:
    for piece in pieces:
        listener.advance(len(piece.piece.text))
        yield piece
