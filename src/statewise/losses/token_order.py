"""Token order prediction (Zuhri et al. 2025): a second vocabulary head ranks the coming tokens by how soon they come.

At position t a token that next occurs d positions later, d at most the window W, has the score W - d, all others minus
infinity. The target is the softmax of the scores, in which a token weighs exp(-d); the loss is the cross-entropy of the
second head, a matrix on the readout that the next-token head reads. Inference does not use it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from statewise.backbones.nn.layers import Init, check_init, init_weights
from statewise.batch import Batch, Hidden, Loss, Part
from statewise.losses.sequence_loss import SequenceLoss, Vocabulary, check_sizes, settings
from statewise.losses.targets import coming_tokens
from statewise.losses.vocabulary_head import OfLogits, head_function, next_token_part
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


def counts(batch: Batch) -> dict[str, Tensor]:
    """Scored tokens: each is the nearest of the coming tokens of the position before it."""
    return {"next_token": batch.scored.sum(), "order": batch.scored.sum()}


def loss(
    config: TokenOrderConfig,
    order: nn.Linear,
    model: Vocabulary,
    hidden: Hidden,
    batch: Batch,
    counts: Mapping[str, Tensor],
    smoothing: float = 0.0,
) -> Loss:
    """Parts `next_token` and `order`, both cross-entropies in nats per scored token."""
    first, end = batch.span
    readout = hidden.readout[:, first - 1 : end - 1]
    ranked = head_function(readout, order.weight, _order_loss(config, batch))
    return Loss(
        {
            "next_token": next_token_part(hidden.readout, model.head_weight(), batch, counts, smoothing),
            "order": Part(ranked, counts["order"], config.order_weight),
        }
    )


def _order_loss(config: TokenOrderConfig, batch: Batch) -> OfLogits:
    """The cross-entropy against the target distributions, of the positions before the span."""
    first, end = batch.span
    window = min(config.window, end - first)
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


class TokenOrderLoss(SequenceLoss):
    """Next-token loss plus the cross-entropy of the order of the coming tokens: parts `next_token` and `order`, in nats
    per token. `order` is the second head."""

    def __init__(self, width: int, vocabulary: int, window: int = 16, *, init: Init = "gpt2", **config: Any) -> None:
        """`width` is D, `vocabulary` V; `config` are further fields of `TokenOrderConfig`. Raises `ValueError` if they
        do not fit together."""
        super().__init__()
        self.config: TokenOrderConfig = settings(TokenOrderConfig, window=window, init=init, **config)
        check_sizes(width=width, vocabulary=vocabulary)
        self.width = width
        self.order = nn.Linear(width, vocabulary, bias=False)
        init_weights(self.order, init)

    def compute(
        self, model: Vocabulary, hidden: Hidden, batch: Batch, counts: Mapping[str, Tensor], smoothing: float
    ) -> Loss:
        """See `SequenceLoss.compute`."""
        return loss(self.config, self.order, model, hidden, batch, counts, smoothing)

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """Scored tokens, for both parts."""
        return counts(batch)
