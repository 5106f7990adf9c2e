"""Semantic tube prediction (Huang, LeCun, Balestriero 2026): the path of the states should be straight.

For a span from s to t of a document, the step h_t - h_s should point like the rest of the way, (h_end - h_start) -
(h_t - h_s): the loss is 1 - cos of the two. The authors draw spans at random; here all spans of a document are
averaged, which is the expectation. All products needed are between states, so they are one matrix product per row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from statewise.backbones.nn.differentiable_once import eager
from statewise.batch import Batch, Hidden, Loss, Part
from statewise.losses.sequence_loss import SequenceLoss, Vocabulary, settings
from statewise.losses.targets import to_float32
from statewise.losses.vocabulary_head import next_token_part
from statewise.runtime.bounds import bounded

ROUNDING = 4
"""Differences of up to this many times what the states, or the products, are rounded by have no direction."""


@dataclass(frozen=True)
class SemanticTubeConfig:
    """Fields of `objective: semantic_tube`."""

    tube_weight: float = 0.02
    """Factor of 1 - cos."""

    def __post_init__(self) -> None:
        bounded(self, "tube_weight", prefix="objective.", above=0, reason="without it this is the objective next_token")


def counts(batch: Batch) -> dict[str, Tensor]:
    """Scored tokens; documents of three tokens or more, counted at their third."""
    group = batch.document_ids
    third = (group[:, 2:] > 0) & (group[:, 2:] == group[:, :-2])
    opens = torch.ones_like(third)
    opens[:, 1:] = group[:, 1:-2] != group[:, :-3]
    return {"next_token": batch.scored.sum(), "tube": (third & opens).sum()}


def loss(
    config: SemanticTubeConfig,
    model: Vocabulary,
    hidden: Hidden,
    batch: Batch,
    counts: Mapping[str, Tensor],
    smoothing: float = 0.0,
) -> Loss:
    """Parts `next_token`, in nats per token, and `tube`, 1 - cos per document of three tokens or more."""
    return Loss(
        {
            "next_token": next_token_part(hidden.readout, model.head_weight(), batch, counts, smoothing),
            "tube": Part(bend(hidden.state, batch), counts["tube"], config.tube_weight),
        }
    )


@eager
def bend(states: Tensor, batch: Batch) -> Tensor:
    """Scalar: the sum over documents of at least three tokens of the mean over spans s < t, except the whole document,
    of 1 - cos between h_t - h_s and the rest of the way. `states` (B, T, E); products in float32 or better. Where one
    of the two is no longer than rounding errors, as between states that coincide, cos is 0 and has no gradient."""
    T, group = states.shape[1], batch.document_ids
    same = (group[:, :, None] == group[:, None]) & (group > 0)[:, :, None]
    place = torch.arange(T, device=states.device)
    start = same.int().argmax(-1)
    length = same.sum(-1)
    last = (start + length - 1).clamp(min=0)
    spans = same & (place[:, None] > place)  # [t, s]
    spans &= ~((place == last)[:, :, None] & (place == start)[:, None])
    share = (1 / (length * (length - 1) / 2 - 1).clamp(min=1))[:, :, None]
    kind = states.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else states.dtype
    with torch.autocast(kind, enabled=False):
        exact = to_float32(states)
        # Relative to the document's first state, lengths are small and differences lose little.
        moved = exact - exact.gather(1, start[:, :, None].expand_as(exact))
        products = moved @ moved.transpose(1, 2)
        along = products.gather(2, last[:, :, None])  # h_i . (h_end - h_start)
        square = products.diagonal(dim1=1, dim2=2)
        whole = square.gather(1, last)[:, :, None]
        step = square[:, :, None] + square[:, None] - 2 * products
        inner = along - along.transpose(1, 2)
        rest = whole - 2 * inner + step
        with torch.no_grad():  # squared lengths that rounding alone can make: of the states, and of the products
            size = exact.square().sum(-1)
            noise = (ROUNDING * torch.finfo(dtype).eps) ** 2 * (size[:, :, None] + size[:, None])
            noise += ROUNDING * torch.finfo(exact.dtype).eps * (square[:, :, None] + square[:, None] + whole)
            kept = (step > noise) & (rest > noise)
        cosine = (inner - step) * torch.where(kept, step * rest, 1.0).rsqrt() * kept
        return ((1 - cosine) * share * spans).sum()


class SemanticTubeLoss(SequenceLoss):
    """Next-token loss plus the mean over documents of the mean over their spans of 1 - cos: parts `next_token`, in nats
    per token, and `tube`."""

    def __init__(self, tube_weight: float = 0.02) -> None:
        """`tube_weight` is the factor of 1 - cos. Raises `ValueError` unless it is above 0."""
        super().__init__()
        self.config: SemanticTubeConfig = settings(SemanticTubeConfig, tube_weight=tube_weight)

    def compute(
        self, model: Vocabulary, hidden: Hidden, batch: Batch, counts: Mapping[str, Tensor], smoothing: float
    ) -> Loss:
        """See `SequenceLoss.compute`."""
        return loss(self.config, model, hidden, batch, counts, smoothing)

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """Scored tokens; documents of three tokens or more."""
        return counts(batch)
