"""The small persistent state of a belief-slot decoder: S slots, how layers read them, how they are updated, and how
they pass from one training row to the next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from statewise.backbones.nn.initialisation import Init, init_weights, std_of

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
        found = {name: tuple(tensor.shape) for name, tensor in kept.items()}
        wanted = {name: tuple(tensor.shape) for name, tensor in self.kept.items()}
        if found != wanted:
            raise ValueError(f"the state of the lanes has shapes {found}, not {wanted}")
        for name, tensor in kept.items():
            self.kept[name].copy_(tensor)
            self._written[name].copy_(tensor)
