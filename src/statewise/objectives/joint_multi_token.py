"""The objective joint multi-token prediction (Ahn et al. 2025); `statewise.losses.joint_multi_token` has its loss.

Inference uses place 0 of Fetch only; the others can draft.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping

import torch
from torch import Tensor
from typing_extensions import override

from statewise.backbones.base import BackboneFactory
from statewise.batch import Batch, Hidden, Loss
from statewise.decoding.predictor import Drafter
from statewise.losses import joint_multi_token as losses
from statewise.losses.joint_multi_token import Fetch, JointMultiTokenConfig
from statewise.losses.targets import ahead_counts, check_horizon, predicts, reached_columns
from statewise.objectives.base import Objective, head_flops, token_flops
from statewise.objectives.predictors import CausalCursor, CausalPredictor, DraftHead, guessing


class JointMultiToken(Objective):
    """Next-token loss plus the mean of the losses of K further tokens."""

    Config = JointMultiTokenConfig

    def __init__(self, config: JointMultiTokenConfig, make_backbone: BackboneFactory) -> None:
        super().__init__()
        self.config = config
        self.backbone = make_backbone()
        check_horizon(config.horizon, self.backbone.context)
        self.fetch = Fetch(
            self.backbone.width,
            config.horizon + 1,
            init=config.init or self.backbone.head_init or "gpt2",
            norm_eps=self.backbone.norm_eps,
        )

    def loss(self, batch: Batch, counts: Mapping[str, Tensor]) -> Loss:
        """Parts `next_token` and `ahead`, the latter with one sum per place, in nats per token."""
        return losses.loss(self.config, self.fetch, self.backbone, self.backbone.encode(batch), batch, counts)

    @override
    def counts(self, batch: Batch) -> dict[str, Tensor]:
        return ahead_counts(batch, self.config.horizon)

    def flops(self, batch: Batch) -> float | None:
        """See `Objective.flops`. Fetch adds queries and outputs of the places that have a target, and keys and values
        of these and of the places before them."""
        plain = token_flops(self.backbone, batch)
        if plain is None:
            return None
        K, (first, end) = self.config.horizon, batch.span
        wanted = batch.scored.new_zeros(K + 1, *batch.tokens.shape)
        wanted[0, :, first - 1 : end - 1] = batch.scored[:, first:end]
        for steps in range(1, K + 1):
            start, stop = reached_columns(batch, steps)
            wanted[steps, :, start - steps : stop - steps] = predicts(batch, steps)
        by_place = wanted.sum((1, 2))
        read = int((wanted.flip(0).cumsum(0) > 0).sum())
        pairs = int((by_place * torch.arange(1, K + 2)).sum())
        width = self.backbone.width
        fetch = 4 * width**2 * (int(by_place.sum()) + read) + 4 * width * pairs
        return plain + 3 * (fetch + head_flops(self.backbone) * int(by_place[1:].sum()))

    def predictor(self) -> JointPredictor:
        """The backbone, place 0 of Fetch, and the head."""
        return JointPredictor(self)


class JointPredictor(CausalPredictor, Drafter):
    """A decoder whose head reads place 0. The further places draft at most K tokens. Its cursor keeps h_t with the
    embedding of the token at t, the input of place 0."""

    def __init__(self, objective: JointMultiToken) -> None:
        super().__init__(objective.backbone)
        self.fetch, self.draft_head = objective.fetch, DraftHead(objective.backbone)

    @override
    def next_logits(self, hidden: Hidden, tokens: Tensor, cursor: CausalCursor | None = None) -> Tensor:
        embedded = self.backbone.embed(tokens).flatten(0, 1)[:, None]
        readout = self.fetch(self.backbone.state_for_head(hidden.state).flatten(0, 1), embedded)[:, 0]
        return self.backbone.logits(readout.unflatten(0, tokens.shape))

    @override
    def kept(self, hidden: Hidden, tokens: Tensor) -> Tensor:
        return torch.cat((self.backbone.state_for_head(hidden.state), self.backbone.embed(tokens)), dim=-1)

    def guesses(
        self, cursor: CausalCursor, token: Tensor, among: Tensor | None = None
    ) -> Generator[Tensor, Tensor, None]:
        """See `Drafter.guesses`: place i reads the token t + i and predicts the next, with the state h_t of all."""
        state, own = cursor.state().to(self.fetch.bias.dtype).chunk(2, dim=-1)
        places, device = own[:, None], self.device
        for _ in range(self.fetch.bias.shape[1] - 1):
            with guessing(state, self.fetch.bias):
                places = torch.cat((places, self.backbone.embed(token.to(device))[:, None]), dim=1)
                logits = self.draft_head(self.fetch(state, places)[:, -1], among)
            token = yield logits
