"""Latent multi-token prediction (LSE-MTP, 2026): the states of multi-token heads are also regressed onto the true later
states.

The head for the token k + 1 positions ahead has a state of its own, the output of its last block. The vocabulary head
reads the same token from the true state k positions later, so the former should be the latter: a smooth L1 loss pulls
it there, with the later state as a fixed target.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from statewise.backbones.base import BackboneFactory
from statewise.batch import Batch, Loss, Part
from statewise.losses.multi_token import MultiTokenConfig
from statewise.losses.targets import follows, reached
from statewise.objectives.multi_token import MultiToken
from statewise.runtime.bounds import bounded


@dataclass(frozen=True)
class LatentMultiTokenConfig(MultiTokenConfig):
    """Fields of `objective: latent_multi_token`."""

    latent_weight: float = 1.0
    """Factor of the regression onto later states."""

    def __post_init__(self) -> None:
        super().__post_init__()
        bounded(
            self, "latent_weight", prefix="objective.", above=0, reason="without it this is the objective multi_token"
        )


class LatentMultiToken(MultiToken):
    """Multi-token prediction plus the mean of the regression losses of the K further heads."""

    Config = LatentMultiTokenConfig
    name: ClassVar[str] = "latent_multi_token"

    def __init__(self, config: LatentMultiTokenConfig, make_backbone: BackboneFactory) -> None:
        super().__init__(config, make_backbone)
        self.latent_weight = config.latent_weight

    def loss(self, batch: Batch, counts: Mapping[str, Tensor]) -> Loss:
        """Parts `next_token` and `ahead` (nats per token), and `latent` (smooth L1 per element); the last two with one
        sum per further head."""
        readouts = self.all_readouts(batch)
        goal = readouts[0].detach()
        latent = []
        for steps, readout in enumerate(readouts[1:], 1):
            distance = F.smooth_l1_loss(readout[:, :-steps], goal[:, steps:], reduction="none").mean(-1)
            latent.append((distance * follows(batch, steps)).sum())
        parts = self.token_parts(batch, counts, readouts)
        return Loss({**parts, "latent": Part(torch.stack(latent), counts["latent"], self.latent_weight)})

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """The counts of `multi_token`, and for each further head the positions whose document reaches that far."""
        return {**super().counts(batch), "latent": reached(batch, self.config.horizon)}
