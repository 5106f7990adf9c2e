"""The small persistent state of a belief-slot decoder: S slots, how layers read them, how they are updated, how they
pass from one training row to the next, and the decoder's caches, chunk by chunk."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import override

from statewise.backbones.nn.cache import Cache, KeyValueCache
from statewise.backbones.nn.layers import Init, init_weights, std_of

Pooling = Literal["last", "mean", "attention"]


def make_injection(kind: Literal["normed", "linear"], width: int, slots: int, init: Init) -> nn.Module:
    """A map from a state to what a layer adds to its residual stream, (..., S, D) -> (..., D); initially zero."""
    return LinearInjection(width, slots) if kind == "linear" else NormedInjection(width, slots, init)


def _std(init: Init, inputs: int) -> float:
    """Standard deviation of matrices that `gpt2` does not define: by fan-in, unless a number is given."""
    return std_of("fan_in" if init == "gpt2" else init, inputs)


class LinearInjection(nn.Module):
    """W state, for a state of S slots of width D (the note on belief states, "Injecting the State"). W (D, S D) has no
    bias and starts at zero; slots are not normalised."""

    def __init__(self, width: int, slots: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width, slots * width))

    def forward(self, state: Tensor) -> Tensor:
        """(..., S, D) -> (..., D)."""
        return F.linear(state.flatten(-2), self.weight)


class NormedInjection(nn.Module):
    """A linear map of the slots, each first normalised to length sqrt(D).

    The map has random initial directions, times a gain per channel that starts at zero. With `LinearInjection` models
    learn text far more slowly: see `docs/results/belief-slots.md`.
    """

    def __init__(self, width: int, slots: int, init: Init) -> None:
        super().__init__()
        self.directions = nn.Parameter(torch.randn(width, slots * width) * _std(init, slots * width))
        self.gain = nn.Parameter(torch.zeros(width))

    def forward(self, state: Tensor) -> Tensor:
        """(..., S, D) -> (..., D)."""
        added: Tensor = F.linear(F.rms_norm(state, state.shape[-1:]).flatten(-2), self.directions) * self.gain
        return added


class SlotUpdate(nn.Module):
    """state <- f(state, pooled hidden states of a chunk), for S slots of width D."""

    def __init__(
        self,
        width: int,
        slots: int,
        *,
        kind: Literal["ema", "gated"],
        pooling: Pooling,
        rate: float,
        learned_rate: bool,
        init: Init = "gpt2",
    ) -> None:
        super().__init__()
        self.slots, self.pooling = slots, pooling
        # From the last or mean state, one map makes all slots; attention pools per slot, so all slots share a map.
        self.in_proj = nn.Linear(width, width if pooling == "attention" else slots * width)
        self.query = nn.Parameter(torch.randn(slots, width) * _std(init, width)) if pooling == "attention" else None
        self.cell = nn.GRUCell(width, width) if kind == "gated" else None
        self.rate: nn.Parameter | None = None
        if kind == "ema":
            odds = torch.full((slots,), rate).logit()
            self.rate = nn.Parameter(odds, requires_grad=learned_rate)
        init_weights(self.in_proj if init == "gpt2" else self, init)  # `gpt2` leaves the cell to PyTorch

    @property
    def products(self) -> int:
        """Multiplications of the linear maps in one update."""
        pooled = self.slots if self.pooling == "attention" else 1
        cell = 0 if self.cell is None else self.cell.weight_ih.numel() + self.cell.weight_hh.numel()
        return pooled * self.in_proj.weight.numel() + self.slots * cell

    def forward(self, state: Tensor, hidden: Tensor, members: Tensor | None) -> Tensor:
        """The new state (B, S, D) from the old one and a chunk's last hidden states (B, T, D), those in `members`
        (B, T) only, at least one per row; None: all."""
        B, S, D = state.shape
        proposed = self.in_proj(self._pooled(hidden, members)).view(B, S, D)
        if self.cell is not None:
            dtype = torch.promote_types(proposed.dtype, state.dtype)
            with torch.autocast(state.device.type, enabled=False):  # on a GPU it would round what is carried on to bf16
                renewed: Tensor = self.cell(proposed.reshape(B * S, D).to(dtype), state.reshape(B * S, D).to(dtype))
            return renewed.view(B, S, D)
        assert self.rate is not None
        return state + self.rate.sigmoid()[:, None] * (proposed - state)

    def _pooled(self, hidden: Tensor, members: Tensor | None) -> Tensor:
        """(B, D), or (B, S, D) by attention."""
        if self.query is not None:
            scores = F.linear(hidden, self.query).transpose(1, 2) * hidden.shape[-1] ** -0.5
            if members is not None:
                scores = scores.masked_fill(~members[:, None], float("-inf"))
            return scores.softmax(-1) @ hidden
        if self.pooling == "last":
            if members is None:
                return hidden[:, -1]
            each = torch.arange(hidden.shape[1], device=hidden.device)
            return hidden[torch.arange(len(hidden), device=hidden.device), (each * members).amax(1)]
        if members is None:
            return hidden.mean(1)
        weights = members.to(hidden.dtype)
        return (hidden * weights[..., None]).sum(1) / weights.sum(1, keepdim=True)


class Lanes:
    """Tensors (lanes, ...) by name, kept from one training step to the next. A lane is a batch position whose rows are
    consecutive. Writes become visible after `advance`, so all passes over a batch within one step read the same values.

    Not buffers of a module: they are training state, not part of the model, and differ between processes.
    """

    def __init__(self, **kept: Tensor) -> None:
        self.kept = kept
        self._written = {name: tensor.clone() for name, tensor in kept.items()}

    def read(self, lane: Tensor) -> dict[str, Tensor]:
        """The values (B, ...) of the lanes (B,), as of the previous step."""
        return {name: tensor.index_select(0, lane) for name, tensor in self.kept.items()}

    def write(self, lane: Tensor, **new: Tensor) -> None:
        """Sets the values of the lanes (B,) to `new` (B, ...), detached, for the next step."""
        for name, tensor in new.items():
            written = self._written[name]
            written.index_copy_(0, lane, tensor.detach().to(written.dtype))

    def advance(self) -> None:
        """Ends the step: makes its writes visible."""
        for name, tensor in self.kept.items():  # in place, so that a compiled model keeps reading the same tensors
            tensor.copy_(self._written[name])

    def load(self, kept: Mapping[str, Tensor]) -> None:
        """Replaces all values. Raises `ValueError` if names or shapes differ."""
        shapes = {name: tuple(tensor.shape) for name, tensor in kept.items()}
        wanted = {name: tuple(tensor.shape) for name, tensor in self.kept.items()}
        if shapes != wanted:
            raise ValueError(f"the state of the lanes has shapes {shapes}, not {wanted}")
        for name, tensor in kept.items():
            self.kept[name].copy_(tensor)
            self._written[name].copy_(tensor)


class OpenChunk(NamedTuple):
    """A chunk that is being read or was read."""

    state: Tensor
    """(B, S, D): the state at the start of the chunk."""
    keys: KeyValueCache
    hidden: list[Tensor]
    """Last hidden states of the tokens read so far, (B, n, D) each."""

    def chosen(self, rows: Tensor) -> OpenChunk:
        """The chunk for some rows."""
        keys = self.keys.chosen(rows)
        return OpenChunk(self.state.index_select(0, rows), keys, [part.index_select(0, rows) for part in self.hidden])

    def joined(self, other: OpenChunk) -> OpenChunk:
        """The chunk with the rows of another one that has read as much; neither must be used afterwards."""
        self.keys.join(other.keys)
        read = self.hidden and other.hidden  # of no tokens, if all were forgotten again
        hidden = [torch.cat([torch.cat(part.hidden, dim=1) for part in (self, other)])] if read else []
        return OpenChunk(torch.cat((self.state, other.state)), self.keys, hidden)


class SlotCache:
    """The cache of rows of equal length: keys and values, last hidden states and initial state of each chunk, so that
    it can be rewound. Later chunks need only the last state, so only the last two chunks are kept, and all since
    `hold`."""

    def __init__(self, rows: int, layers: int, chunk: int) -> None:
        self.rows, self.layers, self.chunk, self.held = rows, layers, chunk, False
        self.length = 0
        self.chunks: list[OpenChunk] = []

    @property
    def room(self) -> int:
        """Tokens that still fit into the current chunk; 0 without a chunk."""
        return self.chunk - self.chunks[-1].keys.length if self.chunks else 0

    @property
    def remembered(self) -> int:
        """Positions by which the cache can be rewound."""
        return sum(part.keys.length for part in self.chunks)

    def open(self, state: Tensor) -> None:
        """Starts a chunk with `state` (B, S, D)."""
        if not self.held:
            del self.chunks[:-1]
        self.chunks.append(OpenChunk(state, KeyValueCache(self.rows, self.layers, most=self.chunk), []))

    def rewind(self, positions: int) -> None:
        """Forgets the last `positions`, at most `remembered`."""
        self.length -= positions
        while positions:
            keys, hidden = self.chunks[-1].keys, self.chunks[-1].hidden
            back = min(positions, keys.length)
            keys.rewind(back)
            positions -= back
            hidden[:] = [torch.cat(hidden, dim=1)[:, : keys.length]]
            if not keys.length and (len(self.chunks) > 1 or not self.length):
                self.chunks.pop()  # keep the first one: its state is all that is left of earlier chunks

    def chosen(self, rows: Tensor) -> SlotCache:
        """The cache for some rows, which may repeat."""
        other = SlotCache(len(rows), self.layers, self.chunk)
        other.held, other.length = self.held, self.length
        other.chunks = [part.chosen(rows) for part in self.chunks]
        return other

    def joined(self, other: SlotCache) -> SlotCache:
        """The cache with the rows of another one, of equal `length` and `room`; neither must be used afterwards.
        Remembers the chunks that both do."""
        both = SlotCache(self.rows + other.rows, self.layers, self.chunk)
        both.held, both.length = self.held, self.length
        pairs = zip(reversed(self.chunks), reversed(other.chunks))
        both.chunks = [own.joined(more) for own, more in pairs][::-1]
        return both

    def keep(self) -> dict[str, Tensor]:
        """The current or last chunk, and the total number of tokens read."""
        state, keys, hidden = self.chunks[-1]
        kept = {"state": state, "hidden": torch.cat(hidden, dim=1)}
        kept |= {"length": torch.tensor(self.length), "chunk": torch.tensor(self.chunk)}
        return kept | {f"keys.{layer}": both.clone() for layer, both in enumerate(keys.contents())}

    @classmethod
    def resume(cls, kept: Mapping[str, Tensor], layers: int, chunk: int) -> SlotCache:
        """A cache that continues from the result of `keep`; it cannot be rewound beyond that chunk."""
        cache = cls(len(kept["state"]), layers, chunk)
        cache.open(kept["state"])
        keys, hidden = cache.chunks[-1].keys, kept["hidden"]
        keys.begin(hidden.shape[1])
        for layer in range(layers):
            keys.append(layer, kept[f"keys.{layer}"].unbind())
        keys.advance()
        cache.chunks[-1].hidden.append(hidden)
        cache.length = int(kept["length"])
        return cache


class GroupedCache(Cache):
    """Groups of rows that have read the same number of tokens, with a cache for each group: chunks of rows of different
    length start at different tokens, so they cannot share a pass. Groups that come to equal lengths become one."""

    def __init__(self, rows: int, layers: int, chunk: int) -> None:
        super().__init__(rows)
        self.chunk = chunk
        self.groups = [(np.arange(rows), SlotCache(rows, layers, chunk))]
        """Row numbers and cache of each group."""

    @classmethod
    def resume(cls, kept: Mapping[str, Tensor], layers: int, chunk: int) -> GroupedCache:
        """A cache of one group that continues from the result of `keep`; see `SlotCache.resume`."""
        cache = cls(len(kept["state"]), layers, chunk)
        cache.groups = [(cache.groups[0][0], SlotCache.resume(kept, layers, chunk))]
        cache.lengths = cache.lengths + cache.groups[0][1].length
        return cache

    def split(self, counts: np.ndarray) -> list[tuple[np.ndarray, SlotCache, int]]:
        """Regroups rows so that each group has a single count. Returns row numbers, cache and count of each."""
        groups = []
        for rows, cache in self.groups:
            for count in np.unique(counts[rows]).tolist():
                here = np.flatnonzero(counts[rows] == count)
                own = cache if len(here) == len(rows) else cache.chosen(_index(here, cache))
                groups.append((rows[here], own, count))
        self.groups = [(rows, cache) for rows, cache, _ in groups]
        return groups

    def advance(self, counts: np.ndarray) -> None:
        """Counts the next `counts[b]` tokens of each row as read; the caches of the groups have read them."""
        self.lengths = self.lengths + counts
        self._merge()

    def keep(self) -> dict[str, Tensor]:
        """See `SlotCache.keep`. Raises `ValueError` unless all rows are in one group."""
        if len(self.groups) != 1:
            raise ValueError(
                f"the rows have read {self.lengths.tolist()} tokens, in {len(self.groups)} groups whose chunks differ: "
                "choose the rows of one group by `reorder` before keeping their state"
            )
        return self.groups[0][1].keep()

    @override
    def rewind(self, positions: int | np.ndarray) -> None:
        super().rewind(positions)
        self._merge()

    @override
    def join(self, other: Self) -> None:
        super().join(other)
        self._merge()

    def _merge(self) -> None:
        """Joins groups that have read as much, in chunks of equal offset, unless rows would lose what they may be
        rewound to: where `hold` was called, or otherwise by a chunk."""
        by_length: dict[tuple[int, int], list[tuple[np.ndarray, SlotCache]]] = {}
        for group in self.groups:
            if not len(group[0]):
                continue
            alike = by_length.setdefault((group[1].length, group[1].room), [])
            for place, known in enumerate(alike):
                if self._may_join(known, group):
                    alike[place] = _joined(known, group)
                    break
            else:
                alike.append(group)
        self.groups = [group for alike in by_length.values() for group in alike]

    def _may_join(self, *groups: tuple[np.ndarray, SlotCache]) -> bool:
        """Whether the chunks that all groups remember are those that each needs."""
        least = min(len(cache.chunks) for _, cache in groups)
        for rows, cache in groups:
            back = cache.length - int(self.held[rows].min()) if self.held is not None else self.chunk
            if sum(part.keys.length for part in cache.chunks[-least:]) < min(back, cache.remembered):
                return False
        return True

    @override
    def hold(self) -> None:
        super().hold()
        for _, cache in self.groups:
            cache.held = True

    @override
    def release(self) -> None:
        super().release()
        for _, cache in self.groups:
            cache.held = False

    @override
    def check_rewind(self, counts: np.ndarray) -> None:
        for rows, cache in self.groups:
            most = int(counts[rows].max(initial=0))
            if most > cache.remembered:
                raise ValueError(f"cannot go back {most} positions: {cache.remembered} are remembered")

    def _rewind(self, counts: np.ndarray) -> None:
        for _, cache, count in self.split(counts):
            cache.rewind(count)

    def _reorder(self, rows: Tensor, chosen: np.ndarray) -> None:
        groups = []
        for members, cache in self.groups:
            place = np.full(len(self.lengths), -1)
            place[members] = np.arange(len(members))
            here = np.flatnonzero(place[chosen] >= 0)
            if len(here):
                groups.append((here, cache.chosen(_index(place[chosen[here]], cache))))
        self.groups = groups

    def _join(self, other: Self) -> None:
        shift = len(self.lengths)
        self.groups = [*self.groups, *((rows + shift, cache) for rows, cache in other.groups)]
        if self.held is not None or other.held is not None:
            for _, cache in self.groups:
                cache.held = True


def _joined(first: tuple[np.ndarray, SlotCache], second: tuple[np.ndarray, SlotCache]) -> tuple[np.ndarray, SlotCache]:
    """Two groups as one, its rows in ascending order."""
    rows, cache = np.concatenate([first[0], second[0]]), first[1].joined(second[1])
    order = np.argsort(rows)
    return (rows, cache) if (order[1:] > order[:-1]).all() else (rows[order], cache.chosen(_index(order, cache)))


def _index(rows: np.ndarray, cache: SlotCache) -> Tensor:
    device = cache.chunks[-1].state.device if cache.chunks else None
    return torch.from_numpy(rows).to(device)
