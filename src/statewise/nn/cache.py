"""The keys and values of positions already read."""

from __future__ import annotations

import torch
from torch import Tensor


class KeyValueCache:
    """Keys and values per layer for rows of equal length. Grows as needed; can go back; can reorder rows."""

    def __init__(self, layers: int) -> None:
        self._buffers: list[Tensor | None] = [None] * layers
        self.length = 0

    def append(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Adds `key`, `value` (B, H, n, W) behind the positions so far; returns all of them (B, H, T + n, W).

        `length` moves only with `advance`, once all layers have been appended to.
        """
        end = self.length + key.shape[2]
        buffer = self._buffers[layer]
        if buffer is None or buffer.shape[3] < end:
            grown = key.new_empty(2, key.shape[0], key.shape[1], max(2 * end, 64), key.shape[3])
            if buffer is not None:
                grown[:, :, :, : self.length] = buffer[:, :, :, : self.length]
            self._buffers[layer] = buffer = grown
        buffer[0, :, :, self.length : end] = key
        buffer[1, :, :, self.length : end] = value
        return buffer[0, :, :, :end], buffer[1, :, :, :end]

    def advance(self, positions: int) -> None:
        """Counts `positions` more as read."""
        self.length += positions

    def rewind(self, positions: int) -> None:
        """Forgets the last `positions`. Raises `ValueError` if fewer have been read."""
        if not 0 <= positions <= self.length:
            raise ValueError(f"cannot go back {positions} positions: {self.length} have been read")
        self.length -= positions

    def hold(self) -> None:
        """Promises that `rewind` can come back to here, however much is read until then. This one always can; one that
        forgets must be told."""

    def reorder(self, rows: Tensor) -> None:
        """Row b becomes what row `rows[b]` was; rows may repeat or be left out. `rows` (B',) int64."""
        for layer, buffer in enumerate(self._buffers):
            if buffer is not None:
                self._buffers[layer] = torch.index_select(buffer, 1, rows)

    def contents(self) -> list[Tensor]:
        """Of each layer keys and values, (2, B, H, length, W)."""
        return [buffer[:, :, :, : self.length] for buffer in self._buffers if buffer is not None]
