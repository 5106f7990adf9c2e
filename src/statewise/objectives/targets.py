"""The targets of objectives, and their plain cross-entropy losses."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from statewise.backbones.nn.masks import positions_within_documents
from statewise.data_types import Batch

IGNORED = -100
"""The target where nothing is predicted."""


def to_float32(tensor: Tensor) -> Tensor:
    """The tensor in at least float32: for logits, before a softmax over many."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def token_targets(batch: Batch) -> Tensor:
    """(B, end - first) int64: the scored tokens, `IGNORED` elsewhere."""
    tokens, scored = batch.targets
    return torch.where(scored, tokens, IGNORED)


def token_loss(log_probs: Tensor, batch: Batch) -> Tensor:
    """Scalar: summed cross-entropy in nats of the scored tokens, from `log_probs` (B, end - first, V). If only the loss
    is needed, use `head_loss`, which does not store log-probabilities."""
    targets = token_targets(batch).flatten()
    return F.nll_loss(log_probs.flatten(0, 1), targets, ignore_index=IGNORED, reduction="sum")


def reached_columns(batch: Batch, steps: int) -> tuple[int, int]:
    """Positions [start, stop) that are `steps` after some position and whose next token may be scored: predictions
    `steps` ahead start at columns start - steps .. stop - steps and predict the tokens start + 1 .. stop + 1."""
    first, end = batch.span
    start = max(first - 1, steps)
    return start, max(start, end - 1)


def predicts(batch: Batch, steps: int) -> Tensor:
    """(B, stop - start) bool over `reached_columns`: both positions are in one document and the next token is
    scored."""
    start, stop = reached_columns(batch, steps)
    scored = batch.scored[:, start + 1 : stop + 1]
    if batch.documents is None:
        return scored
    return scored & (batch.documents[:, start:stop] == batch.documents[:, start - steps : stop - steps])


def follows(batch: Batch, step: int) -> Tensor:
    """(B, T - step) bool: whether position t + step exists and is in the same document as t."""
    real = batch.real[:, step:]
    if batch.documents is None:
        return real
    return real & (batch.documents[:, step:] == batch.documents[:, :-step])


def reached(batch: Batch, horizon: int) -> Tensor:
    """(horizon,) int64: the sums of `follows` for step = 1 .. horizon, in one pass over the batch."""
    return _at_least(_places(batch), batch.real, horizon)


def predicted(batch: Batch, horizon: int) -> Tensor:
    """(horizon,) int64: the sums of `predicts` for steps = 1 .. horizon, in one pass over the batch."""
    return _at_least(_places(batch)[:, :-1], batch.scored[:, 1:], horizon)


def _places(batch: Batch) -> Tensor:
    """(B, T): each position's distance from the start of its document."""
    if batch.documents is None:
        return torch.arange(batch.tokens.shape[1], device=batch.tokens.device).expand_as(batch.tokens)
    return positions_within_documents(batch.documents)


def _at_least(places: Tensor, counted: Tensor, horizon: int) -> Tensor:
    """(horizon,) int64: for step = 1 .. horizon the number of `counted` positions whose place is at least `step`."""
    of_place = torch.zeros(places.shape[1] + 1, dtype=torch.int64, device=places.device)
    of_place.scatter_add_(0, places.flatten(), counted.flatten().long())
    found = of_place.flip(0).cumsum(0).flip(0)[1 : horizon + 1]
    return F.pad(found, (0, horizon - len(found)))


def check_horizon(horizon: int, context: int) -> None:
    """Raises `ValueError` if no sequence has as many tokens after its first as `objective.horizon`."""
    if horizon >= context:
        raise ValueError(
            f"objective.horizon {horizon:,} is beyond the longest sequence, which has {context:,} tokens: set it to at "
            f"most {context - 1:,}"
        )


def ahead_counts(batch: Batch, horizon: int) -> dict[str, Tensor]:
    """Counts of the parts: `next_token`, the scored tokens, and `ahead`, (horizon,), those that each further prediction
    can predict."""
    return {"next_token": batch.scored.sum(), "ahead": predicted(batch, horizon)}


def ahead_targets(batch: Batch, steps: int) -> Tensor:
    """(B, stop - start) int64 over `reached_columns`: the tokens predicted `steps` beyond the next one, `IGNORED`
    elsewhere."""
    start, stop = reached_columns(batch, steps)
    return torch.where(predicts(batch, steps), batch.tokens[:, start + 1 : stop + 1], IGNORED)
