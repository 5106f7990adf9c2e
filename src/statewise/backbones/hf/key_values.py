"""Our cache of keys and values, as transformers' models use one. Imports transformers: to be imported when needed."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers.cache_utils import Cache

from statewise.backbones.nn.cache import KeyValueCache


class Columns(Cache):  # type: ignore[misc]  # transformers is not checked
    """One pass of a model over the columns of `store`. Positions and masks are given to the model explicitly, so that
    rows may have read different numbers of tokens."""

    is_compileable = False

    def __init__(self, store: KeyValueCache) -> None:
        super().__init__(layers=[])
        self.store = store

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Adds keys and values (B, H, n, W) of a layer; returns all that the pass may read."""
        return self.store.append_keys(layer_idx, key_states, value_states)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Columns in use before this pass."""
        return self.store.columns
