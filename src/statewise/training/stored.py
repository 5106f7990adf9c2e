"""Tensors on disk: safetensors files that hold them whole or in pieces.

A piece is a range of rows, in the file of the process that held them. The metadata of each file say which rows its
pieces have, so that no other file is needed to join them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialise
from torch import Tensor

from statewise.runtime.json_files import COUNT, Shape, parse_json

ROWS: Shape = {...: {"first": COUNT, "of": COUNT}}
"""For each name, the first row of the piece in this file, and the number of rows of the whole tensor."""


class Writable(Protocol):
    """A file, or anything else that takes bytes."""

    def write(self, content: bytes, /) -> object:
        """Appends bytes."""


class Piece(NamedTuple):
    """Rows [first, first + len(rows)) of a tensor of `of` rows."""

    rows: Tensor
    first: int
    of: int


def pieces_as_bytes(pieces: Mapping[str, Piece | Tensor]) -> bytes:
    """The content of a file with pieces of some tensors and the whole of others. Pieces without rows are left out."""
    kept = {name: piece for name, piece in pieces.items() if isinstance(piece, Tensor) or len(piece.rows)}
    places = {name: {"first": p.first, "of": p.of} for name, p in kept.items() if isinstance(p, Piece)}
    tensors = {name: (p.rows if isinstance(p, Piece) else p).detach().contiguous() for name, p in kept.items()}
    return serialise(tensors, metadata={"rows": json.dumps(places)})


class Stored:
    """A tensor on disk. `stored[first:end]` reads some rows, `stored[:]` the whole tensor."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.pieces: list[tuple[int, int, Any]] = []
        """First row, end, and the open file, in order of the rows."""
        self.shape: tuple[int, ...] = ()
        self.kind = ""
        """The name of its type in safetensors files."""

    def __getitem__(self, rows: slice) -> Tensor:
        if not self.shape:
            whole: Tensor = self.pieces[0][2].get_tensor(self.name)
            return whole
        first, end, _ = rows.indices(self.shape[0])
        read = [
            file.get_slice(self.name)[max(first, start) - start : min(end, stop) - start]
            for start, stop, file in self.pieces
            if start < end and first < stop
        ]
        if not read:  # no rows
            _, _, file = self.pieces[0]
            read = [file.get_slice(self.name)[0:0]]
        return read[0] if len(read) == 1 else torch.cat(read)

    def check(self, folder: Path) -> None:
        """Raises `ValueError`, naming the folder, unless the pieces are the whole."""
        end = 0
        for start, stop, _ in self.pieces:
            if start != end:
                break
            end = stop
        if self.shape and end != self.shape[0]:
            raise ValueError(f"{folder}: rows from {end} on of {self.name} are missing or stored twice")


def open_stored(files: Sequence[Path]) -> dict[str, Stored]:
    """All tensors of files in one folder, by name. Raises `OSError`, and `ValueError` if one is damaged or lacks
    rows."""
    tensors: dict[str, Stored] = {}
    for path in files:
        try:
            file: Any = safe_open(path, "pt")
        except SafetensorError as error:
            raise ValueError(f"{path} is not a readable safetensors file: {error}") from None
        places = parse_json((file.metadata() or {}).get("rows", "{}"), ROWS, f"{path}: rows")
        for name in file.keys():  # noqa: SIM118
            part, place = file.get_slice(name), places.get(name)
            shape = part.get_shape()
            stored = tensors.setdefault(name, Stored(name))
            first, rows = (place["first"], place["of"]) if place else (0, shape[0] if shape else 0)
            stored.pieces.append((first, first + (shape[0] if shape else 0), file))
            stored.shape, stored.kind = (rows, *shape[1:]) if shape else (), part.get_dtype()
    for stored in tensors.values():
        stored.pieces.sort(key=lambda piece: piece[:2])
        stored.check(files[0].parent)
    return tensors


def write_joined(tensors: Mapping[str, Stored], file: Writable, most: int = 2**26) -> None:
    """Writes the tensors whole into one safetensors file, at most `most` bytes of them in memory at a time."""
    end, header = 0, {}
    for name, stored in tensors.items():
        size = _bytes(stored)
        header[name] = {"dtype": stored.kind, "shape": list(stored.shape), "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # the format aligns what follows
    file.write(len(text).to_bytes(8, "little") + text)
    for stored in tensors.values():
        for part in _parts(stored, most):
            file.write(part.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())


def _parts(stored: Stored, most: int) -> Iterator[Tensor]:
    if not stored.shape:
        yield stored[:]
        return
    rows = max(1, most * stored.shape[0] // max(1, _bytes(stored)))
    for first in range(0, stored.shape[0], rows):
        yield stored[first : min(first + rows, stored.shape[0])]


def _bytes(stored: Stored) -> int:
    each = stored[0:0] if stored.shape else stored[:]
    return math.prod(stored.shape) * each.element_size()


def read(tensor: Tensor | Stored) -> Tensor:
    """A whole tensor, which may be on disk."""
    return tensor if isinstance(tensor, Tensor) else tensor[:]
