"""Joint multi-token prediction (Ahn et al. 2025): predicts the next tokens jointly, each given those before it.

A small module on top of the backbone, Fetch, attends over K + 1 places at every position t: the state h_t with
the token at t, then h_t with each of the tokens t + 1 .. t + K. Place i predicts the token at t + i + 1. So
h_t must contain everything about the past that these tokens depend on. Inference uses place 0 only; the others can
draft.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import override

from statewise.backbones.base import BackboneFactory
from statewise.backbones.nn.layers import Init, check_init, init_weights, make_norm
from statewise.backbones.nn.masks import causal_bias
from statewise.data_types import Batch, Hidden, Loss
from statewise.decoding.predictor import Drafter
from statewise.objectives.base import Objective, head_flops, token_flops
from statewise.objectives.predictors import CausalCursor, CausalPredictor, DraftHead, guessing
from statewise.objectives.targets import (
    AheadConfig,
    ahead_counts,
    ahead_targets,
    check_horizon,
    predicts,
    reached_columns,
    token_targets,
)
from statewise.objectives.vocabulary_head import head_loss

MOST_HEADS = 4
"""Maximum number of attention heads in Fetch."""


@dataclass(frozen=True)
class JointMultiTokenConfig(AheadConfig):
    """Fields of `objective: joint_multi_token`."""

    init: Init | None = None
    """Initialisation of Fetch: `gpt2` (std 0.02), `fan_in` (1 / sqrt(inputs)) or a std; null: the backbone's,
    without scaling by depth."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_init(self, "objective.", "gpt2", "fan_in", optional=True)


class Fetch(nn.Module):
    """One causal self-attention layer, without an MLP, over the places of each position."""

    def __init__(self, width: int, places: int, *, init: Init, norm_eps: float) -> None:
        super().__init__()
        self.heads = max(heads for heads in range(1, MOST_HEADS + 1) if width % heads == 0)
        self.gamma = nn.Parameter(torch.tensor([0.1]))  # one dimension: scalars cannot be sharded
        self.mix_norm = make_norm("layer", width, bias=True, eps=norm_eps)
        self.in_proj = nn.Linear(width, 3 * width, bias=False)
        self.out_proj = nn.Linear(width, width, bias=False)
        self.bias = nn.Parameter(torch.zeros(self.heads, places, places))
        self.norm = make_norm("layer", width, bias=True, eps=norm_eps)
        init_weights(self, init)

    def forward(self, states: Tensor, embedded: Tensor) -> Tensor:
        """States (N, D) and embeddings (N, S, D) of the tokens of their places -> readouts (N, S, D)."""
        N, S, D = embedded.shape
        mixed = self.mix_norm(embedded + self.gamma * states[:, None])
        query, key, value = self.in_proj(mixed).view(N, S, 3, self.heads, D // self.heads).permute(2, 0, 3, 1, 4)
        scores = query @ key.transpose(-2, -1) * (D // self.heads) ** -0.5
        scores = scores + (self.bias[:, :S, :S] + causal_bias(S, S, scores.device, scores.dtype))
        seen = scores.softmax(dim=-1) @ value
        fetched = self.out_proj(seen.transpose(1, 2).reshape(N, S, D))
        # Place 0 has no residual: the next token must be predicted through the attention, as at inference.
        residual = F.pad(states[:, None].expand(N, S - 1, D), (0, 0, 1, 0))
        return self.norm(fetched + residual)


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
        K, (first, end) = self.config.horizon, batch.span
        T = batch.tokens.shape[1]
        start, stop = max(0, first - 1 - K), end - 1
        hidden = self.backbone.encode(batch)
        states = self.backbone.state_for_head(hidden.state[:, start:stop])
        ahead_of = torch.arange(start, stop, device=states.device)[:, None] + torch.arange(K + 1, device=states.device)
        embedded = self.backbone.embed(batch.tokens[:, ahead_of.clamp(max=T - 1)])  # not scored beyond the end
        readout = self.fetch(states.flatten(0, 1), embedded.flatten(0, 1)).unflatten(0, states.shape[:2])
        weight = self.backbone.head_weight()
        following = head_loss(readout[:, first - 1 - start :, 0], weight, token_targets(batch))
        ahead = []
        for steps in range(1, K + 1):
            from_, to = (column - steps - start for column in reached_columns(batch, steps))
            ahead.append(head_loss(readout[:, from_:to, steps], weight, ahead_targets(batch, steps)))
        return Loss(self.config.parts(following, ahead, counts))

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
