"""Keys and values of two streams: those that are read for ever are all kept, those of a window no longer than that."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from statewise.nn.cache import KeyValueCache
from statewise.nn.streams import Reach

SLACK = 32
"""Places by which a window's store may go back without having forgotten what is then to be read."""


class Read(NamedTuple):
    """What the queries of new places may have to read, one stream behind the other."""

    keys: Tensor
    """(B, H, K, W)"""
    values: Tensor
    """(B, H, K, W)"""


class RecentCache:
    """Keys and values of the last `reach` places, and of those by which it may go back: `SLACK`, or if that is more all
    since `hold`."""

    def __init__(self, layers: int, reach: int) -> None:
        self.reach = reach
        self.held = 0
        """Places that the store has in full."""
        self.since: int | None = None
        """Places read since `hold`; None: it was not called."""
        self._room = reach + 2 * SLACK
        self._buffers: list[Tensor | None] = [None] * layers

    def append(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Adds `key`, `value` (B, H, n, W); returns them behind those of the last `reach` places before."""
        new = key.shape[2]
        buffer, old = self._buffers[layer], min(self.held, self.reach)
        if buffer is None:
            buffer = key.new_empty(2, *key.shape[:2], self._room, key.shape[3])
            self._buffers[layer] = buffer
        if self.held + new <= self._room:
            buffer[0, :, :, self.held : self.held + new] = key
            buffer[1, :, :, self.held : self.held + new] = value
            both = buffer[:, :, :, self.held - old : self.held + new]
        else:
            joined = torch.cat((buffer[:, :, :, : self.held], torch.stack((key, value))), dim=3)
            both = joined[:, :, :, self.held - old :]
            kept, room = self._after(new)
            if room > self._room:
                self._buffers[layer] = buffer = key.new_empty(2, *key.shape[:2], room, key.shape[3])
            buffer[:, :, :, :kept] = joined[:, :, :, joined.shape[3] - kept :]
        return both[0], both[1]

    def _after(self, new: int) -> tuple[int, int]:
        """(places held, places that a buffer has room for) once `new` more are read."""
        whole = self.held + new
        if whole <= self._room:
            return whole, self._room
        back = SLACK if self.since is None else max(SLACK, self.since + new)
        kept = min(whole, self.reach + back)
        return kept, self._room if kept + SLACK <= self._room else 2 * kept

    def advance(self, places: int) -> None:
        """Counts `places` more as read."""
        self.held, self._room = self._after(places)
        if self.since is not None:
            self.since += places

    def hold(self) -> None:
        """See `KeyValueCache.hold`."""
        self.since = self.since or 0

    def check(self, places: int, left: int) -> None:
        """Raises `ValueError` if it cannot forget the last `places`, of which `left` remain in the whole sequence."""
        if self.held - places < min(self.reach, left):
            raise ValueError(
                f"cannot go back {places} places: a window of {self.reach} keeps {SLACK} more than it reads, or what "
                "was read since `hold`"
            )

    def rewind(self, places: int) -> None:
        """Forgets the last `places`, which `check` allows."""
        self.held -= places
        if self.since is not None:
            self.since = max(0, self.since - places)

    def reorder(self, rows: Tensor) -> None:
        """As `KeyValueCache.reorder`."""
        self._buffers = [None if each is None else each.index_select(1, rows) for each in self._buffers]

    @property
    def bytes(self) -> int:
        """What the store takes."""
        return sum(each.numel() * each.element_size() for each in self._buffers if each is not None)


class StreamCache(KeyValueCache):
    """A store for each stream, by how long its keys are read."""

    def __init__(self, layers: int, reach: Reach, most: int | None = None) -> None:
        super().__init__(0)
        self.reach = reach
        self._stores: list[KeyValueCache | RecentCache | None] = []
        for span in reach:
            if span is None:
                self._stores.append(KeyValueCache(layers, most))
            else:  # of a stream that is read at its own place alone nothing is to be kept
                self._stores.append(RecentCache(layers, span) if span > 0 else None)

    def append_streams(self, layer: int, parts: dict[int, tuple[Tensor, Tensor]]) -> Read:
        """Adds keys and values (B, H, n, W) of the new places, by stream; of a stream whose places are not read later
        there may be those of the last ones alone. Returns what the queries of the new places may read; `readable` says
        what it is."""
        first, *others = self._in_order(parts)
        behind = None
        for stream in others:
            store = self._stores[stream]
            behind = parts[stream] if store is None else store.append(layer, *parts[stream])
        store = self._stores[first]
        if isinstance(store, KeyValueCache):
            return Read(*store.append(layer, *parts[first], behind))
        own = parts[first] if store is None else store.append(layer, *parts[first])
        return Read(*own) if behind is None else Read(*(torch.cat(both, dim=2) for both in zip(own, behind)))

    def _in_order(self, streams: Iterable[int]) -> list[int]:
        """What is kept for ever first: behind it there is room for the other, which is short."""
        return sorted(streams, key=lambda stream: (self.reach[stream] is not None, stream))

    def readable(self, new: dict[int, int], device: torch.device) -> tuple[Tensor, Tensor]:
        """(K,) stream and (K,) place of each key that `append_streams` returns for `new` places by stream, before
        `advance`; all of them end at the last of the places to come."""
        streams, places = [], []
        end = self.length + max(new.values())
        for stream in self._in_order(new):
            count = new[stream]
            store = self._stores[stream]
            old = 0
            if isinstance(store, RecentCache):
                old = min(store.held, store.reach)
            elif store is not None:
                old = self.length
            streams.append(torch.full((old + count,), stream, device=device))
            places.append(
                torch.cat((torch.arange(self.length - old, self.length), torch.arange(end - count, end))).to(device)
            )
        return torch.cat(streams), torch.cat(places)

    def advance(self, positions: int) -> None:
        """See `KeyValueCache.advance`."""
        super().advance(positions)
        for store in self._stores:
            if store is not None:
                store.advance(positions)

    def rewind(self, positions: int) -> None:
        """See `KeyValueCache.rewind`; beyond what a window keeps it raises `ValueError`, and nothing is changed."""
        if 0 <= positions <= self.length:
            for store in self._stores:  # all are asked before the first one forgets
                if isinstance(store, RecentCache):
                    store.check(positions, self.length - positions)
        super().rewind(positions)
        for store in self._stores:
            if store is not None:
                store.rewind(positions)

    def hold(self) -> None:
        """See `KeyValueCache.hold`: from now on windows keep what going back may need."""
        for store in self._stores:
            if store is not None:
                store.hold()

    def reorder(self, rows: Tensor) -> None:
        """See `KeyValueCache.reorder`."""
        for store in self._stores:
            if store is not None:
                store.reorder(rows)
