"""Token order prediction (Zuhri et al. 2025): a second vocabulary head ranks the coming tokens by how soon they come.

At position t a token that next occurs d positions later, d at most the window W, has the score W - d, all others minus
infinity. The target is the softmax of the scores, in which a token weighs exp(-d); the loss is the cross-entropy of the
second head, a matrix on the readout that the next-token head reads. Inference does not use it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from statewise.backbones.base import BackboneFactory
from statewise.backbones.nn.layers import Init, check_init, init_weights
from statewise.data_types import Batch, Loss, Part
from statewise.objectives.base import Objective, head_flops, token_flops
from statewise.objectives.predictors import HeadPredictor
from statewise.objectives.targets import coming_tokens, token_targets
from statewise.objectives.vocabulary_head import OfLogits, head_function, head_loss
from statewise.runtime.bounds import bounded


@dataclass(frozen=True)
class TokenOrderConfig:
    """Fields of `objective: token_order`."""

    window: int = 16
    """Coming tokens W that are ranked. Weights fall as exp(-distance): more than 16 change the loss by less than
    1e-6."""
    order_weight: float = 1.0
    """Factor of the loss of the second head."""
    init: Init | None = None
    """Initialisation of the second head: `gpt2` (std 0.02), `fan_in` (1 / sqrt(inputs)) or a std; null: the
    backbone's."""

    def __post_init__(self) -> None:
        bounded(self, "window", prefix="objective.", at_least=1)
        bounded(
            self, "order_weight", prefix="objective.", above=0, reason="without it this is the objective next_token"
        )
        check_init(self, "objective.", "gpt2", "fan_in", optional=True)


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
        first, end = batch.span
        readout = self.backbone.readouts(batch)[:, first - 1 : end - 1]
        following = head_loss(readout, self.backbone.head_weight(), token_targets(batch))
        order = head_function(readout, self.order.weight, self._order_loss(batch))
        return Loss(
            {
                "next_token": Part(following, counts["next_token"], 1.0),
                "order": Part(order, counts["order"], self.config.order_weight),
            }
        )

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """Scored tokens: each is the nearest of the coming tokens of the position before it."""
        return {"next_token": batch.scored.sum(), "order": batch.scored.sum()}

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

    def _order_loss(self, batch: Batch) -> OfLogits:
        """The cross-entropy against the target distributions, of the positions before the span."""
        first, end = batch.span
        window = min(self.config.window, end - first)
        tokens, soonest = (part.flatten(0, 1) for part in coming_tokens(batch, first - 1, end - 1, 1, window))
        counted = batch.scored[:, first:end].flatten()
        weights = torch.arange(window, device=tokens.device).neg().exp() * (soonest & counted[:, None])
        shares = weights / weights.sum(-1, keepdim=True).clamp(min=1)

        def order_loss(logits: Tensor, block: slice) -> tuple[Tensor, Tensor]:
            share, at = shares[block].to(logits.dtype), tokens[block]
            log_probs = logits.log_softmax(-1)
            loss = -(log_probs.gather(-1, at) * share).sum()
            return loss, log_probs.exp_().mul_(counted[block, None]).scatter_add_(-1, at, -share)

        return order_loss
