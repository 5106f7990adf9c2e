"""Next-token prediction: the standard GPT objective, and the baseline for all others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor
from typing_extensions import override

from statewise.backbones.base import BackboneFactory
from statewise.batch import Batch, Loss
from statewise.losses.vocabulary_head import next_token_part
from statewise.objectives.base import Objective, token_flops
from statewise.objectives.predictors import HeadPredictor


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
        return Loss(
            {"next_token": next_token_part(self.backbone.readouts(batch), self.backbone.head_weight(), batch, counts)}
        )

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """Scored tokens."""
        return {"next_token": batch.scored.sum()}

    @override
    def flops(self, batch: Batch) -> float | None:
        return token_flops(self.backbone, batch)

    def predictor(self) -> HeadPredictor:
        """The backbone and its head."""
        return HeadPredictor(self.backbone)
