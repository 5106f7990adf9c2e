"""The objective token order prediction (Zuhri et al. 2025); `statewise.losses.token_order` has its loss."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from statewise.backbones.base import BackboneFactory
from statewise.backbones.nn.layers import init_weights
from statewise.batch import Batch, Hidden, Loss
from statewise.losses import token_order as losses
from statewise.losses.token_order import TokenOrderConfig
from statewise.objectives.base import Objective, head_flops, token_flops
from statewise.objectives.predictors import HeadPredictor


class TokenOrder(Objective):
    """Next-token loss plus the cross-entropy of the order of the coming tokens, at the same positions."""

    Config = TokenOrderConfig

    def __init__(self, config: TokenOrderConfig, make_backbone: BackboneFactory) -> None:
        super().__init__()
        self.config = config
        self.backbone = make_backbone()
        self.order = nn.Linear(self.backbone.width, self.backbone.vocabulary, bias=False)
        init_weights(self.order, config.init or self.backbone.head_init or "gpt2")

    def loss(self, batch: Batch, counts: Mapping[str, Tensor]) -> Loss:
        """Parts `next_token` and `order`, both cross-entropies in nats per scored token."""
        readout = self.backbone.readouts(batch)
        hidden = Hidden(readout, readout)
        return losses.loss(self.config, self.order, self.backbone, hidden, batch, counts)

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """Scored tokens: each is the nearest of the coming tokens of the position before it."""
        return losses.counts(batch)

    def head_matrices(self) -> list[Tensor]:
        """See `Objective.head_matrices`; includes the matrix of the second head."""
        return [*super().head_matrices(), self.order.weight]

    def flops(self, batch: Batch) -> float | None:
        """See `Objective.flops`: the second head costs as much as the first."""
        plain = token_flops(self.backbone, batch)
        return None if plain is None else plain + 3 * head_flops(self.backbone) * int(batch.scored.sum())

    def predictor(self) -> HeadPredictor:
        """The backbone and its head."""
        return HeadPredictor(self.backbone)
