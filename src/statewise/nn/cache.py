"""The keys and values of positions already read."""

from __future__ import annotations

import torch
from torch import Tensor


class KeyValueCache:
    """Keys and values per layer for rows of equal length. Grows as needed, by doubling, but sets no more aside than for
    the `most` positions that there will be; can go back; can reorder rows."""

    def __init__(self, layers: int, most: int | None = None) -> None:
        self._buffers: list[Tensor | None] = [None] * layers
        self._most = most
        self.length = 0

    def append(
        self, layer: int, key: Tensor, value: Tensor, behind: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Adds `key`, `value` (B, H, n, W) behind the positions so far; returns all of them (B, H, T + n, W), and
        `behind` them other keys and values (B, H, m, W), which are not kept: so no whole copy is made to join them.

        `length` moves only with `advance`, once all layers have been appended to.
        """
        end = self.length + key.shape[2]
        more = 0 if behind is None else behind[0].shape[2]
        buffer = self._buffers[layer]
        if buffer is None or buffer.shape[3] < end + more:
            room = max(2 * (end + more), 64)
            if self._most is not None and end <= self._most:
                room = min(room, self._most + more)
            grown = key.new_empty(2, key.shape[0], key.shape[1], room, key.shape[3])
            if buffer is not None:
                grown[:, :, :, : self.length] = buffer[:, :, :, : self.length]
            self._buffers[layer] = buffer = grown
        buffer[0, :, :, self.length : end] = key
        buffer[1, :, :, self.length : end] = value
        if behind is not None:
            buffer[0, :, :, end : end + more], buffer[1, :, :, end : end + more] = behind
        return buffer[0, :, :, : end + more], buffer[1, :, :, : end + more]

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
