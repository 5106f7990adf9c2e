"""Making a corpus: documents are read, split, encoded and written as a stream, never held in memory.

A corpus exists as a whole or not at all (see `whole_folder`); an interrupted run starts over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from statewise import overwriting
from statewise.durable import write_atomically
from statewise.tasks.corpus import tokenizers
from statewise.tasks.corpus.documents import Source
from statewise.tasks.corpus.encoding import encode, token_type
from statewise.tasks.corpus.folder import FILES, INDEX, SIGNS, SPLITS, TOKENIZER, Corpus, make_index, split_facts
from statewise.tasks.corpus.shards import ShardWriter
from statewise.tasks.corpus.survey import SplitPiece, split, survey
from statewise.whole_folder import writing


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
    if not 0 < held_out <= 1:
        raise ValueError(f"--held-out must be more than 0 and at most 1, not {held_out}")
    if shard_tokens < 1:
        raise ValueError(f"--shard-tokens must be at least 1, not {shard_tokens}")
    vocabulary = tokenizers.vocabulary_to_learn(tokenizer)
    if vocabulary is not None and held_out == 1:
        raise ValueError(f"--tokenizer {tokenizer} is trained on training documents, and --held-out 1 leaves none")
    bpe = tokenizers.load(tokenizer) if vocabulary is None else None
    overwriting.check_folder(out, FILES, SIGNS, "corpus", overwrite)
    out = out.resolve()  # follows a link to an empty folder
    with writing(out, FILES) as folder:
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
        content = bpe.content.encode()
        write_atomically(folder / TOKENIZER, content)
        kind = token_type(bpe)
        writers = [ShardWriter(folder, name.replace("_", "-"), kind, shard_tokens) for name in SPLITS]
        words, sizes = [0, 0], [0, 0]
        for encoded in encode(_reported(split(sources, plan), listener), bpe):
            writers[encoded.held_out].add(encoded.tokens, last=encoded.last)
            words[encoded.held_out] += encoded.words
            sizes[encoded.held_out] += encoded.size
        shards = [writer.close() for writer in writers]
        splits = {name: split_facts(*facts) for name, facts in zip(SPLITS, zip(shards, words, sizes))}
        for name, facts in splits.items():
            if not facts["tokens"] and not (name == "training" and held_out == 1):
                raise ValueError("the text changed while it was read: no document is left to train on, or to hold out")
        read = {"sources": [one.name for one in sources], "documents": documents, "field": field, "held_out": held_out}
        write_atomically(folder / INDEX, make_index(splits, content, bpe, read=read))
    return Corpus(out)


def _reported(pieces: Iterator[SplitPiece], listener: Listener) -> Iterator[SplitPiece]:
    for piece in pieces:
        listener.advance(len(piece.piece.text))
        yield piece
