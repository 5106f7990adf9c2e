"""The objective semantic tube prediction (Huang, LeCun, Balestriero 2026); `statewise.losses.semantic_tube` has its
loss."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from statewise.backbones.base import BackboneFactory
from statewise.batch import Batch, Loss
from statewise.losses import semantic_tube as losses
from statewise.losses.semantic_tube import SemanticTubeConfig
from statewise.objectives.base import Objective, document_flops, token_flops
from statewise.objectives.predictors import HeadPredictor


class SemanticTube(Objective):
    """Next-token loss plus the mean over documents of the mean over their spans of 1 - cos."""

    Config = SemanticTubeConfig

    def __init__(self, config: SemanticTubeConfig, make_backbone: BackboneFactory) -> None:
        super().__init__()
        self.config = config
        self.backbone = make_backbone()

    def loss(self, batch: Batch, counts: Mapping[str, Tensor]) -> Loss:
        """Parts `next_token`, in nats per token, and `tube`, 1 - cos per document of three tokens or more."""
        hidden = self.backbone.encode(batch)
        return losses.loss(self.config, self.backbone, hidden, batch, counts)

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """Scored tokens; documents of three tokens or more, counted at their third."""
        return losses.counts(batch)

    def flops(self, batch: Batch) -> float | None:
        """See `Objective.flops`: the products of all pairs of states of a document."""
        plain, width = token_flops(self.backbone, batch), self.backbone.state_width
        if plain is None:
            return None
        return plain + 3 * document_flops(lambda length: width * length * (length + 1), batch)

    def predictor(self) -> HeadPredictor:
        """The backbone and its head."""
        return HeadPredictor(self.backbone)
