"""Tokenizer specifications: train one, GPT-2's from its files, or any tokenizer.json."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from statewise.tasks import bpe
from statewise.tasks.bpe import BPE, END

FORMS = "bpe:N (trained on the training documents), gpt2:FOLDER, or the path of a tokenizer.json"
MOST = 2**24
"""Largest vocabulary."""


def vocabulary_to_learn(spec: str) -> int | None:
    """Vocabulary size of a tokenizer to train; None if `spec` names an existing one. Raises `ValueError`."""
    kind, colon, rest = spec.partition(":")
    if kind != "bpe" or not colon:
        return None
    if not rest.isdecimal():
        raise ValueError(f"--tokenizer {spec}: the number of tokens must be a whole number, as in bpe:4096")
    if len(rest) < 10 and int(rest) < 257:
        raise ValueError(f"--tokenizer {spec}: at least 257 tokens are needed, for all bytes and {END}")
    if len(rest) > 9 or int(rest) > MOST:
        raise ValueError(f"--tokenizer {spec}: at most {MOST:,} tokens")
    return int(rest)


def learn(texts: Sequence[str], vocabulary: int) -> BPE:
    """Trains a tokenizer of `vocabulary` tokens. Raises `ValueError` if the texts yield fewer."""
    return bpe.train(texts, vocabulary, (END,), option="the N of --tokenizer bpe:N")


def load(spec: str) -> BPE:
    """An existing tokenizer. Raises `ValueError` if `spec` names none."""
    kind, colon, rest = spec.partition(":")
    if kind == "gpt2" and colon:
        return _gpt2(Path(rest))
    path = Path(spec)
    if path.is_dir() and (path / "tokenizer.json").is_file():
        path = path / "tokenizer.json"
    if not path.is_file():
        raise ValueError(f"unknown tokenizer {spec!r}: there is no such file; give {FORMS}")
    return BPE(_text(path), str(path), (END,))


def _gpt2(folder: Path) -> BPE:
    """GPT-2's tokenizer, from tokenizer.json or from vocab.json and merges.txt."""
    if (folder / "tokenizer.json").is_file():
        return BPE(_text(folder / "tokenizer.json"), str(folder / "tokenizer.json"), (END,))
    vocabulary, merges = folder / "vocab.json", folder / "merges.txt"
    for path in (vocabulary, merges):
        if not path.is_file():
            raise ValueError(f"{path}: no such file; gpt2:FOLDER needs vocab.json and merges.txt, or tokenizer.json")
    return BPE(bpe.from_merges(vocabulary, merges), str(folder), (END,))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: byte {error.start}: not UTF-8 text ({error.reason})") from None
