"""Attention masks: boolean, True where attention is allowed."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor


def causal(queries: int, keys: int, device: torch.device) -> Tensor:
    """(queries, keys): the last query sees every key, the one before it all but the last, and so on."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)


def causal_bias(queries: int, keys: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """(queries, keys): 0 where the causal mask allows attention, otherwise -inf; cached between calls that are
    not compiled."""
    make = _new_causal_bias if torch.compiler.is_compiling() else _kept_causal_bias
    return make(queries, keys, device, dtype)


def _new_causal_bias(queries: int, keys: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    return as_bias(causal(queries, keys, device), dtype)


_kept_causal_bias = lru_cache(maxsize=64)(_new_causal_bias)


def as_bias(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    """The mask as a bias to add to attention scores: 0 where allowed, otherwise -inf."""
    return torch.zeros(allowed.shape, dtype=dtype, device=allowed.device).masked_fill(~allowed, float("-inf"))


class Documents:
    """The documents packed in the rows of a batch. Caches what attention derives from them, such as masks, so that it
    is computed once per batch, not once per layer."""

    def __init__(self, numbers: Tensor) -> None:
        self.numbers = numbers
        """(B, T) int64, as `Batch.documents`."""
        self._known: dict[Hashable, Any] = {}

    def once(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """The result of `make()`, cached under `key`."""
        if key not in self._known:
            self._known[key] = make()
        return self._known[key]

    def mask(self) -> Tensor:
        """(B, 1, T, T): see `causal_within_documents`."""
        mask: Tensor = self.once("mask", lambda: causal_within_documents(self.numbers))
        return mask

    def bias(self, dtype: torch.dtype) -> Tensor:
        """The mask as a bias, which PyTorch's fused kernels on a GPU would otherwise make, and keep, in every layer."""
        bias: Tensor = self.once(("bias", dtype), lambda: as_bias(self.mask(), dtype))
        return bias

    def positions(self) -> Tensor:
        """(B, T): see `positions_within_documents`."""
        return positions_within_documents(self.numbers)


def causal_within_documents(documents: Tensor) -> Tensor:
    """(B, 1, T, T) from (B, T) document numbers: a position sees itself and earlier ones of its document."""
    same = documents[:, :, None] == documents[:, None, :]
    return (same & causal(documents.shape[1], documents.shape[1], documents.device))[:, None]


def document_starts(documents: Tensor) -> Tensor:
    """(B, T) bool from (B, T) document numbers: whether a position is the first of its document, or of the padding."""
    starts = torch.ones_like(documents, dtype=torch.bool)
    starts[:, 1:] = documents[:, 1:] != documents[:, :-1]
    return starts


def positions_within_documents(documents: Tensor) -> Tensor:
    """(B, T): each position's distance from the start of its document."""
    column = torch.arange(documents.shape[1], device=documents.device)
    return column - torch.where(document_starts(documents), column, 0).cummax(dim=1).values
