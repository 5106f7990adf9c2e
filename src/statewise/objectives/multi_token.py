"""Multi-token prediction (Gloeckle et al. 2024): further heads predict the tokens after the next one.

All heads share the vocabulary head and all blocks except the last; each has its own last block and norm. Inference uses
only the first head, so the network is a plain decoder. Its belief state is the input of all heads, the output of the
shared trunk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from statewise.backbones.base import BackboneFactory
from statewise.backbones.powers import Branching
from statewise.objectives.base import Objective
from statewise.objectives.costs import document_flops, head_flops, token_flops
from statewise.objectives.head_loss import head_loss
from statewise.objectives.predictors import CausalPredictor, head_predictor
from statewise.objectives.targets import AheadConfig, ahead_counts, ahead_targets, reached_columns, token_targets
from statewise.types import Batch, Hidden, LacksPower, Loss, Part


@dataclass(frozen=True)
class MultiTokenConfig(AheadConfig):
    """Fields of `objective: multi_token`."""


class MultiToken(Objective):
    """Next-token loss plus the mean of the losses of K further heads."""

    Config = MultiTokenConfig
    name: ClassVar[str] = "multi_token"
    """In messages."""

    def __init__(self, config: MultiTokenConfig, make_backbone: BackboneFactory) -> None:
        super().__init__()
        self.config = config
        backbone = make_backbone()
        if not isinstance(backbone, Branching):
            raise LacksPower(f"{self.name} needs a backbone whose last block can be replicated", Branching)
        self.backbone: Branching = backbone
        self.branches = nn.ModuleList(backbone.make_branch() for _ in range(config.horizon))

    def loss(self, batch: Batch, counts: Mapping[str, Tensor]) -> Loss:
        """Parts `next_token` and `ahead`, the latter with one sum per head, in nats per token."""
        return Loss(self.token_parts(batch, counts, self.readouts(batch)))

    def readouts(self, batch: Batch) -> list[Tensor]:
        """The readouts (B, T, D) of the first head, then of each further one."""
        trunk = self.backbone.trunk(batch)
        return [self.backbone.last(trunk).readout, *(branch(trunk) for branch in self.branches)]

    def token_parts(self, batch: Batch, counts: Mapping[str, Tensor], readouts: Sequence[Tensor]) -> dict[str, Part]:
        """The parts of `loss`."""
        (first, end), weight = batch.span, self.backbone.head_weight()
        following = head_loss(readouts[0][:, first - 1 : end - 1], weight, token_targets(batch))
        ahead = []
        for steps, readout in enumerate(readouts[1:], 1):
            start, stop = reached_columns(batch, steps)
            ahead.append(head_loss(readout[:, start - steps : stop - steps], weight, ahead_targets(batch, steps)))
        return {
            "next_token": Part(following, counts["next_token"], 1.0),
            "ahead": Part(torch.stack(ahead), counts["ahead"], self.config.ahead_weight),
        }

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """See `ahead_counts`."""
        return ahead_counts(batch, self.config.horizon)

    def flops(self, batch: Batch) -> float | None:
        """See `Objective.flops`: of each further head a last block, and the vocabulary head where it has a target."""
        plain = token_flops(self.backbone, batch)
        if plain is None:
            return None
        blocks = self.config.horizon * document_flops(self.backbone.branch_flops, batch)
        ahead = ahead_counts(batch, self.config.horizon)["ahead"]
        return plain + 3 * (blocks + head_flops(self.backbone) * int(ahead.sum()))

    def predictor(self) -> TrunkPredictor:
        """The backbone and its head."""
        return head_predictor(self.backbone, TrunkPredictor)


class TrunkPredictor(CausalPredictor):
    """A decoder whose belief state is the shared trunk's output, before the last block."""

    state_is_last = False

    @torch.no_grad()
    def states(self, batch: Batch) -> Hidden:
        """State: the trunk's output, which Teoh et al. 2026 (appendix D) probe; readout: the first head's."""
        assert isinstance(self.backbone, Branching)
        trunk = self.backbone.trunk(batch.to(self.device))
        return Hidden(self.backbone.trunk_state(trunk), self.backbone.last(trunk).readout)
