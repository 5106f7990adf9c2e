"""Which tokens come soon after a position, each once: the targets of objectives that predict sets of later tokens."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from statewise.data_types import Batch


class ComingTokens(NamedTuple):
    """What follows each of n positions per row, at offsets `low` .. `high`."""

    tokens: Tensor
    """(B, n, high - low + 1) int64: the tokens; meaningless where `first` is False."""
    first: Tensor
    """(B, n, high - low + 1) bool: scored, in the position's document, and the first of its kind among the offsets."""


def coming_tokens(batch: Batch, start: int, stop: int, low: int, high: int) -> ComingTokens:
    """The tokens at offsets `low` .. `high` after each of the positions `start` .. `stop` - 1.

    A token is the first of its kind after a position if its previous occurrence is no later than that position, so a
    sort finds all of them, without an array as wide as the vocabulary.
    """
    T, device = batch.tokens.shape[1], batch.tokens.device
    places = torch.arange(start, stop, device=device)
    columns = places[:, None] + torch.arange(low, high + 1, device=device)
    there, columns = columns < T, columns.clamp(max=T - 1)
    documents, earlier = batch.document_ids, previous_occurrence(batch)
    same = documents[:, columns] == documents[:, places, None]
    first = there & batch.scored[:, columns] & same & (earlier[:, columns] < (places + low)[:, None])
    return ComingTokens(batch.tokens[:, columns], first)


def previous_occurrence(batch: Batch) -> Tensor:
    """(B, T) int64: the column in which each scored token was last scored in its document; -1: it was not."""
    B, T = batch.tokens.shape
    place = torch.arange(B * T, device=batch.tokens.device)
    documents = (place // T) * (T + 1) + batch.document_ids.flatten()  # numbers of documents are at most T
    kind = documents * (batch.tokens.max() + 1) + batch.tokens.flatten()
    kind = torch.where(batch.scored.flatten(), kind, -1 - place)
    ordered, order = kind.sort(stable=True)
    before = torch.where(ordered[1:] == ordered[:-1], order[:-1] % T, -1)
    found = torch.full_like(place, -1)
    found[order[1:]] = before
    return found.view(B, T)
