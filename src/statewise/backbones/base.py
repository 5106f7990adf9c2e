"""What a backbone is: tokens in, a state and a readout at every position out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

from torch import Tensor, nn

from statewise.nn.cache import KeyValueCache
from statewise.types import Hidden


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

    @abstractmethod
    def forward(self, tokens: Tensor, *, documents: Tensor | None = None, cache: KeyValueCache | None = None) -> Hidden:
        """Reads `tokens` (B, T); `documents` as in `Batch`. With a cache, `tokens` come after what it holds."""

    @abstractmethod
    def embed(self, tokens: Tensor) -> Tensor:
        """(...) token ids -> (..., D), without positions."""

    @abstractmethod
    def logits(self, readout: Tensor, *, frozen: bool = False) -> Tensor:
        """(..., D) -> (..., V). `frozen`: no gradient reaches the head's own parameters."""

    @abstractmethod
    def make_cache(self) -> KeyValueCache:
        """An empty cache of the right depth."""


BackboneFactory = Callable[..., Backbone]
"""Makes a new backbone; keyword arguments replace fields of its config. An objective may call it twice."""
