"""What a backbone is: tokens in, a state and a readout at every position out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from statewise.nn.cache import KeyValueCache
from statewise.types import Batch, Carried, Hidden

PROMPT_SLOTS = 4096
"""Slots of prompts that are read at a time. What a pass holds of them besides keys and values does not grow with the
prompts then; fewer at a time are slower."""


def prompt_parts(tokens: Tensor, slots: int) -> tuple[Tensor, ...]:
    """(B, T) -> the parts of prompts, of so many slots a token, that are read one after the other: (B, t) each."""
    return torch.split(tokens, max(32, PROMPT_SLOTS // max(1, slots * len(tokens))), dim=1)


class Backbone(nn.Module, ABC):
    """A sequence model without a loss. Knows nothing of tasks, of objectives or of several devices."""

    Config: ClassVar[type]
    """Dataclass of its recipe fields."""

    width: int
    """Width D of `Hidden.state` and `Hidden.readout`."""
    context: int
    """Longest sequence it can read."""
    vocabulary: int
    """Number V of token ids."""
    state_predicts: bool = True
    """Whether the vocabulary head reads the next token off the state itself."""

    @property
    def state_width(self) -> int:
        """Width of `Hidden.state` where that is more than the readout's."""
        return self.width

    def read_off(self, state: Tensor) -> Tensor:
        """(..., state_width) -> (..., D): what of a state the vocabulary head, and others of width D, read."""
        return state

    @property
    def slots(self) -> tuple[str, ...]:
        """What a position is made of, as the backbone stands."""
        return ("input",)

    @abstractmethod
    def forward(self, tokens: Tensor, *, documents: Tensor | None = None, cache: KeyValueCache | None = None) -> Hidden:
        """Reads `tokens` (B, T); `documents` as in `Batch`. With a cache, `tokens` come after what it holds."""

    @property
    def notes(self) -> list[str]:
        """What a person should know before it is trained."""
        return []

    def documents_of(self, batch: Batch) -> Tensor | None:
        """`documents` with which `forward` is to read a batch. Padding comes after all that counts, so most backbones
        need not know it from tokens; one that makes something of a whole stretch must."""
        return batch.documents

    def readouts(self, tokens: Tensor, *, documents: Tensor | None = None) -> Tensor:
        """`Hidden.readout` of `forward` alone, (B, T, D), which some backbones have for less."""
        return self(tokens, documents=documents).readout

    def read_prompt(self, tokens: Tensor, cache: KeyValueCache) -> Hidden:
        """`Hidden` of the last position alone, (B, 1, D) each, with all of `tokens` (B, T) read into the cache; some
        backbones read a prompt for less than they read what is generated."""
        for part in prompt_parts(tokens, len(self.slots)):
            state, readout = self(part, cache=cache)
        return Hidden(state[:, -1:], readout[:, -1:])

    def all_slots(self, tokens: Tensor, *, cache: KeyValueCache | None = None) -> tuple[Tensor, int]:
        """(B, S, T, D) and the number of the slot that is the readout: `forward` with every map applied to every slot
        of every position of every row, used or not, so that it can be followed what each contributes."""
        return self(tokens, cache=cache).readout[:, None], 0

    @abstractmethod
    def embed(self, tokens: Tensor) -> Tensor:
        """(...) token ids -> (..., D), without positions."""

    @abstractmethod
    def head_weight(self) -> Tensor:
        """(V, D): the matrix of the vocabulary head, a linear map without bias."""

    def logits(self, readout: Tensor, *, frozen: bool = False) -> Tensor:
        """(..., D) -> (..., V). `frozen`: no gradient reaches the head's own parameters."""
        weight = self.head_weight()
        return F.linear(readout, weight.detach() if frozen else weight)

    @abstractmethod
    def make_cache(self) -> KeyValueCache:
        """An empty cache of the right depth."""

    def at(self, share: float) -> None:
        """Told before each training step what share of the training is done, from 0 on and below 1; 1: it is over.
        A backbone may then change how it works; what it must know of that at inference it keeps in a buffer. Most do
        nothing."""

    def flops(self, length: int) -> float | None:
        """Floating-point operations that `readouts` needs for one document of so many tokens, the head left out; None:
        not known. Matrix products alone, two operations a multiplication and addition; of attention, the pairs of
        positions that the model allows, whatever its implementation computes and masks."""
        return None

    def head_flops(self) -> float:
        """The same of `logits` at one position."""
        return 2.0 * self.head_weight().numel()


class Limitable(Backbone):
    """A backbone whose memory can be cut short."""

    @abstractmethod
    def limited(self, places: int) -> Limitable:
        """One with the same parameters, whose kept keys are read for the last `places` places only."""


class Carrying(Backbone):
    """A backbone that reads chunk after chunk and carries a state from each to the next. `Hidden.state` is D wide, and
    behind that come the slots that the position read."""

    chunk: int
    """Tokens of a chunk."""
    slot_count: int
    """Slots S of the state, D wide each."""

    @abstractmethod
    def under(self, protocol: Carried, warmup: int) -> Carrying:
        """One with the same parameters, that is asked under another protocol:
        - `carried`: the state comes from the chunks before, in order;
        - `fresh`: every chunk begins with the initial state;
        - `same-chunk`: so too, and before it counts, a chunk is passed over `warmup` times, each renewing the state.
          What the state then helps to predict, it has seen."""

    @abstractmethod
    def keep(self, cache: KeyValueCache) -> dict[str, Tensor]:
        """All of a cache that what is read from now on can depend on, as tensors by name."""

    @abstractmethod
    def resume(self, kept: Mapping[str, Tensor]) -> KeyValueCache:
        """A cache that goes on from what `keep` gave. Raises `ValueError` if that is of another shape of model."""


class Branching(Backbone):
    """A backbone whose last block can be had more than once, each copy with its own view of the rest."""

    @abstractmethod
    def trunk(self, tokens: Tensor, *, documents: Tensor | None = None) -> Any:
        """What all last blocks read, from `tokens` (B, T): handed to `last`, or to what `make_branch` gave."""

    @abstractmethod
    def last(self, trunk: Any) -> Hidden:
        """The rest of `forward`: its own last block and norm."""

    @abstractmethod
    def make_branch(self) -> nn.Module:
        """A new last block with its norm, which maps what `trunk` gives to (B, T, D)."""


class BackboneFactory(Protocol):
    """Makes a new backbone at every call; an objective may call it twice."""

    def __call__(self, *, extra_tokens: int = 0, embedding_of: Backbone | None = None, **fields: Any) -> Backbone:
        """`extra_tokens` ids of the objective's own come behind those of the task. With `embedding_of` tokens are
        embedded by that backbone's matrix. `fields` replace fields of the backbone's config; every backbone has
        `layers` and `tied`, whether the vocabulary head is the embedding's matrix."""
