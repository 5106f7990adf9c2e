"""Next-token prediction: the standard GPT objective, and the baseline for all others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor
from typing_extensions import override

from statewise.backbones.base import BackboneFactory
from statewise.data_types import Batch, Loss, Part
from statewise.objectives.base import Objective, token_flops
from statewise.objectives.predictors import HeadPredictor
from statewise.objectives.targets import token_targets
from statewise.objectives.vocabulary_head import head_loss


@dataclass(frozen=True)
class NextTokenConfig:
    """Next-token prediction has no fields."""


class NextToken(Objective):
    """Mean cross-entropy of the scored tokens."""

    Config = NextTokenConfig

    def __init__(self, config: NextTokenConfig, make_backbone: BackboneFactory) -> None:
        super().__init__()
        self.backbone = make_backbone()

    def loss(self, batch: Batch, counts: Mapping[str, Tensor]) -> Loss:
        """One part, `next_token`, in nats per token."""
        first, end = batch.span
        readout = self.backbone.readouts(batch)
        total = head_loss(readout[:, first - 1 : end - 1], self.backbone.head_weight(), token_targets(batch))
        return Loss({"next_token": Part(total, counts["next_token"], 1.0)})

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """The number of scored tokens."""
        return {"next_token": batch.scored.sum()}

    @override
    def flops(self, batch: Batch) -> float | None:
        return token_flops(self.backbone, batch)

    def predictor(self) -> HeadPredictor:
        """The backbone and its head."""
        return HeadPredictor(self.backbone)
