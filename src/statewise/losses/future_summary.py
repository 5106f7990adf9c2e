"""The bag of future summary prediction (Mahajan et al. 2025): the state also predicts which tokens come after the next
one, the set of the tokens t + 2 .. t + window. A linear map of the state predicts it. Inference does not use it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from statewise.backbones.nn.layers import Init, check_init, init_weights
from statewise.batch import Batch, Hidden, Loss, Part
from statewise.losses.sequence_loss import SequenceLoss, Vocabulary, check_sizes, settings
from statewise.losses.targets import coming_tokens, predicts, reached_columns
from statewise.losses.vocabulary_head import OfLogits, head_function, next_token_part
from statewise.runtime.bounds import bounded


@dataclass(frozen=True)
class BagConfig:
    """The fields of `objective: future_summary` for the summary `bag`."""

    window: int = 12
    """The last offset of the set of coming tokens: it has the tokens t + 2 .. t + window."""
    summary_weight: float = 1.0
    """Factor of its loss."""
    init: Init = "gpt2"
    """Initialisation of the map to the set: `gpt2` (std 0.02), `fan_in` (1 / sqrt(inputs)) or a std."""

    def __post_init__(self) -> None:
        bounded(self, "window", at_least=2)
        bounded(self, "summary_weight", above=0)
        check_init(self, "", "gpt2", "fan_in")


def bag_loss(map: nn.Linear, window: int, hidden: Hidden, batch: Batch) -> Tensor:
    """Scalar: the summed binary cross-entropy in nats of the sets of coming tokens."""
    start, stop = reached_columns(batch, 1)
    return head_function(hidden.state[:, start - 1 : stop - 1], map.weight, _bag_loss(window, len(map.weight), batch))


def _bag_loss(window: int, vocabulary: int, batch: Batch) -> OfLogits:
    """The binary cross-entropy of membership, of the positions from which token t + 2 may be scored. Tokens in the
    bag and tokens outside weigh 1/2 together, so that the loss does not depend on their numbers."""
    start, stop = reached_columns(batch, 1)
    high = min(window, max(2, stop + 1 - start))
    tokens, inside = (part.flatten(0, 1) for part in coming_tokens(batch, start - 1, stop - 1, 2, high))
    counted = predicts(batch, 1).flatten()
    members = inside.sum(-1)
    outsiders = vocabulary - members
    halves = 0.5 * counted[:, None] / torch.stack((members, outsiders), -1).clamp(min=1)

    def bag_loss(logits: Tensor, block: slice) -> tuple[Tensor, Tensor]:
        of_member, of_outsider = halves[block].to(logits.dtype).chunk(2, -1)
        at, member = tokens[block], inside[block]
        chosen = logits.gather(-1, at)
        absent, absent_chosen = F.softplus(logits).sum(-1, keepdim=True), F.softplus(chosen)
        outside = absent - (absent_chosen * member).sum(-1, keepdim=True)
        within = ((absent_chosen - chosen) * member).sum(-1, keepdim=True)
        loss = (outside * of_outsider + within * of_member).sum()
        present = chosen.sigmoid()
        change = ((present - 1) * of_member - present * of_outsider) * member
        return loss, logits.sigmoid_().mul_(of_outsider).scatter_add_(-1, at, change)

    return bag_loss


class FutureSummaryLoss(SequenceLoss):
    """Next-token loss plus the loss of the set of coming tokens: parts `next_token` and `bag`, in nats. The summary by
    a second model that reads from right to left is the objective `future_summary` of `statewise train`."""

    def __init__(self, width: int, vocabulary: int, window: int = 12, *, init: Init = "gpt2", **config: Any) -> None:
        """`width` is the states', `vocabulary` V; `config` are further fields of `BagConfig`. Raises `ValueError` if
        one of them is out of bounds."""
        super().__init__()
        self.config: BagConfig = settings(BagConfig, window=window, init=init, **config)
        check_sizes(width=width, vocabulary=vocabulary)
        self.width = width
        self.map = nn.Linear(width, vocabulary, bias=False)
        init_weights(self.map, init)

    def compute(
        self, model: Vocabulary, hidden: Hidden, batch: Batch, counts: Mapping[str, Tensor], smoothing: float
    ) -> Loss:
        """See `SequenceLoss.compute`."""
        bag = bag_loss(self.map, self.config.window, hidden, batch)
        return Loss(
            {
                "next_token": next_token_part(hidden.readout, model.head_weight(), batch, counts, smoothing),
                "bag": Part(bag, counts["bag"], self.config.summary_weight),
            }
        )

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """Scored tokens; positions with a summary."""
        return {"next_token": batch.scored.sum(), "bag": predicts(batch, 1).sum()}
