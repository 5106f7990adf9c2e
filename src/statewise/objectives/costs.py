"""Floating-point operations that training on a batch needs."""

from __future__ import annotations

from collections import Counter

import numpy as np

from statewise.backbones.base import Backbone
from statewise.backbones.powers import Counted
from statewise.types import Batch


def document_lengths(batch: Batch) -> Counter[int]:
    """How many documents of each length a batch on the host holds."""
    if batch.documents is None:
        return Counter(batch.real.sum(1).tolist())
    documents = batch.documents.numpy()
    opens = np.diff(documents, axis=1, prepend=-1) != 0  # first places of documents and of padding
    lengths = np.diff(np.flatnonzero(opens), append=documents.size)
    return Counter(lengths[documents[opens] > 0].tolist())


def backbone_flops(backbone: Backbone, batch: Batch) -> float | None:
    """What one forward pass of a batch needs, without a head; None: not known."""
    if not isinstance(backbone, Counted):
        return None
    return sum(backbone.flops(length) * number for length, number in document_lengths(batch).items())


def head_flops(backbone: Backbone) -> float:
    """What the vocabulary head needs at one position."""
    return 2.0 * backbone.head_weight().numel()


def token_flops(backbone: Backbone, batch: Batch) -> float | None:
    """`Objective.flops` of one pass and the head at every scored token; None: not known."""
    body = backbone_flops(backbone, batch)
    return None if body is None else 3 * (body + head_flops(backbone) * int(batch.scored.sum()))
