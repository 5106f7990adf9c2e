"""Making a corpus: documents are read, shared out, encoded and written as a stream, never held in memory.

Everything is written into a folder `.NAME.writing` beside the one that is asked for, the index last, and then
renamed: a corpus is there as a whole or not at all. What an interrupted writing left behind is deleted by the next
one, which begins anew.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from statewise.tasks.corpus import tokenizers
from statewise.tasks.corpus.documents import Source
from statewise.tasks.corpus.encoding import encode, token_type
from statewise.tasks.corpus.folder import INDEX, SIDES, TOKENIZER, Corpus, is_corpus, make_index, side_facts
from statewise.tasks.corpus.shards import ShardWriter
from statewise.tasks.corpus.survey import Sided, share_out, survey


@dataclass(frozen=True)
class Listener:
    """What the outside wants to hear of while a corpus is written."""

    stage: Callable[[str, int | None], None] = lambda what, characters: None
    """Something begins; how many characters of text it will go through, where that is known."""
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
    `field`: how the sources were found, which the corpus remembers.

    Raises `ValueError` for sources that cannot be read, `FileExistsError` if something is at `out` already (with
    `overwrite`: something that is no corpus), `BlockingIOError` if another process is writing it.
    """
    listener = listener or Listener()
    if not 0 < held_out <= 1:
        raise ValueError(f"--held-out must be more than 0 and at most 1, not {held_out}")
    if shard_tokens < 1:
        raise ValueError(f"--shard-tokens must be at least 1, not {shard_tokens}")
    vocabulary = tokenizers.vocabulary_to_learn(tokenizer)
    if vocabulary is not None and held_out == 1:
        raise ValueError(f"--tokenizer {tokenizer} learns from training documents, and --held-out 1 leaves none")
    bpe = tokenizers.load(tokenizer) if vocabulary is None else None
    refuse(out, overwrite)
    with _scratch(out) as folder:
        listener.stage("looking at the documents", None)
        plan = survey(sources, held_out, sample=vocabulary is not None)
        for note in plan.notes:
            listener.note(note)
        if vocabulary is not None:
            listener.stage(f"learning {vocabulary:,} tokens", None)
            bpe = tokenizers.learn(plan.sample, vocabulary)
            plan.sample.clear()
        assert bpe is not None
        listener.stage("encoding", plan.characters)
        content = bpe.content.encode()
        _write(folder / TOKENIZER, content)
        kind = token_type(bpe)
        writers = [ShardWriter(folder, side.replace("_", "-"), kind, shard_tokens) for side in SIDES]
        words, sizes = [0, 0], [0, 0]
        for encoded in encode(_told(share_out(sources, plan), listener), bpe):
            writers[encoded.held_out].add(encoded.tokens, last=encoded.last)
            words[encoded.held_out] += encoded.words
            sizes[encoded.held_out] += encoded.size
        shards = [writer.close() for writer in writers]
        sides = {side: side_facts(*facts) for side, facts in zip(SIDES, zip(shards, words, sizes))}
        for side, facts in sides.items():
            if not facts["tokens"] and not (side == "training" and held_out == 1):
                raise ValueError("the text changed while it was read: no document is left to train on, or to hold out")
        read = {"sources": [one.name for one in sources], "documents": documents, "field": field, "held_out": held_out}
        _write(folder / INDEX, make_index(sides, content, len(bpe.symbols), read=read))
        _put(folder, out)
    return Corpus(out)


def refuse(out: Path, overwrite: bool) -> None:
    """Raises `FileExistsError` if something is at `out` that must not be replaced."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        if not overwrite:
            raise FileExistsError(f"{out} exists: choose another --out, or give --overwrite")
        if not is_corpus(out):
            raise FileExistsError(f"{out} exists and is no corpus: it will not be overwritten")


def _told(pieces: Iterator[Sided], listener: Listener) -> Iterator[Sided]:
    for sided in pieces:
        listener.advance(len(sided.piece.text))
        yield sided


@contextlib.contextmanager
def _scratch(out: Path) -> Iterator[Path]:
    """An empty folder for one writer. It is deleted if the corpus did not come to be."""
    folder = _beside(out, "writing")
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = _beside(out, "lock")
    with open(lock, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BlockingIOError(f"{out} is being written by another process") from None
        try:
            shutil.rmtree(folder, ignore_errors=True)  # of a writing that was killed
            folder.mkdir()
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            lock.unlink(missing_ok=True)


def _put(folder: Path, out: Path) -> None:
    """Gives the finished corpus its name; one that was there before goes after that."""
    old = _beside(out, "dropped")
    shutil.rmtree(old, ignore_errors=True)
    if out.exists():
        os.rename(out, old)
    os.rename(folder, out)
    number = os.open(out.parent, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
    shutil.rmtree(old, ignore_errors=True)


def _beside(out: Path, what: str) -> Path:
    return out.absolute().with_name(f".{out.absolute().name}.{what}")


def _write(path: Path, content: bytes) -> None:
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
