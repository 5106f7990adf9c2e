"""Our cache of keys and values, as transformers' models use one. Imports transformers: to be imported when needed."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from torch import Tensor
from transformers.cache_utils import Cache
from transformers.modeling_outputs import BaseModelOutputWithPast

from statewise.backbones.nn.cache import KeyValueCache

CACHE = "cache" if "cache" in {field.name for field in fields(BaseModelOutputWithPast)} else "past_key_values"
"""The name of a cache in the arguments and outputs of models; transformers 5.24 renamed it."""


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
