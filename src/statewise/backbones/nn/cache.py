"""Caches of what a model has read so far. Rows may have read different numbers of tokens.

A pass over `tokens` (B, n), of which row b reads the first `counts[b]`: `begin` announces it, every layer adds its
vectors (`append`), and `advance` counts the tokens as read. Bookkeeping is NumPy on the host, so that no pass waits for
a GPU.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

SLACK = 32
"""Positions by which a store with a limited span can be rewound without `hold`."""


class Cache(ABC):
    """The number of positions that each of B rows has read. Subclasses store the rest."""

    def __init__(self, rows: int = 1) -> None:
        self.lengths = np.zeros(rows, np.int64)
        """(B,) tokens that each row has read."""
        self.held: np.ndarray | None = None
        """(B,) lengths to which `rewind` must be able to return; None: `hold` was not called."""

    @property
    def length(self) -> int:
        """The number of tokens that every row has read. Raises `ValueError` if rows differ."""
        if self.ragged:
            raise ValueError(f"the rows have read different numbers of tokens: {self.lengths.tolist()}")
        return int(self.lengths[0]) if len(self.lengths) else 0

    @property
    def ragged(self) -> bool:
        """Whether rows have read different numbers of tokens."""
        return bool((self.lengths != self.lengths[:1]).any())

    def rewind(self, positions: int | np.ndarray) -> None:
        """Forgets the last `positions` of every row, or the last `positions[b]` of row b. It can always return to
        where `hold` was called. Raises `ValueError`, and changes nothing, if a row has read fewer or if vectors needed
        there are no longer stored."""
        counts = np.empty_like(self.lengths)
        counts[:] = positions
        left = self.lengths - counts
        for read, back, rest in zip(self.lengths.tolist(), counts.tolist(), left.tolist()):
            if back < 0 or rest < 0:
                raise ValueError(f"cannot go back {back} positions: {read} have been read")
        self.check_rewind(counts)
        self._rewind(counts)
        self.lengths = left
        if self.held is not None:
            self.held = np.minimum(self.held, left)

    def hold(self) -> None:
        """Pins this position, so that later `rewind` calls can return to it, no matter how much is read in between."""
        if self.held is None:
            self.held = self.lengths.copy()

    @contextmanager
    def held_here(self) -> Iterator[None]:
        """Pins this position within the context; afterwards the previous pin is restored."""
        before = self.held
        self.hold()
        try:
            yield
        finally:
            if before is None:
                self.release()

    def release(self) -> None:
        """Undoes `hold`: vectors stored only because of it may be dropped."""
        self.held = None

    def reorder(self, rows: Tensor) -> None:
        """Replaces row b by the former row `rows[b]`; rows may repeat or be left out. `rows` (B',) int64."""
        chosen = rows.cpu().numpy()
        self._reorder(rows, chosen)
        self.lengths = self.lengths[chosen]
        if self.held is not None:
            self.held = self.held[chosen]

    def join(self, other: Self) -> None:
        """Appends the rows of another cache of the same model, which must not be used afterwards."""
        self._join(other)
        if self.held is not None or other.held is not None:
            self.held = np.concatenate([each.lengths if each.held is None else each.held for each in (self, other)])
        self.lengths = np.concatenate([self.lengths, other.lengths])

    def check_rewind(self, counts: np.ndarray) -> None:  # noqa: B027 -- most caches store everything
        """Raises `ValueError` if vectors needed to rewind row b by `counts[b]` positions are no longer stored."""

    @abstractmethod
    def _rewind(self, counts: np.ndarray) -> None:
        """Forgets the last `counts[b]` positions of row b. `lengths` has not been updated yet."""

    @abstractmethod
    def _reorder(self, rows: Tensor, chosen: np.ndarray) -> None:
        """See `reorder`; `chosen` is `rows` on the host. `lengths` has not been updated yet."""

    @abstractmethod
    def _join(self, other: Self) -> None:
        """See `join`. `lengths` has not been updated yet."""


def unless_all(counts: np.ndarray | None, new: int) -> np.ndarray | None:
    """`counts`, or None if every row reads all `new` tokens."""
    return None if counts is None or (counts == new).all() else np.asarray(counts, np.int64)


class _Pass(NamedTuple):
    """What `begin` decides for a pass."""

    new: int
    """Columns that the pass adds."""
    counts: np.ndarray
    """(B,) how many of them each row reads."""
    keep: int
    """Columns in use after the pass."""
    rebuild: bool
    """Whether the columns do not fit: `append` then makes new buffers of `room` columns, with those to keep."""
    kept: np.ndarray | None
    """(B, keep) columns to keep in a rebuild, -1: none; None: the last `keep` of all rows."""
    room: int


class PlaceStore(Cache):
    """Vectors of the positions read, for each layer, in columns shared by all rows.

    With a `span`, only the last `span` positions are read again; earlier ones are dropped, except for `SLACK` positions
    and those read since `hold`. A column holds the same position of every row until rows differ; from then on `places`
    gives the position in each row. Columns that a row does not use are masked, never zeroed: a key of zeros would still
    get weight. Buffers grow by doubling, up to `most` positions. `join` makes room for half as many rows again, so that
    the next rows to join, and those that move to the place of rows that left, are copied alone.
    """

    def __init__(self, rows: int = 1, layers: int = 1, span: int | None = None, most: int | None = None) -> None:
        super().__init__(rows)
        self.span, self.most = span, most
        self.columns = 0
        """The number of columns in use."""
        self._places: np.ndarray | None = None  # (B, room), of which `columns` are in use
        self._buffers: list[Tensor | None] = [None] * layers  # (P, at least B, H, room, W) each
        self._pass: _Pass | None = None

    @property
    def places(self) -> np.ndarray | None:
        """(B, columns) position of each row that each column holds, -1: none; None: the last positions of all rows."""
        return None if self._places is None else self._places[:, : self.columns]

    @property
    def dense(self) -> bool:
        """Whether every row uses every column, so that no mask is needed."""
        return self._places is None

    # One pass

    def begin(self, new: int, counts: np.ndarray | None = None) -> None:
        """Starts a pass of `new` columns, of which row b reads the first `counts[b]`; None: all."""
        counts = unless_all(counts, new)
        read_counts = np.full(len(self.lengths), new) if counts is None else counts
        if counts is not None or self._places is not None:
            self._add_places(new, read_counts)
        room = next((buffer.shape[3] for buffer in self._buffers if buffer is not None), 0)
        if self.columns == 0 and self.span is not None:
            room = self.span + 2 * SLACK
        keep = self.columns + new
        rebuild = keep > room and (self.span is not None or self._places is not None)
        kept = None
        if rebuild:
            after = self.lengths + read_counts
            least = np.zeros_like(after)
            if self.span is not None:
                back = SLACK if self.held is None else np.maximum(SLACK, after - self.held)
                least = np.maximum(0, after - self.span - back)
            if self._places is None:
                keep = min(keep, int(after[0] - least[0]) if len(after) else 0)
            else:
                places = self._places[:, :keep]
                kept = _right_aligned((places >= 0) & (places >= least[:, None]))
                keep = kept.shape[1]
            room = room if keep + SLACK <= room else 2 * keep
        self._pass = _Pass(new, read_counts, keep, rebuild, kept, room)

    def append(self, layer: int, new: Sequence[Tensor], behind: Sequence[Tensor] | None = None) -> Tensor:
        """Adds the P tensors `new` (B, H, n, W) to a layer. Returns all columns that the pass may read (P, B, H, K, W),
        in the order of `key_places`, followed by `behind`, P tensors (B, H, m, W) that are not stored; passing them
        here saves a copy."""
        assert self._pass is not None
        if self._pass.rebuild:
            return self._rebuild(layer, new, behind)
        end, more = self.columns + self._pass.new, 0 if behind is None else behind[0].shape[2]
        buffer = self._buffers[layer]
        if buffer is None or buffer.shape[3] < end + more:
            room = max(2 * (end + more), 64) if self.span is None else max(self._pass.room, end + more)
            if self.most is not None and self.span is None and end <= self.most:
                room = min(room, self.most + more)
            B, H, _, W = new[0].shape
            grown = new[0].new_empty(len(new), B if buffer is None else buffer.shape[1], H, room, W)
            if buffer is not None:
                grown[:, :B, :, : self.columns] = buffer[:, :B, :, : self.columns]
            self._buffers[layer] = buffer = grown
        used = self._rows_of(buffer)
        for number, part in enumerate(new):
            used[number, :, :, self.columns : end] = part
        for number, part in enumerate(behind or ()):
            used[number, :, :, end : end + more] = part
        return used[:, :, :, self._first() : end + more]

    def append_one(self, layer: int, new: Sequence[np.ndarray]) -> np.ndarray:
        """`append` of one column on a CPU, without gradients: P arrays `new` (B, H, W). Returns (P, B, H, K, W)."""
        assert self._pass is not None
        buffer, end = self._buffers[layer], self.columns + 1
        known = buffer is not None and not buffer.requires_grad and buffer.shape[3] >= end
        if buffer is None or not known or self._pass.rebuild:
            return self.append(layer, [torch.from_numpy(part)[:, :, None] for part in new]).detach().numpy()
        used = buffer.numpy()[:, : len(self.lengths)]
        for number, part in enumerate(new):
            used[number, :, :, self.columns] = part
        return used[:, :, :, self._first() : end]

    def _rows_of(self, buffer: Tensor) -> Tensor:
        """The rows of a buffer that are in use."""
        return buffer[:, : len(self.lengths)]

    def _rebuild(self, layer: int, new: Sequence[Tensor], behind: Sequence[Tensor] | None) -> Tensor:
        assert self._pass is not None
        buffer, joined, kept, keep = self._buffers[layer], torch.stack(tuple(new)), self._pass.kept, self._pass.keep
        P, rows, H, _, W = joined.shape
        if buffer is not None:
            joined = torch.cat((self._rows_of(buffer)[:, :, :, : self.columns], joined), dim=3)
        renewed = joined.new_empty(P, rows if buffer is None else buffer.shape[1], H, self._pass.room, W)
        if kept is None:
            renewed[:, :rows, :, :keep] = joined[:, :, :, joined.shape[3] - keep :]
        else:
            index = torch.from_numpy(np.maximum(kept, 0)).to(joined.device)[None, :, None, :, None]
            renewed[:, :rows, :, :keep] = joined.gather(3, index.expand(P, rows, H, keep, W))
        self._buffers[layer] = renewed
        read = joined[:, :, :, self._first() :]
        return read if behind is None else torch.cat((read, torch.stack(tuple(behind))), dim=3)

    def advance(self) -> None:
        """Counts the tokens of this pass as read."""
        assert self._pass is not None
        kept = self._pass.kept
        if kept is not None:
            assert self._places is not None
            self._places = np.where(kept >= 0, np.take_along_axis(self._places, np.maximum(kept, 0), 1), -1)
        self.columns, self.lengths = self._pass.keep, self.lengths + self._pass.counts
        self._pass = None
        self._simplify(self.lengths)

    def skip(self, positions: int) -> None:
        """Counts `positions` of every row as read without storing them, and drops all earlier ones; a pass must
        follow."""
        self.lengths, self.columns = self.lengths + positions, 0
        self._places = np.zeros((len(self.lengths), 0), np.int64) if self.ragged else None

    def key_places(self, device: torch.device) -> Tensor:
        """Position of each column that `append` returns in this pass: (K,), or (B, K) where rows differ, -1: none."""
        assert self._pass is not None
        first, end = self._first(), self.columns + self._pass.new
        if self._places is None:
            return torch.arange(end - first, device=device) + (self.length - self.columns + first)
        return torch.tensor(self._places[:, first:end], device=device)

    def _first(self) -> int:
        """The first column that the pass may read."""
        return 0 if self.span is None or self._places is not None else self.columns - min(self.columns, self.span)

    def _add_places(self, new: int, counts: np.ndarray) -> None:
        """Writes the places of the pass behind those of the columns in use."""
        end, before = self.columns + new, self._all_places()
        if self._places is None or self._places.shape[1] < end:
            self._places = np.full((len(self.lengths), max(2 * end, 64)), -1)
            self._places[:, : self.columns] = before
        column = np.arange(new)
        self._places[:, self.columns : end] = np.where(column < counts[:, None], self.lengths[:, None] + column, -1)

    def _all_places(self) -> np.ndarray:
        """`places`, written out if it is None."""
        places = self.places
        return self.lengths[:, None] - self.columns + np.arange(self.columns) if places is None else places

    def _simplify(self, lengths: np.ndarray) -> None:
        """Drops columns after the last used one, and `places` if it is redundant, for rows that have read `lengths`."""
        if self._places is None:
            return
        while self.columns and (self._places[:, self.columns - 1] < 0).all():
            self.columns -= 1
        if (lengths == lengths[:1]).all():
            last = lengths[:, None] - self.columns + np.arange(self.columns)
            if (last >= 0).all() and (self._places[:, : self.columns] == last).all():
                self._places = None

    # Between passes

    def last(self, layer: int) -> Tensor | None:
        """(P, B, H, W): the vectors of each row's last position, zeros for rows that have read none; None if no row has
        read any."""
        buffer = self._buffers[layer]
        if buffer is None or self.columns == 0:
            return None
        buffer, places = self._rows_of(buffer), self.places
        if places is None:
            return buffer[:, :, :, self.columns - 1]
        column = torch.from_numpy(np.maximum(0, _last_true(places >= 0))).to(buffer.device)
        entries = buffer[:, torch.arange(len(column), device=buffer.device), :, column].movedim(0, 1)
        empty = torch.from_numpy(self.lengths == 0).to(buffer.device)
        return entries.masked_fill(empty[None, :, None, None], 0.0)

    def since(self, lengths: np.ndarray) -> Tensor:
        """(P, B, H, m, W): the first layer's vectors of each row's positions from `lengths[b]` on, in order; m is the
        largest number of them, and what follows a row's last is meaningless. All of them must be stored."""
        first_layer = self._buffers[0]
        assert first_layer is not None
        buffer, behind = self._rows_of(first_layer), self.lengths - lengths
        first = self.columns - int(behind.max(initial=0))
        if self._places is None and (behind == behind[:1]).all():
            return buffer[:, :, :, first : self.columns]
        columns = np.argsort(self._all_places() < lengths[:, None], axis=1, kind="stable")[:, : int(behind.max())]
        index = torch.from_numpy(columns).to(buffer.device)[None, :, None, :, None]
        return buffer.gather(3, index.expand(*buffer.shape[:3], columns.shape[1], buffer.shape[4]))

    def contents(self) -> list[Tensor]:
        """The columns in use of each layer, (P, B, H, columns, W), in the order of `places`."""
        return [self._rows_of(buffer)[:, :, :, : self.columns] for buffer in self._buffers if buffer is not None]

    @property
    def bytes(self) -> int:
        """Size of the buffers in bytes."""
        return sum(each.numel() * each.element_size() for each in self._buffers if each is not None)

    def chosen(self, rows: Tensor) -> Self:
        """A copy of some rows, which may repeat. `rows` (B',) int64."""
        other = copy.copy(self)
        other._buffers = [None] * len(self._buffers)
        other.reorder(rows)
        other._buffers = [None if buffer is None else self._copied(buffer, rows) for buffer in self._buffers]
        return other

    def _copied(self, buffer: Tensor, rows: Tensor) -> Tensor:
        """A new buffer of some rows, without room for more."""
        renewed = buffer.new_empty(buffer.shape[0], len(rows), *buffer.shape[2:])
        used = slice(None, self.columns)  # what is behind them is written before it is read
        renewed[:, :, :, used] = torch.index_select(buffer[:, :, :, used], 1, rows.to(buffer.device))
        return renewed

    @override
    def check_rewind(self, counts: np.ndarray) -> None:
        if self.span is None:
            return
        left, places = self.lengths - counts, self.places
        if places is None:
            oldest = self.lengths - self.columns
        else:
            oldest = np.where(places >= 0, places, np.iinfo(np.int64).max).min(1, initial=2**62)
        if ((oldest > np.maximum(0, left - self.span)) & (left > 0)).any():
            raise ValueError(
                f"cannot go back {int(counts.max())} positions: a window of {self.span} stores {SLACK} more than it "
                "reads, or all positions since `hold`"
            )

    def _rewind(self, counts: np.ndarray) -> None:
        if self._places is None and (counts == counts[:1]).all():
            self.columns -= min(self.columns, int(counts[0])) if len(counts) else 0
            return
        places, left = self._all_places(), self.lengths - counts
        self._places = np.where(places < left[:, None], places, -1)
        self._simplify(left)

    def _reorder(self, rows: Tensor, chosen: np.ndarray) -> None:
        moved = np.flatnonzero(chosen != np.arange(len(chosen)))
        for layer, buffer in enumerate(self._buffers):
            if buffer is None:
                continue
            fits = buffer.shape[1] / 4 <= len(chosen) <= buffer.shape[1]  # what few rows need does not stay large
            if 2 * len(moved) > len(chosen) or not fits or _recorded(buffer):
                self._buffers[layer] = self._copied(buffer, rows)
            elif len(moved):
                here, there = (torch.from_numpy(each).to(buffer.device) for each in (moved, chosen[moved]))
                used = buffer[:, :, :, : self.columns]
                used[:, here] = used[:, there]
        if self._places is not None:
            self._places = self._places[chosen]
            self._simplify(self.lengths[chosen])

    def _join(self, other: Self) -> None:
        own_rows, rows = len(self.lengths), len(self.lengths) + len(other.lengths)
        width = max(self.columns, other.columns)
        if (
            self.columns == other.columns
            and self._places is None
            and other._places is None
            and np.array_equal(self.lengths[:1], other.lengths[:1])
        ):
            places = None
        else:
            places = np.full((rows, width), -1)
            places[:own_rows, width - self.columns :] = self._all_places()
            places[own_rows:, width - other.columns :] = other._all_places()
        for layer, (own, more) in enumerate(zip(self._buffers, other._buffers)):
            known = own if own is not None else more
            if known is None:
                continue
            parts = [(more, other, slice(own_rows, rows))]
            fits = own is not None and own.shape[1] >= rows and width == self.columns
            if own is not None and fits and not _recorded(own):
                joined = own
            else:
                room = max([width, *(each.shape[3] for each in (own, more) if each is not None)])
                spare = 0 if own is None else rows // 2
                joined = known.new_empty(known.shape[0], rows + spare, known.shape[2], room, known.shape[4])
                parts.append((own, self, slice(None, own_rows)))
            for buffer, store, part in parts:
                first = width - store.columns
                # Unused columns are masked, but must be finite: infinity times a weight of zero is NaN.
                joined[:, part, :, :first] = 0.0
                if buffer is not None:
                    joined[:, part, :, first:width] = store._rows_of(buffer)[:, :, :, : store.columns]
            self._buffers[layer] = joined
        self.columns, self._places = width, places


class KeyValueCache(PlaceStore):
    """Keys and values of all positions in every layer."""

    def append_keys(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Adds `key`, `value` (B, H, n, W); returns all columns that the pass may read, (B, H, K, W) each."""
        both = self.append(layer, (key, value))
        return both[0], both[1]


def _recorded(buffer: Tensor) -> bool:
    """Whether autograd may need what a buffer holds now or did before, so that its rows must not be overwritten."""
    return torch.is_grad_enabled() or buffer.requires_grad


def _right_aligned(used: np.ndarray) -> np.ndarray:
    """(B, C) bool -> (B, m): the used columns of each row in order, left-padded with -1."""
    counts = used.sum(1)
    width = int(counts.max(initial=0))
    order = np.argsort(used, axis=1, kind="stable")  # unused ones first
    chosen = order[:, used.shape[1] - width :]
    return np.where(np.arange(width) >= width - counts[:, None], chosen, -1)


def _last_true(mask: np.ndarray) -> np.ndarray:
    """(B, C) bool -> (B,): the last true column of each row; -1: none."""
    return np.where(mask.any(1), mask.shape[1] - 1 - np.argmax(mask[:, ::-1], axis=1), -1)
