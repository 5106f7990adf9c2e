"""Reading sequences from right to left."""

from __future__ import annotations

import torch
from torch import Tensor

from statewise.backbones.base import Backbone
from statewise.backbones.nn.masks import document_starts
from statewise.data_types import Batch, Hidden


def encode_backwards(encoder: Backbone, batch: Batch) -> Hidden:
    """`Hidden` at each position after the tokens from the end of its document back to it, that position included."""
    column = torch.arange(batch.tokens.shape[1], device=batch.tokens.device)
    length = batch.real.sum(1, keepdim=True)
    mirror = torch.where(column < length, length - 1 - column, column)  # padding stays at the end
    documents = None if batch.documents is None else batch.documents.gather(1, mirror)
    # Padding stays in place. A reversed row does not continue the previous one.
    mirrored = batch._replace(tokens=batch.tokens.gather(1, mirror), documents=documents, continuation=None)
    hidden = encoder.encode(mirrored)
    return Hidden(*(part.gather(1, mirror[:, :, None].expand_as(part)) for part in hidden))


def answers(batch: Batch, group: Tensor) -> Tensor:
    """(B, T) bool: the scored tokens, and the first token of a document whose second one is scored."""
    follows = torch.zeros_like(batch.scored)
    follows[:, :-1] = batch.scored[:, 1:] & (group[:, 1:] == group[:, :-1])
    return batch.scored | (document_starts(group) & follows)
