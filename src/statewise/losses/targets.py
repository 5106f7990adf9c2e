"""The targets of objectives, and their plain cross-entropy losses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from statewise.backbones.nn.masks import document_starts, positions_within_documents
from statewise.batch import Batch, Part
from statewise.runtime.bounds import bounded

IGNORED = -100
"""The target where nothing is predicted."""


def to_float32(tensor: Tensor) -> Tensor:
    """The tensor in at least float32: for logits, before a softmax over many."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def answers(batch: Batch, group: Tensor) -> Tensor:
    """(B, T) bool: the scored tokens, and the first token of a document whose second one is scored."""
    follows = torch.zeros_like(batch.scored)
    follows[:, :-1] = batch.scored[:, 1:] & (group[:, 1:] == group[:, :-1])
    return batch.scored | (document_starts(group) & follows)


def token_targets(batch: Batch) -> Tensor:
    """(B, end - first) int64: the scored tokens, `IGNORED` elsewhere."""
    tokens, scored = batch.targets
    return torch.where(scored, tokens, IGNORED)


def token_loss(log_probs: Tensor, batch: Batch, smoothing: float = 0.0) -> Tensor:
    """Scalar: summed cross-entropy in nats of the scored tokens, from `log_probs` (B, end - first, V). If only the loss
    is needed, use `head_loss`, which does not store log-probabilities."""
    return summed_loss(log_probs.flatten(0, 1), token_targets(batch).flatten(), smoothing)


def summed_loss(log_probs: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    """Scalar: summed cross-entropy in nats of `targets` (N,), `IGNORED` where nothing is predicted, from `log_probs`
    (N, V). All tokens have the share `smoothing` of a target's probability equally (Szegedy et al. 2016)."""
    loss = F.nll_loss(log_probs, targets, ignore_index=IGNORED, reduction="sum")
    if not smoothing:
        return loss
    even = (-log_probs.mean(-1) * (targets != IGNORED)).sum()
    return (1 - smoothing) * loss + smoothing * even


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
    sums = of_place.flip(0).cumsum(0).flip(0)[1 : horizon + 1]
    return F.pad(sums, (0, horizon - len(sums)))


def check_horizon(horizon: int, context: int) -> None:
    """Raises `ValueError` if no sequence has as many tokens after its first as `objective.horizon`."""
    if horizon >= context:
        raise ValueError(
            f"objective.horizon {horizon:,} is beyond the longest sequence, which has {context:,} tokens: set it to at "
            f"most {context - 1:,}"
        )


@dataclass(frozen=True)
class AheadConfig:
    """Fields of the objectives that predict further tokens besides the next one."""

    horizon: int = 1
    """Tokens K predicted beyond the next one."""
    ahead_weight: float = 1.0
    """Factor of their mean loss."""

    def __post_init__(self) -> None:
        bounded(self, "horizon", prefix="objective.", at_least=1)
        bounded(
            self, "ahead_weight", prefix="objective.", above=0, reason="without it this is the objective next_token"
        )

    def parts(self, following: Tensor, ahead: list[Tensor], counts: Mapping[str, Tensor]) -> dict[str, Part]:
        """The parts of the loss whose counts are `ahead_counts`: the sum for the next token, (), and for each further
        one, K of ()."""
        return {
            "next_token": Part(following, counts["next_token"], 1.0),
            "ahead": Part(torch.stack(ahead), counts["ahead"], self.ahead_weight),
        }


def ahead_counts(batch: Batch, horizon: int) -> dict[str, Tensor]:
    """Counts of the parts: `next_token`, the scored tokens, and `ahead`, (horizon,), those that each further prediction
    can predict."""
    return {"next_token": batch.scored.sum(), "ahead": predicted(batch, horizon)}


def ahead_targets(batch: Batch, steps: int) -> Tensor:
    """(B, stop - start) int64 over `reached_columns`: the tokens predicted `steps` beyond the next one, `IGNORED`
    elsewhere."""
    start, stop = reached_columns(batch, steps)
    return torch.where(predicts(batch, steps), batch.tokens[:, start + 1 : stop + 1], IGNORED)


class ComingTokens(NamedTuple):
    """What follows each of n positions per row, at offsets `low` .. `high`: the targets of objectives that predict sets
    of later tokens."""

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
    largest = batch.tokens.max() if len(place) else 0
    kind = documents * (largest + 1) + batch.tokens.flatten()
    kind = torch.where(batch.scored.flatten(), kind, -1 - place)
    ordered, order = kind.sort(stable=True)
    before = torch.where(ordered[1:] == ordered[:-1], order[:-1] % T, -1)
    previous = torch.full_like(place, -1)
    previous[order[1:]] = before
    return previous.view(B, T)
