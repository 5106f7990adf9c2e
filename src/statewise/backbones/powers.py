"""What some backbones can do beyond `Backbone`, each as a type that a backbone declares."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from statewise.backbones.base import Backbone
from statewise.carried_state.protocol import StateProtocol
from statewise.nn.cache import Cache
from statewise.types import Batch, Hidden

PROMPT_POSITIONS = 4096
"""Positions of prompts that are read at a time, counted over rows and streams. What a pass holds of them besides keys
and values does not grow with the prompts then; fewer at a time are slower."""


class Branching(Backbone):
    """Its last block can be replicated over a shared trunk."""

    @abstractmethod
    def trunk(self, batch: Batch) -> Any:
        """What all last blocks read, of a batch: handed to `last`, or to what `make_branch` gave."""

    @abstractmethod
    def last(self, trunk: Any) -> Hidden:
        """The rest of `encode`: its own last block and norm."""

    @abstractmethod
    def trunk_state(self, trunk: Any) -> Tensor:
        """(B, T, D): the tensor that all last blocks read."""

    @abstractmethod
    def make_branch(self) -> nn.Module:
        """A new last block with its norm, which maps what `trunk` gives to (B, T, D)."""


class ReadoutOnly(Backbone):
    """It has the readouts of a batch for less than `encode` takes."""

    @abstractmethod
    def readouts(self, batch: Batch) -> Tensor:
        """`Hidden.readout` of `encode`, (B, T, D)."""


class PromptReader(Backbone):
    """It reads a prompt, of which the last position alone is asked, for less than it reads what is generated."""

    @abstractmethod
    def read_prompt(self, tokens: Tensor, cache: Any) -> Hidden:
        """`Hidden` of the last position alone, (B, 1, ...) each, with all of `tokens` (B, T) read into the cache."""


class Counted(Backbone):
    """Its floating-point operations are known."""

    @abstractmethod
    def flops(self, length: int) -> float:
        """Operations that the readouts of one document of so many tokens need, the head left out. Matrix products
        alone, two operations a multiplication and addition; of attention, the pairs of positions that the model
        allows, whatever its implementation computes and masks."""


class Phased(Backbone):
    """It works differently as training goes on."""

    @abstractmethod
    def set_progress(self, fraction: float) -> None:
        """Called before each training step with the fraction of training completed, in [0, 1]; 1 when finished. What
        inference must know of it belongs into a buffer."""


class Noted(Backbone):
    """There may be something that a person should know before it is trained."""

    @property
    @abstractmethod
    def notes(self) -> list[str]:
        """Sentences, or none."""


class Followed(Backbone):
    """Every use of its parameters in a forward pass can be followed."""

    @property
    @abstractmethod
    def streams(self) -> tuple[Literal["input", "prediction"], ...]:
        """What a position is made of, as the backbone stands."""

    @abstractmethod
    def every_stream(self, tokens: Tensor, cache: Any = None) -> tuple[Tensor, int]:
        """(B, S, T, D) of every stream and the number of the one that is the readout, for `tokens` (B, T) behind what
        the cache holds. Every map is applied to every stream of every position of every row, used or not."""


class Fetching(Backbone):
    """Its predictions attend to the inputs of their own positions."""

    @abstractmethod
    def fetches(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """(B, T, L, H): the attention weight of each position's prediction on its own input, by layer and head; and
        (B, T): how many keys the prediction reads. Without meaning on padding. Raises `ValueError` if there is no
        prediction, as the backbone stands."""


class Limitable(Backbone):
    """Its memory can be cut short."""

    @abstractmethod
    def limited(self, places: int) -> Limitable:
        """One with the same parameters, whose kept keys are read for `places` positions onwards only; 0: at their own
        alone."""


class Carrying(Backbone):
    """It reads chunk after chunk and carries a state from each to the next. Behind the first D features of
    `Hidden.state` come the slots that the position read."""

    chunk: int
    """Tokens of a chunk."""
    slot_count: int
    """Slots S of the state, D wide each."""

    @abstractmethod
    def under(self, protocol: StateProtocol, warmup: int) -> Carrying:
        """One with the same parameters, that is asked under another protocol, with so many passes over a chunk before
        it counts."""

    @abstractmethod
    def encode_chunks(self, tokens: Tensor) -> Iterator[Hidden]:
        """`Hidden` of `tokens` (B, T), however many these are, of one chunk after the other, under the protocol."""

    @abstractmethod
    def keep(self, cache: Any) -> dict[str, Tensor]:
        """All of a cache of one row that what is read from now on can depend on, as tensors by name."""

    @abstractmethod
    def resume(self, kept: Mapping[str, Tensor]) -> Cache:
        """A cache that goes on from what `keep` gave. Raises `ValueError` if that is of another shape of model, or
        not what `keep` gives."""


def check_kept(name: str, tensor: Tensor, dtype: torch.dtype) -> None:
    """Raises `ValueError` unless a tensor of a kept state is of `dtype`, or of bfloat16 where that is a float, and has
    numbers alone."""
    known = {dtype, torch.bfloat16} if dtype.is_floating_point else {dtype}
    if tensor.dtype not in known:
        told = " or ".join(sorted(str(one).removeprefix("torch.") for one in known))
        raise ValueError(f"a damaged state: {name} is of type {str(tensor.dtype).removeprefix('torch.')}, not {told}")
    if not tensor.isfinite().all():
        raise ValueError(f"a damaged state: {name} holds what is no number")


def readouts(backbone: Backbone, batch: Batch) -> Tensor:
    """(B, T, D): the readouts of a batch, at the least cost that the backbone knows."""
    return backbone.readouts(batch) if isinstance(backbone, ReadoutOnly) else backbone.encode(batch).readout


def prompt_parts(length: int, rows: int, streams: int = 1) -> list[slice]:
    """Columns of prompts that are read one part after the other."""
    size = max(32, PROMPT_POSITIONS // max(1, streams * rows))
    return [slice(first, min(first + size, length)) for first in range(0, length, size)]


def read_prompt(backbone: Backbone, tokens: Tensor, cache: Cache, counts: np.ndarray | None = None) -> Hidden:
    """`Hidden` of the last token that each row reads of its prompt, (B, 1, ...): `tokens` (B, T), or of row b the first
    `counts[b]`, at least one."""
    if counts is None and isinstance(backbone, PromptReader):
        return backbone.read_prompt(tokens, cache)
    return read_in_parts(backbone, tokens, cache, counts)


def read_in_parts(
    backbone: Backbone, tokens: Tensor, cache: Cache, counts: np.ndarray | None = None, streams: int = 1
) -> Hidden:
    """`read_prompt` by `Backbone.extend`."""
    found: Hidden | None = None
    for columns in prompt_parts(tokens.shape[1], len(tokens), streams):
        part = tokens[:, columns]
        if counts is None:
            found = Hidden(*(each[:, -1:] for each in backbone.extend(part, cache)))
            continue
        new = np.clip(counts - columns.start, 0, part.shape[1])
        last = last_columns(backbone.extend(part, cache, new), new)
        read = torch.from_numpy(new > 0).to(tokens.device)[:, None, None]
        found = last if found is None else Hidden(*(torch.where(read, *pair) for pair in zip(last, found)))
    assert found is not None
    return found


def last_columns(hidden: Hidden, counts: np.ndarray) -> Hidden:
    """Of `hidden` (B, n, ...) column `counts[b] - 1` of each row b, (B, 1, ...); the first where that is none."""
    column = torch.from_numpy(np.maximum(counts, 1) - 1).to(hidden.state.device)
    rows = torch.arange(len(column), device=column.device)
    return Hidden(*(each[rows, column][:, None] for each in hidden))
