"""Which keys a query may read: masks (boolean, True where attention is allowed) and the predicate of two streams.

At each place i a row has an input x_i, optionally followed by a prediction p_i (the `<predict>` token of the
State-Prediction Separation paper, equation 3). Keys of each stream are read without limit, within a window, or never;
variants differ in nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import Any, NamedTuple

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


def mirrored_columns(real: Tensor) -> Tensor:
    """(B, T) int64 from `real` (B, T) bool, False on padding on the right: the column whose token each position has if
    rows are reversed and padding stays at the end. It is its own inverse."""
    column = torch.arange(real.shape[1], device=real.device)
    length = real.sum(1, keepdim=True)
    return torch.where(column < length, length - 1 - column, column)


def positions_within_documents(documents: Tensor) -> Tensor:
    """(B, T): each position's distance from the start of its document."""
    column = torch.arange(documents.shape[1], device=documents.device)
    return column - torch.where(document_starts(documents), column, 0).cummax(dim=1).values


INPUT, PREDICTION = 0, 1
"""Numbers of the streams, in the causal order within a place."""


class Reach(NamedTuple):
    """For how many later places the keys of each stream are read; None: no limit; -1: never, not even at their own."""

    inputs: int | None
    predictions: int | None


class Pattern(NamedTuple):
    """Which keys the queries of some streams read, by `may_read`."""

    streams: tuple[int, ...]
    """The streams of the queries, in their order."""
    reach: Reach
    documents: Documents | None = None
    """The documents packed in the rows: a query reads keys of its own document."""


def may_read(
    query_stream: Tensor | int, query_place: Tensor, key_stream: Tensor | int, key_place: Tensor, reach: Reach
) -> Tensor:
    """Bool, of the arguments' broadcast shape: whether a query reads a key (equation 5 for `Reach(None, w)`).

    An input comes before the prediction of its place: it sees only earlier predictions. Document boundaries are not
    checked here.
    """
    distance = query_place - key_place
    key_stream = torch.as_tensor(key_stream, device=distance.device)
    behind = (key_stream == PREDICTION) & (torch.as_tensor(query_stream, device=distance.device) == INPUT)
    furthest = torch.where(key_stream == PREDICTION, _limit(reach.predictions), _limit(reach.inputs))
    return (distance >= behind.long()) & (distance <= furthest)


def keys_in_reach(place: Tensor, key_place: Tensor) -> Tensor:
    """(B, n, K) bool: which keys at places (B, K) queries at places (B, n) read, for one stream and rows of different
    length. Place -1: no key, or no query. Every query reads its own column, among the last n, so that its softmax is
    never empty."""
    allowed = (key_place[:, None] >= 0) & (key_place[:, None] <= place[..., None])
    return allowed | own_columns(place.shape[1], key_place.shape[1], place.device)


def own_columns(queries: int, keys: int, device: torch.device) -> Tensor:
    """(queries, keys) bool: each query's own column, among the last."""
    return torch.eye(queries, keys, dtype=torch.bool, device=device).roll(keys - queries, dims=1)


def stream_mask(
    streams: tuple[int, ...],
    places: int,
    reach: Reach,
    documents: Tensor | None = None,
    device: torch.device | None = None,
) -> Tensor:
    """(S * T, 2T), or (B, 1, S * T, 2T) with `documents` (B, T): `may_read` for the queries of `streams`, concatenated,
    and the keys of both. On the device of `documents`, or on `device`."""
    device = device if documents is None else documents.device
    place = torch.arange(places, device=device)
    query_stream, key_stream = (on_device(numbers, device) for numbers in (streams, (INPUT, PREDICTION)))
    mask = may_read(
        query_stream.repeat_interleave(places)[:, None],
        place.repeat(len(streams))[:, None],
        key_stream.repeat_interleave(places)[None],
        place.repeat(2)[None],
        reach,
    )
    if documents is None:
        return mask
    return mask & (documents.repeat(1, len(streams))[:, :, None] == documents.repeat(1, 2)[:, None, :])[:, None]


def on_device(numbers: tuple[int, ...], device: torch.device | None) -> Tensor:
    """A few numbers, filled on the device: a copy from the host would wait for all that a GPU has still to do."""
    return torch.cat([torch.full((1,), number, device=device) for number in numbers])


def _limit(reach: int | None) -> int:
    return 2**31 - 1 if reach is None else reach
