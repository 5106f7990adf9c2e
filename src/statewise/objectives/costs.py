"""Floating-point operations of training on a batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np

from statewise.backbones.base import Backbone
from statewise.backbones.capabilities import Counted
from statewise.data_types import Batch


def document_lengths(batch: Batch) -> Counter[int]:
    """The number of documents of each length in a batch on the host."""
    if batch.documents is None:
        return Counter(batch.real.sum(1).tolist())
    documents = batch.documents.numpy()
    opens = np.diff(documents, axis=1, prepend=-1) != 0  # first places of documents and of padding
    lengths = np.diff(np.flatnonzero(opens), append=documents.size)
    return Counter(lengths[documents[opens] > 0].tolist())


def backbone_flops(backbone: Backbone, batch: Batch) -> float | None:
    """FLOPs of one forward pass of a batch, without a head; None if unknown."""
    return document_flops(backbone.flops, batch) if isinstance(backbone, Counted) else None


def document_flops(of_length: Callable[[int], float], batch: Batch) -> float:
    """Sum over the documents of a batch of the FLOPs of one of its length."""
    return sum(of_length(length) * number for length, number in document_lengths(batch).items())


def head_flops(backbone: Backbone) -> float:
    """FLOPs of the vocabulary head at one position."""
    return 2.0 * backbone.head_weight().numel()


def token_flops(backbone: Backbone, batch: Batch) -> float | None:
    """`Objective.flops` of one pass with the head at every scored token; None if unknown."""
    body = backbone_flops(backbone, batch)
    return None if body is None else 3 * (body + head_flops(backbone) * int(batch.scored.sum()))
