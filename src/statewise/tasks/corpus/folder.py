"""A corpus on disk: token shards of two splits, the tokenizer, and an index that is written last.

index.json              counts, checksums, sources
tokenizer.json          the tokenizer, as the `tokenizers` package writes it
training-00000.npy ...  see `statewise.tasks.corpus.shards`
held-out-00000.npy ...
"""

from __future__ import annotations

import hashlib
import json
import re
from bisect import bisect_right
from collections.abc import Callable, Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from statewise.runtime.json_files import ANYTHING, COUNT, TEXT, Leaf, Shape, check, read_json
from statewise.runtime.messages import short
from statewise.runtime.overwriting import json_with
from statewise.tasks.corpus.encoding import token_type
from statewise.tasks.corpus.shards import Facts, Shard
from statewise.tasks.text.bpe import BPE, END

FORMAT = 1
INDEX, TOKENIZER = "index.json", "tokenizer.json"
SPLITS = ("training", "held_out")
FILES = (INDEX, TOKENIZER, "training-[0-9]*.npy", "held-out-[0-9]*.npy")
"""All files of a corpus, as patterns of `statewise.runtime.overwriting`."""
SIGNS = {INDEX: json_with("format", "tokenizer", "sides")}
"""Signs by which a corpus is recognised."""


_NAME = Leaf("the name of a shard", lambda value: isinstance(value, str) and re.fullmatch(r"[\w-]+", value) is not None)
_SHARD: Shape = {
    "name": _NAME,
    "tokens": COUNT,
    "documents": COUNT,
    **dict.fromkeys(("sha256", "ends_sha256", "sums_sha256"), TEXT),
}
_SPLIT: Shape = {"tokens": COUNT, "documents": COUNT, "words": COUNT, "bytes": COUNT, "shards": [_SHARD]}
INDEX_SHAPE: Shape = {
    "tokenizer": {"sha256": TEXT, "tokens": COUNT, "end?": TEXT},
    "documents": TEXT,
    "field": TEXT,
    "sides": dict.fromkeys(SPLITS, _SPLIT),
}


class Split:
    """The tokens of a split, as one stream over its shards."""

    def __init__(self, folder: Path, facts: Mapping[str, Any], kind: np.dtype) -> None:
        self.documents, self.words, self.size = facts["documents"], facts["words"], facts["bytes"]
        self.shards = [Shard(folder, shard, kind) for shard in facts["shards"]]
        self._stops = list(accumulate(shard.tokens for shard in self.shards))
        self._kind = kind

    def __len__(self) -> int:
        return self._stops[-1] if self.shards else 0

    def read(self, start: int, stop: int) -> np.ndarray:
        """(stop - start,) tokens; reads only the checksummed blocks that contain them."""
        parts = []
        for place in range(bisect_right(self._stops, start), len(self.shards)):
            shard, end = self.shards[place], self._stops[place]
            begin = end - shard.tokens
            if begin >= stop:
                break
            parts.append(shard.read(max(start, begin) - begin, min(stop, end) - begin))
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts) if parts else np.empty(0, self._kind)


class Corpus:
    """An existing corpus."""

    def __init__(self, folder: Path) -> None:
        """Raises `ValueError` if `folder` has none, it is incomplete, or its files do not belong together."""
        self.folder = folder
        index = read_index(folder)
        self.fingerprint: str = index["fingerprint"]
        self.separation: str = index["documents"]
        self.field: str = index["field"]
        self.tokenizer_sha256: str = index["tokenizer"]["sha256"]
        try:
            content = (folder / TOKENIZER).read_bytes()
        except OSError as error:
            raise ValueError(f"{folder / TOKENIZER}: {error.strerror or error}") from None
        if sha256(content) != self.tokenizer_sha256:
            raise ValueError(
                f"{folder / TOKENIZER}: not the tokenizer that this corpus was encoded with: its checksum does not "
                "match; restore the right one, or write the corpus again"
            )
        self.bpe = BPE(content.decode(errors="replace"), str(folder / TOKENIZER), (index["tokenizer"].get("end", END),))
        kind = token_type(self.bpe)
        self.training, self.held_out = (Split(folder, index["sides"][side], kind) for side in SPLITS)

    def check(self, progress: Callable[[int], None] = lambda tokens: None) -> None:
        """Reads every shard and compares all checksums; `progress` gets numbers of tokens read. Raises `ValueError`."""
        for split in (self.training, self.held_out):
            for shard in split.shards:
                shard.check(self.bpe.end, len(self.bpe.symbols))
                progress(shard.tokens)


def is_corpus(folder: Path) -> bool:
    """Whether the folder is a corpus."""
    return (folder / INDEX).is_file()


def read_index(folder: Path) -> dict[str, Any]:
    """The content of index.json. Raises `ValueError` if it is missing or was changed."""
    path = folder / INDEX
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such corpus: make one with `statewise data text FILE... --out {folder}`")
    if not path.is_file():
        raise ValueError(f"{folder}: not a corpus: it has no {INDEX}; make one with `statewise data text`")
    try:
        index: dict[str, Any] = read_json(path, {"format": ANYTHING, "fingerprint": TEXT})
        if index["format"] != FORMAT:
            raise ValueError(f"{path}: has format {short(index['format'])}, not {FORMAT}")
        if index["fingerprint"] != fingerprint(index):
            raise ValueError(f"{path}: was changed after it was written")
        check(index, INDEX_SHAPE, str(path))
    except ValueError as error:
        raise ValueError(f"{error}: this index cannot be used: write the corpus again") from None
    return index


def make_index(sides: Mapping[str, Mapping[str, Any]], tokenizer: bytes, bpe: BPE, *, read: Mapping[str, Any]) -> bytes:
    """The content of index.json. `sides`: counts and shards of each split; `tokenizer`: the file of `bpe`; `read`: how
    the text was read."""
    end = {} if bpe.end_symbol == END else {"end": bpe.end_symbol}
    index = {
        "format": FORMAT,
        "tokenizer": {"sha256": sha256(tokenizer), "tokens": len(bpe.symbols), **end},
        **read,
        "sides": sides,
    }
    return (json.dumps({**index, "fingerprint": fingerprint(index)}, indent=1) + "\n").encode()


def fingerprint(index: Mapping[str, Any]) -> str:
    """Checksum of the index without the paths of its sources; identifies the corpus of a run."""
    known = {key: value for key, value in index.items() if key not in ("fingerprint", "sources")}
    return sha256(json.dumps(known, sort_keys=True).encode())


def sha256(content: bytes) -> str:
    """Hexadecimal checksum."""
    return hashlib.sha256(content).hexdigest()


def split_facts(shards: list[Facts], words: int, size: int) -> dict[str, Any]:
    """The index entry of a split."""
    tokens, documents = (sum(shard[key] for shard in shards) for key in ("tokens", "documents"))
    return {"tokens": tokens, "documents": documents, "words": words, "bytes": size, "shards": shards}
