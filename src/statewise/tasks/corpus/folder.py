"""A corpus on disk: token shards of two splits, the tokenizer, and an index that is written last.

index.json              counts, checksums, sources
tokenizer.json          the tokenizer, as the `tokenizers` package writes it
training-00000.npy ...  token ids of concatenated documents
held-out-00000.npy ...

A shard NAME is three files. Beside NAME.npy, NAME.ends.npy has uint64, the offset after the last token of each document
that ends in the shard (a document may continue in the next shard), and NAME.sums.npy uint32, the CRC-32 of each block
of tokens, so that damage is found when a block is first read.

Tokens are read from the file at each access, not mapped into memory: mapped pages count as memory of the process, which
would grow to the size of the corpus, and a file that is cut while it is mapped kills the process.
"""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from bisect import bisect_right
from collections.abc import Callable, Mapping
from io import FileIO
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from statewise.runtime.durable import Checked, errors_of
from statewise.runtime.json_files import ANYTHING, COUNT, TEXT, Leaf, Shape, check, read_json
from statewise.runtime.messages import short
from statewise.runtime.overwriting import json_with
from statewise.tasks.corpus.encoding import token_type
from statewise.tasks.text.bpe import BPE, END

BLOCK = 2**16
"""Tokens per checksum."""
HEADER = 128
"""Bytes of the .npy header as written here."""

Facts = dict[str, Any]
"""The index entry of a shard."""


class ShardWriter:
    """Writes a stream of documents as shards `STEM-00000`, `STEM-00001` and so on."""

    def __init__(self, folder: Path, stem: str, kind: np.dtype, shard_tokens: int) -> None:
        self.folder, self.stem, self.kind, self.shard_tokens = folder, stem, kind, shard_tokens
        self.shards: list[Facts] = []
        self._file: Checked | None = None
        self._waiting: list[np.ndarray] = []
        self._waiting_tokens = 0
        self._ends: list[int] = []  # of documents that are not written yet, counted over all shards
        self._given, self._written = 0, 0

    def add(self, tokens: np.ndarray, *, last: bool) -> None:
        """Adds a document, or its next part."""
        self._waiting.append(tokens)
        self._waiting_tokens += len(tokens)
        self._given += len(tokens)
        if last:
            self._ends.append(self._given)
        if self._waiting_tokens >= BLOCK:
            self._flush(everything=False)

    def close(self) -> list[Facts]:
        """Writes what is left. Returns the index entries of all shards."""
        self._flush(everything=True)
        if self._file is not None:
            self._finish()
        return self.shards

    def _flush(self, *, everything: bool) -> None:
        tokens = np.concatenate(self._waiting) if self._waiting else np.empty(0, self.kind)
        start = 0
        while start < len(tokens):
            size = min(BLOCK, self.shard_tokens - self._in_shard if self._file else self.shard_tokens)
            if len(tokens) - start < size and not everything:
                break
            self._write_block(tokens[start : start + size])
            start += size
        self._waiting = [tokens[start:]]
        self._waiting_tokens = max(0, len(tokens) - start)

    def _write_block(self, tokens: np.ndarray) -> None:
        content = tokens.astype(self.kind, copy=False).tobytes()
        if self._file is None:
            self._name = f"{self.stem}-{len(self.shards):05}"
            self._in_shard, self._sums, self._digest = 0, list[int](), hashlib.sha256()
        path = self.folder / f"{self._name}.npy"
        with errors_of(path):
            if self._file is None:
                self._file = Checked(path, head=HEADER)
            self._file.write(content)
        self._digest.update(content)
        self._sums.append(zlib.crc32(content))
        self._in_shard += len(tokens)
        if self._in_shard == self.shard_tokens:
            self._finish()

    def _finish(self) -> None:
        assert self._file is not None
        with errors_of(self.folder / f"{self._name}.npy"):
            self._file.settle(_header(self.kind, self._in_shard))
        self._file = None
        count = int(np.searchsorted(self._ends, self._written + self._in_shard, side="right"))
        ends = np.array(self._ends[:count], np.uint64) - np.uint64(self._written)
        self._ends = self._ends[count:]
        self._written += self._in_shard
        self.shards.append(
            {
                "name": self._name,
                "tokens": self._in_shard,
                "sha256": self._digest.hexdigest(),
                "documents": count,
                "ends_sha256": self._write_array("ends", ends),
                "sums_sha256": self._write_array("sums", np.array(self._sums, np.uint32)),
            }
        )

    def _write_array(self, what: str, array: np.ndarray) -> str:
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
        path = self.folder / f"{self._name}.{what}.npy"
        with errors_of(path):
            file = Checked(path)
            try:
                file.write(_header(array.dtype, len(array)) + array.tobytes())
                file.settle()
            finally:
                file.close()
        return hashlib.sha256(array.tobytes()).hexdigest()


