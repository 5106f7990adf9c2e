"""The small persistent state of a belief-slot decoder: S slots, how a layer reads them, how they are renewed, and their
cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from statewise.nn.cache import KeyValueCache

Pooling = Literal["last", "mean", "attention"]


class Injection(nn.Module):
    """What a layer adds to its residual for a state of S slots of width D: a map of the slots, each of length sqrt(D).

    The map is its directions, drawn at random, times a gain for each channel that starts at zero: so the layer adds
    nothing at first. A map that is itself learned from zero made the learning of text far slower:
    see `docs/results/belief-slots.md`.
    """

    def __init__(self, width: int, slots: int) -> None:
        super().__init__()
        self.directions = nn.Parameter(torch.randn(width, slots * width) * (slots * width) ** -0.5)
        self.gain = nn.Parameter(torch.zeros(width))

    def forward(self, state: Tensor) -> Tensor:
        """(..., S, D) -> (..., D)."""
        added: Tensor = F.linear(F.rms_norm(state, state.shape[-1:]).flatten(-2), self.directions) * self.gain
        return added


class SlotUpdate(nn.Module):
    """state <- f(state, what a chunk came to), for S slots of width D."""

    def __init__(
        self,
        width: int,
        slots: int,
        *,
        kind: Literal["ema", "gated"],
        pooling: Pooling,
        rate: float,
        learned_rate: bool,
    ) -> None:
        super().__init__()
        self.slots, self.pooling = slots, pooling
        # From the last and the mean state one map makes all slots; attention pools for each slot, so one serves all.
        self.inward = nn.Linear(width, width if pooling == "attention" else slots * width)
        self.query = nn.Parameter(torch.randn(slots, width) * width**-0.5) if pooling == "attention" else None
        self.cell = nn.GRUCell(width, width) if kind == "gated" else None
        self.rate: nn.Parameter | None = None
        if kind == "ema":
            odds = torch.full((slots,), rate).logit()
            self.rate = nn.Parameter(odds, requires_grad=learned_rate)
        nn.init.normal_(self.inward.weight, std=0.02)
        nn.init.zeros_(self.inward.bias)

    @property
    def products(self) -> int:
        """Multiplications of its maps in one update."""
        pooled = self.slots if self.pooling == "attention" else 1
        cell = 0 if self.cell is None else self.cell.weight_ih.numel() + self.cell.weight_hh.numel()
        return pooled * self.inward.weight.numel() + self.slots * cell

    def forward(self, state: Tensor, hidden: Tensor, members: Tensor | None) -> Tensor:
        """The new state (B, S, D) from the old one and the last hidden states (B, T, D) of a chunk, of which those of
        `members` (B, T) count, at least one a row; None: all."""
        B, S, D = state.shape
        proposed = self.inward(self._pooled(hidden, members)).view(B, S, D)
        if self.cell is not None:
            dtype = torch.promote_types(proposed.dtype, state.dtype)
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


class OpenChunk(NamedTuple):
    """A chunk that is being read, or was."""

    state: Tensor
    """(B, S, D) with which it began."""
    keys: KeyValueCache
    hidden: list[Tensor]
    """Its last hidden states so far, (B, n, D) each."""


class SlotCache(KeyValueCache):
    """What a belief-slot decoder has read: chunk by chunk the keys and values, the last hidden states, and the state
    before it, so that it can go back over them. All that later chunks need of it is the last state, so no more than the
    last two chunks are remembered, but all from where `hold` was called."""

    def __init__(self, layers: int, chunk: int) -> None:
        super().__init__(layers)
        self.layers, self.chunk, self.held = layers, chunk, False
        self.chunks: list[OpenChunk] = []

    @property
    def room(self) -> int:
        """Tokens that still fit into the chunk that is being read; 0 if there is none."""
        return self.chunk - self.chunks[-1].keys.length if self.chunks else 0

    def open(self, state: Tensor) -> None:
        """Begins a chunk with `state` (B, S, D)."""
        if not self.held:
            del self.chunks[:-1]
        self.chunks.append(OpenChunk(state, KeyValueCache(self.layers, self.chunk), []))

    def append(
        self, layer: int, key: Tensor, value: Tensor, behind: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """See `KeyValueCache.append`: of the chunk that is being read."""
        return self.chunks[-1].keys.append(layer, key, value, behind)

    def advance(self, positions: int) -> None:
        """See `KeyValueCache.advance`."""
        self.chunks[-1].keys.advance(positions)
        self.length += positions

    def rewind(self, positions: int) -> None:
        """See `KeyValueCache.rewind`."""
        held = sum(part.keys.length for part in self.chunks)
        if positions > held:
            raise ValueError(f"cannot go back {positions} positions: {held} are remembered")
        super().rewind(positions)
        while positions:
            keys, hidden = self.chunks[-1].keys, self.chunks[-1].hidden
            back = min(positions, keys.length)
            keys.rewind(back)
            positions -= back
            hidden[:] = [torch.cat(hidden, dim=1)[:, : keys.length]]
            if not keys.length and (len(self.chunks) > 1 or not self.length):
                self.chunks.pop()  # else what came before is forgotten, and its state is all that tells of it

    def hold(self) -> None:
        """See `KeyValueCache.hold`."""
        self.held = True

    def reorder(self, rows: Tensor) -> None:
        """See `KeyValueCache.reorder`."""
        for place, (state, keys, hidden) in enumerate(self.chunks):
            keys.reorder(rows)
            kept = [part.index_select(0, rows) for part in hidden]
            self.chunks[place] = OpenChunk(state.index_select(0, rows), keys, kept)

    def keep(self) -> dict[str, Tensor]:
        """The chunk that is being read, or was last, and how much was read in all."""
        state, keys, hidden = self.chunks[-1]
        kept = {"state": state, "hidden": torch.cat(hidden, dim=1)}
        kept |= {"length": torch.tensor(self.length), "chunk": torch.tensor(self.chunk)}
        return kept | {f"keys.{layer}": both.clone() for layer, both in enumerate(keys.contents())}

    @classmethod
    def resume(cls, kept: Mapping[str, Tensor], layers: int, chunk: int) -> SlotCache:
        """One that goes on from there; it cannot go back behind the chunk."""
        cache = cls(layers, chunk)
        cache.open(kept["state"])
        for layer in range(layers):
            key, value = kept[f"keys.{layer}"].unbind()
            cache.append(layer, key, value)
        cache.chunks[-1].keys.advance(kept["hidden"].shape[1])
        cache.chunks[-1].hidden.append(kept["hidden"])
        cache.length = int(kept["length"])
        return cache
