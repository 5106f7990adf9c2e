"""The key-value cache of two streams: all positions of a stream with unlimited reach, otherwise those in its window."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from statewise.backbones.nn.cache import Cache, PlaceStore, unless_all
from statewise.backbones.nn.masks import Reach


class Read(NamedTuple):
    """The keys and values that queries at new places may read, streams concatenated."""

    keys: Tensor
    """(B, H, K, W)"""
    values: Tensor
    """(B, H, K, W)"""


class StreamCache(Cache):
    """A store for each stream, whose span is the stream's reach."""

    def __init__(self, rows: int, layers: int, reach: Reach, most: int | None = None) -> None:
        super().__init__(rows)
        self.reach = reach
        # A stream that is read at its own place only needs no store.
        self._of_streams = [
            None if span is not None and span <= 0 else PlaceStore(rows, layers, span, most) for span in reach
        ]
        self._new = 0
        self._counts: np.ndarray | None = None

    def begin(self, new: int, counts: np.ndarray | None = None) -> None:
        """Announces a pass to all stores; see `PlaceStore.begin`."""
        self._new, self._counts = new, unless_all(counts, new)
        for store in self.stores:
            store.begin(new, self._counts)

    def append_streams(self, layer: int, parts: dict[int, tuple[Tensor, Tensor]]) -> Read:
        """Adds keys and values (B, H, n, W) of the new places, by stream. Returns all that queries at the new places
        may read; `readable` gives their streams and places."""
        first, *others = self._in_order(parts)
        behind = None
        for stream in others:
            store = self._of_streams[stream]
            behind = parts[stream] if store is None else store.append(layer, parts[stream])
        store = self._of_streams[first]
        if store is not None:
            return Read(*store.append(layer, parts[first], None if behind is None else tuple(behind)))
        own = parts[first]
        return Read(*own) if behind is None else Read(*(torch.cat(both, dim=2) for both in zip(own, behind)))

    def _in_order(self, streams: Iterable[int]) -> list[int]:
        """Streams with unlimited reach first: their buffers have room to append the other, which is short."""
        return sorted(streams, key=lambda stream: (self.reach[stream] is not None, stream))

    def readable(self, streams: Iterable[int], device: torch.device) -> tuple[Tensor, Tensor]:
        """Stream (K,) and place (K,), or (B, K) where rows differ, of each key that `append_streams` returns for new
        places of `streams`, before `advance`. Place -1: no key."""
        numbers, places = [], []
        for stream in self._in_order(streams):
            store = self._of_streams[stream]
            place = self.new_places(device) if store is None else store.key_places(device)
            numbers.append(torch.full(place.shape[-1:], stream, device=device))
            places.append(place)
        if any(place.dim() == 2 for place in places):
            places = [place.expand(len(self.lengths), -1) for place in places]
        return torch.cat(numbers), torch.cat(places, dim=-1)

    def new_places(self, device: torch.device) -> Tensor:
        """The places that this pass adds: (n,), or (B, n) where rows differ, -1 for columns that a row skips."""
        column = np.arange(self._new)
        if self._counts is None and not self.ragged:
            return torch.from_numpy(self.length + column).to(device)
        counts = np.full(len(self.lengths), self._new) if self._counts is None else self._counts
        places = np.where(column < counts[:, None], self.lengths[:, None] + column, -1)
        return torch.from_numpy(places).to(device)

    def advance(self) -> None:
        """Counts the tokens of the pass as read in all stores."""
        for store in self.stores:
            store.advance()
        self.lengths = self.lengths + (self._new if self._counts is None else self._counts)

    @override
    def hold(self) -> None:
        super().hold()
        for store in self.stores:
            store.hold()

    @override
    def release(self) -> None:
        super().release()
        for store in self.stores:
            store.release()

    @property
    def bytes(self) -> int:
        """Size of the stores in bytes."""
        return sum(store.bytes for store in self.stores)

    @property
    def stores(self) -> list[PlaceStore]:
        """The stores of the streams that are read at later places."""
        return [store for store in self._of_streams if store is not None]

    @override
    def check_rewind(self, counts: np.ndarray) -> None:
        for store in self.stores:
            store.check_rewind(counts)

    def _rewind(self, counts: np.ndarray) -> None:
        for store in self.stores:
            store.rewind(counts)

    def _reorder(self, rows: Tensor, chosen: np.ndarray) -> None:
        for store in self.stores:
            store.reorder(rows)

    def _join(self, other: Self) -> None:
        for own, more in zip(self.stores, other.stores):
            own.join(more)
