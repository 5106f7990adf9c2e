"""Next-token prediction with a linear guess at the token after next."""

from collections.abc import Mapping
from dataclasses import dataclass

from statewise.backbones.base import BackboneFactory
from statewise.data_types import Batch, Loss, Part
from statewise.losses.targets import to_float32, token_targets
from statewise.losses.vocabulary_head import head_loss
from statewise.objectives.base import Objective
from statewise.objectives.predictors import CausalPredictor, HeadPredictor
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class TwoAheadConfig:
    """Fields of `objective: two_ahead`."""

    weight: float = 0.5
    """Factor of the second guess in the loss."""


class TwoAhead(Objective):
    """The state at t predicts token t + 1 by the head, and token t + 2 by a matrix of its own."""

    Config = TwoAheadConfig

    def __init__(self, config: TwoAheadConfig, make_backbone: BackboneFactory) -> None:
        super().__init__()
        self.config = config
        self.backbone = make_backbone()
        self.second = nn.Linear(self.backbone.state_width, self.backbone.vocabulary, bias=False)

    def loss(self, batch: Batch, counts: Mapping[str, Tensor]) -> Loss:
        """Parts `next_token` and `second`, in nats per token."""
        first, end = batch.span
        hidden = self.backbone.encode(batch)
        readout = hidden.readout[:, first - 1 : end - 1]
        guess = to_float32(self.second(hidden.state[:, :-2]))
        second = F.cross_entropy(guess.flatten(0, 1), batch.tokens[:, 2:].flatten(), reduction="none")
        return Loss(
            {
                "next_token": Part(
                    head_loss(readout, self.backbone.head_weight(), token_targets(batch)), counts["next_token"], 1.0
                ),
                "second": Part((second * two_on(batch).flatten()).sum(), counts["second"], self.config.weight),
            }
        )

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """Scored tokens; those of them that have two tokens of their document before them."""
        return {"next_token": batch.scored.sum(), "second": two_on(batch).sum()}

    def predictor(self) -> CausalPredictor:
        """The backbone and its head; the second guess is for training alone."""
        return HeadPredictor(self.backbone)


def two_on(batch: Batch) -> Tensor:
    """(B, T - 2) bool: token t + 2 is scored and in the same document as t."""
    scored = batch.scored[:, 2:]
    if batch.documents is None:
        return scored
    return scored & (batch.documents[:, 2:] == batch.documents[:, :-2])
