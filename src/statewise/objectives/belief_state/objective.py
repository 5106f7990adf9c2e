"""The objective of the Belief State Transformer (Hu et al. 2025); `statewise.losses.belief_state` has its loss.

F reads the prefix from the left, B the suffix from the right; a text head on both predicts the token after the
prefix and the token before the suffix, for every prefix and every later suffix, including empty ones.
At inference the suffix is empty, or a goal: the model is then a GPT with another head.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from statewise.backbones.base import Backbone, BackboneFactory, encode_backwards
from statewise.backbones.capabilities import Counted
from statewise.batch import Batch, Loss
from statewise.losses.belief_state import loss as losses
from statewise.losses.belief_state.loss import BeliefStateConfig
from statewise.losses.belief_state.pairs import Layout, Pairs, pair_numbers
from statewise.objectives.base import Objective, backbone_flops
from statewise.objectives.belief_state.predictors import BeliefPredictor, GoalPredictor


class BeliefState(Objective):
    """Both encoders and the text head (equations 1 and 2). Its own begin and end tokens represent the empty prefix and
    the empty suffix."""

    Config = BeliefStateConfig
    weights_can_decay = False

    def __init__(self, config: BeliefStateConfig, make_backbone: BackboneFactory) -> None:
        super().__init__()
        self.config = config
        self.prefix_encoder = make_backbone(extra_tokens=2, tied=True)  # tied: the text head is the only head
        self.vocabulary = self.prefix_encoder.vocabulary - 2
        self.begin, self.end = self.vocabulary, self.vocabulary + 1
        self.suffix_encoder: Backbone | None = None
        if config.backward:
            self.suffix_encoder = make_backbone(extra_tokens=2, tied=True, embedding_of=self.prefix_encoder)
        encoder = self.prefix_encoder
        self.head = losses.make_head(
            config, encoder.state_width, self.vocabulary, encoder.head_init, norm_eps=encoder.norm_eps
        )

    def loss(self, batch: Batch, counts: Mapping[str, Tensor]) -> Loss:
        """Parts `next_token` and `previous_token`, in nats per pair."""
        prefix = torch.cat((self.empty_prefix()[0], self.prefix_states(batch).flatten(0, 1)))
        suffix = prefix  # without a backward encoder a stand-in that no head reads
        if self.suffix_encoder is not None:
            suffix = torch.cat((self.empty_suffix()[0], self.suffix_states(batch).flatten(0, 1)))
        plan = batch.plan if isinstance(batch.plan, Layout) else self.plan(batch)
        return losses.loss(self.config, self.head, prefix, suffix, plan, counts)

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """Counted pairs of each head; their expected total weight if pairs are weighted."""
        return losses.counts(self.config, batch)

    def plan(self, batch: Batch) -> Layout:
        """See `Objective.plan`: where its pairs are. Draws from torch's generator of the CPU if `share` is below 1."""
        return losses.plan(self.config, batch, self.vocabulary)

    def head_matrices(self) -> list[Tensor]:
        """See `Objective.head_matrices`; includes the matrices of the text head."""
        return [*super().head_matrices(), *self.head.head_matrices()]

    def flops(self, batch: Batch) -> float | None:
        """See `Objective.flops`; for sampled pairs the expected number. Without a backward encoder pairs of one prefix
        have the same distributions."""
        body = backbone_flops(self.prefix_encoder, batch)
        if body is None or not isinstance(self.prefix_encoder, Counted):
            return None
        pairs = self.pairs(batch)
        if not self.config.previous_weight:
            pairs = pairs._replace(previous_targets=torch.zeros_like(pairs.previous_targets))
        numbers = pair_numbers(pairs, self.config.sampling, closed=self.config.min_gap == 1)
        encoders, used_pairs, targets = 2, numbers.pairs, numbers.next_tokens + numbers.previous_tokens
        if self.suffix_encoder is None:
            encoders, used_pairs, targets = 1, numbers.prefixes, self.head.outputs * numbers.prefixes
        encoded = encoders * (body + self.prefix_encoder.flops(1))  # and the empty prefix and suffix
        return 3 * (encoded + self.head.flops(numbers.prefixes, numbers.suffixes, used_pairs, targets))

    def predictor(self) -> BeliefPredictor:
        """A predictor with an empty suffix; with a backward encoder it can also condition on goals and score them."""
        return GoalPredictor(self) if self.suffix_encoder is not None else BeliefPredictor(self)

    # States

    def prefix_states(self, batch: Batch) -> Tensor:
        """(B, T, D): F of the prefix that ends with each token."""
        return self.prefix_encoder.encode(batch).state

    def suffix_states(self, batch: Batch) -> Tensor:
        """(B, T, D): B of the suffix that begins with each token."""
        assert self.suffix_encoder is not None
        return encode_backwards(self.suffix_encoder, batch).state

    def empty_prefix(self) -> Tensor:
        """(1, 1, D): F of the empty prefix."""
        return self._alone(self.prefix_encoder, self.begin)

    def empty_suffix(self) -> Tensor:
        """(1, 1, D): B of the empty suffix; without a backward encoder, a placeholder that no head reads."""
        return self.empty_prefix() if self.suffix_encoder is None else self._alone(self.suffix_encoder, self.end)

    def _alone(self, encoder: Backbone, token: int) -> Tensor:
        device = next(self.parameters()).device
        return encoder.encode(Batch.plain(torch.full((1, 1), token, device=device))).state

    def pairs(self, batch: Batch) -> Pairs:
        """The pairs of a batch, under the convention for prompts."""
        return losses.pairs_of(self.config, batch)
