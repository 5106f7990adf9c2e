"""Two streams of keys, and which of them a query may read: one predicate for all variants and implementations.

At each place i a row has an input x_i, optionally followed by a prediction p_i (the `<predict>` token of the
State-Prediction Separation paper, equation 3). Keys of each stream are read without limit, within a window, or never;
variants differ in nothing else.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from statewise.backbones.nn.masks import Documents

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