class Shard:
    """A shard on disk. Raises `ValueError`, naming the file, as soon as damage is found."""

    def __init__(self, folder: Path, facts: Facts, kind: np.dtype) -> None:
        self.facts, self.kind, self.tokens = facts, kind, int(facts["tokens"])
        self.path = folder / f"{facts['name']}.npy"
        self._sums: np.ndarray | None = None
        for what, size, numbers in (
            ("", kind.itemsize, self.tokens),
            (".ends", 8, facts["documents"]),
            (".sums", 4, -(-self.tokens // BLOCK)),
        ):
            path = self._file(what)
            there = path.stat().st_size if path.is_file() else None
            if there != HEADER + size * numbers:
                problem = "is missing" if there is None else f"has {there:,} bytes, not {HEADER + size * numbers:,}"
                raise ValueError(f"{path}: this file of the corpus {problem}: copy or write the corpus again")

    def read(self, start: int, stop: int) -> np.ndarray:
        """(stop - start,) tokens. Each block's checksum is verified when it is first read."""
        if self._sums is None:
            self._check_header(self.path, self.kind)
            self._sums = self._load(".sums", np.dtype("<u4"))
            self._good = bytearray(len(self._sums))
        with open(self.path, "rb", buffering=0) as file:
            for block in range(start // BLOCK, -(-stop // BLOCK)):
                if self._good[block]:
                    continue
                end = min((block + 1) * BLOCK, self.tokens)
                if zlib.crc32(self._part(file, block * BLOCK, end)) != self._sums[block]:
                    raise self._damaged(self.path, f" in tokens {block * BLOCK:,} to {(block + 1) * BLOCK:,}")
                self._good[block] = 1
            return np.frombuffer(self._part(file, start, stop), self.kind)

    def _part(self, file: FileIO, start: int, stop: int) -> bytearray:
        content = bytearray((stop - start) * self.kind.itemsize)
        rest = memoryview(content)
        file.seek(HEADER + start * self.kind.itemsize)
        while len(rest) and (count := file.readinto(rest)):  # one call of the system may read less
            rest = rest[count:]
        if len(rest):
            raise ValueError(f"{self.path}: this file was truncated while in use: copy or write the corpus again")
        return content

    def ends(self) -> np.ndarray:
        """Offsets after the last tokens of documents."""
        return self._load(".ends", np.dtype("<u8"))

    def check(self, end: int, vocabulary: int) -> None:
        """Reads and verifies everything."""
        digest, ends, largest = hashlib.sha256(), [], 0
        for start in range(0, self.tokens, BLOCK):
            content = self.read(start, min(start + BLOCK, self.tokens))
            digest.update(content.tobytes())
            ends.append(start + np.flatnonzero(content == end) + 1)
            largest = max(largest, int(content.max()))
        if digest.hexdigest() != self.facts["sha256"]:
            raise self._damaged(self.path, "")
        if not np.array_equal(np.concatenate(ends), self.ends()) or largest >= vocabulary:
            raise ValueError(f"{self.path}: its tokens do not match the tokenizer and the ends of documents")

    def _file(self, what: str) -> Path:
        return self.path.with_name(f"{self.facts['name']}{what}.npy")

    def _check_header(self, path: Path, kind: np.dtype) -> None:
        """Raises `ValueError` if the header is not the one that was written: a damaged one is never parsed."""
        with open(path, "rb") as file:
            if file.read(HEADER) != _header(kind, (path.stat().st_size - HEADER) // kind.itemsize):
                raise self._damaged(path, " in its header")

    def _load(self, what: str, kind: np.dtype) -> np.ndarray:
        path = self._file(what)
        self._check_header(path, kind)
        numbers = np.fromfile(path, kind, offset=HEADER)
        if hashlib.sha256(numbers.tobytes()).hexdigest() != self.facts[f"{what[1:]}_sha256"]:
            raise self._damaged(path, "")
        return numbers

    def _damaged(self, path: Path, where: str) -> ValueError:
        return ValueError(f"{path}: damaged{where}: its checksum does not match: copy or write the corpus again")


def _header(kind: np.dtype, count: int) -> bytes:
    """The .npy header of `count` numbers, of fixed size so that it can be written last."""
    text = f"{{'descr': '{kind.str}', 'fortran_order': False, 'shape': ({count},), }}"
    return b"\x93NUMPY\x01\x00" + (HEADER - 10).to_bytes(2, "little") + text.ljust(HEADER - 11).encode() + b"\n"


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
