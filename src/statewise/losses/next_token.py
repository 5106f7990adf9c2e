"""Next-token prediction: the cross-entropy of the next token, without keeping the logits of all positions."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from statewise.batch import Batch, Hidden, Loss
from statewise.losses.sequence_loss import SequenceLoss, Vocabulary
from statewise.losses.vocabulary_head import next_token_part


class NextTokenLoss(SequenceLoss):
    """Mean cross-entropy of the scored tokens: part `next_token`, in nats per token."""

    def compute(
        self, model: Vocabulary, hidden: Hidden, batch: Batch, counts: Mapping[str, Tensor], smoothing: float
    ) -> Loss:
        """See `SequenceLoss.compute`."""
        return Loss({"next_token": next_token_part(hidden.readout, model.head_weight(), batch, counts, smoothing)})

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """Scored tokens."""
        return {"next_token": batch.scored.sum()}
