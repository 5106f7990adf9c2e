"""Next-token prediction with a penalty on long token embeddings."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from statewise.data_types import Batch, Loss, Part
from statewise.objectives.next_token import NextToken


@dataclass(frozen=True)
class ShortEmbeddingsConfig:
    """Fields of `objective: short_embeddings`."""

    penalty: float = 0.01
    """Factor of the mean squared length."""


class ShortEmbeddings(NextToken):
    """`NextToken`, and the squared length of the embedding of every token that is read."""

    Config = ShortEmbeddingsConfig

    def __init__(self, config: ShortEmbeddingsConfig, make_backbone) -> None:
        super().__init__(config, make_backbone)
        self.config = config

    def loss(self, batch: Batch, counts: Mapping[str, Tensor]) -> Loss:
        """Parts `next_token` and `length`."""
        squares = self.backbone.embed(batch.tokens).square().sum(-1)
        length = Part((squares * batch.real).sum(), counts["length"], self.config.penalty)
        return Loss({**super().loss(batch, counts).parts, "length": length})

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """Scored tokens, and those that are read."""
        return {**super().counts(batch), "length": batch.real.sum()}
