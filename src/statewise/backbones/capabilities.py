"""What some backbones can do and others cannot: a type each, which a backbone declares."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from statewise.backbones.base import Backbone
from statewise.batch import Hidden

if TYPE_CHECKING:
    from statewise.backbones.nn.cache import Cache
    from statewise.batch import Batch
    from statewise.decoding.carried_state import StateProtocol


@runtime_checkable
class HasStandard(Protocol):
    """Fields of a backbone that is compared with a standard transformer of the same size."""

    def standard(self) -> Self | None:
        """The fields of that transformer; None if this is one."""


class Branch(nn.Module, ABC):
    """A further last block, with its norm, of a backbone that is `Branching`."""

    @abstractmethod
    def forward(self, trunk: Any) -> Tensor:
        """Maps the result of `Branching.trunk` to (B, T, D)."""

    @abstractmethod
    def make_cache(self, rows: int) -> Cache:
        """An empty cache of this block."""

    @abstractmethod
    def extend(self, x: Tensor, cache: Any, counts: np.ndarray | None = None) -> Tensor:
        """Reads `x` (B, n, D), the trunk's states (`Branching.extend_trunk`), after those in the cache, the first
        `counts[b]` of row b; None: all. Returns (B, n, D)."""


class Branching(Backbone):
    """Its last block can be replicated over a shared trunk."""

    @abstractmethod
    def trunk(self, batch: Batch) -> Any:
        """The input of all last blocks for a batch: the argument of `last` and of branches."""

    @abstractmethod
    def last(self, trunk: Any) -> Hidden:
        """The rest of `encode`: the backbone's own last block and norm."""

    @abstractmethod
    def trunk_state(self, trunk: Any) -> Tensor:
        """(B, T, D): the tensor that all last blocks read."""

    @abstractmethod
    def extend_trunk(self, tokens: Tensor, cache: Any, counts: np.ndarray | None = None) -> tuple[Hidden, Tensor]:
        """The result of `extend`, and of `trunk_state` for the same tokens, (B, n, D)."""

    @abstractmethod
    def make_branch(self) -> Branch:
        """A new last block with its norm."""

    @abstractmethod
    def branch_flops(self, length: int) -> float:
        """FLOPs of a last block on one document of `length` tokens, counted as in `Counted.flops`."""


class Counted(Backbone):
    """Its floating-point operations are known."""

    @abstractmethod
    def flops(self, length: int) -> float:
        """FLOPs of the readouts of one document of `length` tokens, without the head. Counts matrix products only, a
        multiplication and addition as two; in attention, the pairs of positions that the model allows, even if the
        implementation computes and masks more."""


class Phased(Backbone):
    """It changes during training."""

    @abstractmethod
    def set_progress(self, fraction: float) -> None:
        """Called before each training step with the fraction of training completed, in [0, 1). Store
        what inference needs of it in a buffer."""


class Noted(Backbone):
    """It may have notes for the user before training."""

    @abstractmethod
    def notes(self, steps: int) -> list[str]:
        """Sentences on training for `steps` steps; may be empty."""


class Pretrained(Backbone):
    """Its weights come from a model with a vocabulary of its own."""

    layers: int
    """Number of layers, also where the recipe leaves it to the model."""
    commit: str | None = None
    """The commit of the repository on the hub that it was loaded from; None: it was a folder."""

    @abstractmethod
    def check_symbols(self, symbols: Sequence[str]) -> None:
        """Raises `ValueError`, with what to do, unless the token ids of a task, whose `symbols` they number, are those
        that the model was trained with."""


class Followed(Backbone):
    """Its forward pass can be traced: every use of its parameters can be recorded."""

    @property
    @abstractmethod
    def streams(self) -> tuple[Literal["input", "prediction"], ...]:
        """The current streams of each position."""

    @abstractmethod
    def every_stream(self, tokens: Tensor, cache: Any = None) -> tuple[Tensor, int]:
        """(B, S, T, D) of all streams and the index of the readout's, for `tokens` (B, T) after those in the cache.
        Applies every map to every stream of every position, even where the result is not used."""


class Fetching(Followed):
    """Its predictions attend to the inputs of their own positions."""

    @abstractmethod
    def fetches(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """(B, T, L, H): the attention weight of each position's prediction on its own input, by layer and head; and
        (B, T): how many keys the prediction reads. Without meaning on padding. Raises `ValueError` if there is no
        prediction, as the backbone stands."""


class Limitable(Backbone):
    """Its memory can be limited."""

    @abstractmethod
    def limited(self, places: int) -> Limitable:
        """A model with this one's parameters whose kept keys are read only at their own position and at the `places`
        positions after it."""


class Carrying(Backbone):
    """It reads chunk by chunk and carries a state from each to the next. In `Hidden.state`, the first D features are
    followed by the slots that the position read."""

    chunk: int
    """Tokens per chunk."""
    slot_count: int
    """Slots S of the state, D wide each."""

    @abstractmethod
    def under(self, protocol: StateProtocol, warmup: int) -> Carrying:
        """A model with this one's parameters under another protocol, with `warmup` passes over each chunk before the
        one that counts."""

    @abstractmethod
    def encode_chunks(self, tokens: Tensor) -> Iterator[Hidden]:
        """Yields `Hidden` of `tokens` (B, T), for any T, chunk by chunk, under the protocol."""

    @abstractmethod
    def keep(self, cache: Any) -> dict[str, Tensor]:
        """Everything in a cache of one row that later outputs depend on, as tensors by name."""

    @abstractmethod
    def resume(self, kept: Mapping[str, Tensor]) -> Cache:
        """A cache restored from the result of `keep`. Raises `ValueError` if that belongs to a model of another shape,
        or is not a result of `keep`."""


class AcrossRows(Backbone):
    """It can carry a state across consecutive training rows of a lane (`Batch.continuation`). Gradients stop at the
    start of a row (truncated backpropagation through time). Evaluation and inference are not affected."""

    @property
    @abstractmethod
    def across_rows(self) -> bool:
        """Whether it is configured to do so."""

    @abstractmethod
    def open_lanes(self, lanes: int) -> None:
        """Called once before training, after the move to the device, with the number of lanes of this process."""

    @abstractmethod
    def advance_lanes(self) -> None:
        """Called after each training step: what this step's passes kept becomes what the next step reads. All passes
        of one step read the same."""

    @abstractmethod
    def kept_lanes(self) -> Mapping[str, Tensor]:
        """What the next step reads: tensors (lanes, ...) by name, part of the training state in checkpoints."""

    @abstractmethod
    def load_lanes(self, kept: Mapping[str, Tensor]) -> None:
        """Restores what `kept_lanes` returned. Raises `ValueError` if names, shapes, types or values do not fit."""


def check_kept(name: str, tensor: Tensor, dtype: torch.dtype) -> None:
    """Raises `ValueError` unless a tensor of a kept state is finite and has `dtype`, or bfloat16 if that is a float."""
    known = {dtype, torch.bfloat16} if dtype.is_floating_point else {dtype}
    if tensor.dtype not in known:
        expected = " or ".join(sorted(str(one).removeprefix("torch.") for one in known))
        raise ValueError(
            f"a damaged state: {name} is of type {str(tensor.dtype).removeprefix('torch.')}, not {expected}"
        )
    if not tensor.isfinite().all():
        raise ValueError(f"a damaged state: {name} contains NaN or infinity")
