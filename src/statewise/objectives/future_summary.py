"""Future summary prediction (Mahajan et al. 2025): the state also predicts a summary of what comes later.

The summary of what comes after the next token is either the hidden state of a second model that reads from right to
left, after the tokens from the end back to t + 2 (`reverse`), or the set of tokens among the next few from t + 2 on
(`bag`). A linear map of the state predicts it. Inference uses neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from statewise.backbones.base import Backbone, BackboneFactory, encode_backwards
from statewise.backbones.nn.layers import Init, check_init, init_weights
from statewise.batch import Batch, Hidden, Loss, Part
from statewise.losses.future_summary import bag_loss
from statewise.losses.targets import IGNORED, answers, predicts, reached_columns, to_float32, token_targets
from statewise.losses.vocabulary_head import head_loss
from statewise.objectives.base import Objective, backbone_flops, head_flops, token_flops
from statewise.objectives.predictors import HeadPredictor
from statewise.runtime.bounds import bounded, unset


@dataclass(frozen=True)
class FutureSummaryConfig:
    """Fields of `objective: future_summary`."""

    summary: Literal["reverse", "bag"] = "reverse"
    """What the state predicts: the state of a model that reads from right to left and is trained along, which doubles
    the cost (`reverse`), or the set of coming tokens (`bag`)."""
    summary_weight: float = 1.0
    """Factor of the loss of the summary."""
    window: int = 12
    """The last offset of the set of coming tokens of `bag`: it has the tokens t + 2 .. t + window."""
    init: Init | None = None
    """Initialisation of the map to the summary: `gpt2` (std 0.02), `fan_in` (1 / sqrt(inputs)) or a std; null: the
    backbone's."""

    def __post_init__(self) -> None:
        bounded(self, "window", prefix="objective.", at_least=2)
        bounded(
            self, "summary_weight", prefix="objective.", above=0, reason="without it this is the objective next_token"
        )
        check_init(self, "objective.", "gpt2", "fan_in", optional=True)
        if self.summary == "reverse":
            unset(self, "window", prefix="objective.", reason="is for the summary bag: omit it, or set summary to bag")
        if self.summary not in ("reverse", "bag"):
            raise ValueError(f"objective.summary must be reverse or bag, not {self.summary!r}")


class FutureSummary(Objective):
    """Next-token loss plus the loss of the summary, at positions t in whose document the token t + 2 is scored."""

    Config = FutureSummaryConfig

    def __init__(self, config: FutureSummaryConfig, make_backbone: BackboneFactory) -> None:
        super().__init__()
        self.config = config
        self.backbone = make_backbone()
        self.reverse: Backbone | None = make_backbone() if config.summary == "reverse" else None
        width = self.backbone.vocabulary if self.reverse is None else self.reverse.state_width
        self.map = nn.Linear(self.backbone.state_width, width, bias=False)
        init_weights(self.map, config.init or self.backbone.head_init or "gpt2")

    def loss(self, batch: Batch, counts: Mapping[str, Tensor]) -> Loss:
        """Part `next_token` in nats per token. With `bag` part `bag`, in nats; with `reverse` parts `previous_token`,
        the reverse model's own loss, in nats per token, and `summary`, a mean square per element."""
        first, end = batch.span
        hidden, weight = self.backbone.encode(batch), self.config.summary_weight
        following = head_loss(hidden.readout[:, first - 1 : end - 1], self.backbone.head_weight(), token_targets(batch))
        parts = {"next_token": Part(following, counts["next_token"], 1.0)}
        if self.reverse is None:
            bag = bag_loss(self.map, self.config.window, hidden, batch)
            return Loss({**parts, "bag": Part(bag, counts["bag"], weight)})
        start, stop = reached_columns(batch, 1)
        state, backwards = hidden.state[:, start - 1 : stop - 1], encode_backwards(self.reverse, batch)
        distance = (self.map(state) - backwards.state[:, start + 1 : stop + 1].detach()).square().mean(-1)
        summary = (to_float32(distance) * predicts(batch, 1)).sum()
        parts["previous_token"] = Part(self._previous_loss(batch, backwards), counts["previous_token"], 1.0)
        return Loss({**parts, "summary": Part(summary, counts["summary"], weight)})

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """Scored tokens; positions with a summary; previous tokens of the reverse model."""
        counts = {"next_token": batch.scored.sum()}
        if self.reverse is None:
            return {**counts, "bag": predicts(batch, 1).sum()}
        return {**counts, "previous_token": has_previous(batch).sum(), "summary": predicts(batch, 1).sum()}

    def head_matrices(self) -> list[Tensor]:
        """See `Objective.head_matrices`; the map to a set of tokens as well."""
        return super().head_matrices() + ([self.map.weight] if self.reverse is None else [])

    def flops(self, batch: Batch) -> float | None:
        """See `Objective.flops`: the map where there is a summary, and the reverse model with its head."""
        plain = token_flops(self.backbone, batch)
        if plain is None:
            return None
        more = 2.0 * self.map.weight.numel() * int(predicts(batch, 1).sum())
        if self.reverse is not None:
            body = backbone_flops(self.reverse, batch)
            assert body is not None
            more += body + head_flops(self.reverse) * int(has_previous(batch).sum())
        return plain + 3 * more

    def predictor(self) -> HeadPredictor:
        """The backbone and its head."""
        return HeadPredictor(self.backbone)

    def _previous_loss(self, batch: Batch, backwards: Hidden) -> Tensor:
        assert self.reverse is not None
        targets = torch.where(has_previous(batch), batch.tokens[:, :-1], IGNORED)
        return head_loss(backwards.readout[:, 1:], self.reverse.head_weight(), targets)


def has_previous(batch: Batch) -> Tensor:
    """(B, T - 1) bool: from position j + 1 on, a reader from right to left is to predict token j of its document."""
    group = batch.document_ids
    return answers(batch, group)[:, :-1] & (group[:, 1:] == group[:, :-1])
