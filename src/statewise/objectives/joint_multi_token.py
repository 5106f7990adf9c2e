"""Joint multi-token prediction (Ahn et al. 2025): the next tokens together, each given those before it.

A small module behind the backbone, Fetch, attends over K + 1 slots at every position t: the state h_t with
the token at t, then h_t with each of the tokens t + 1 .. t + K. Slot i predicts the token at t + i + 1. So
h_t must hold whatever of the past these tokens depend on. Slot 0 stays in use at inference.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from statewise.backbones.base import BackboneFactory
from statewise.nn.masks import causal_bias
from statewise.nn.norm import make_norm
from statewise.objectives.base import (
    CausalCursor,
    CausalPredictor,
    Objective,
    ahead_loss,
    precise,
    predicts,
    reached_columns,
    squared,
    token_loss,
)
from statewise.types import Batch, Hidden, Loss, Part

MOST_HEADS = 4
"""Fetch has at most so many attention heads."""


@dataclass(frozen=True)
class JointMultiTokenConfig:
    """Fields of `objective: joint_multi_token`."""

    horizon: int = 1
    """Tokens K predicted beyond the next one."""
    ahead_weight: float = 1.0
    """Factor of their mean loss."""

    def __post_init__(self) -> None:
        if self.horizon < 1:
            raise ValueError(f"horizon must be at least 1, not {self.horizon}")
        if not self.ahead_weight > 0:
            raise ValueError("ahead_weight must be positive; without it this is the objective next_token")


class Fetch(nn.Module):
    """One causal self-attention, without an MLP, over the slots of every position."""

    def __init__(self, width: int, slots: int) -> None:
        super().__init__()
        self.heads = max(heads for heads in range(1, MOST_HEADS + 1) if width % heads == 0)
        self.gamma = nn.Parameter(torch.tensor(0.1))
        self.mix_norm = nn.LayerNorm(width)
        self.inward = nn.Linear(width, 3 * width, bias=False)
        self.outward = nn.Linear(width, width, bias=False)
        self.bias = nn.Parameter(torch.zeros(self.heads, slots, slots))
        self.norm = make_norm("layer", width, bias=True)
        for linear in (self.inward, self.outward):
            nn.init.normal_(linear.weight, std=0.02)

    def forward(self, states: Tensor, embedded: Tensor, slots: int) -> Tensor:
        """States (B, S, D) at S positions, and embeddings (B, S + slots - 1, D) of the tokens there and behind -> the
        readouts (B, S, slots, D)."""
        B, S, D = states.shape
        rows = self._mixed(states, embedded, slots).view(B * S, slots, 3, self.heads, D // self.heads)
        query, key, value = rows.permute(2, 0, 3, 1, 4)
        scores = query @ key.transpose(-2, -1) * (D // self.heads) ** -0.5
        scores = scores + (self.bias[:, :slots, :slots] + causal_bias(slots, slots, scores.device, scores.dtype))
        seen = scores.softmax(dim=-1) @ value
        found = self.outward(seen.transpose(1, 2).reshape(B, S, slots, D))
        # Slot 0 has no residual: the next token must come through the attention, as at inference.
        return self.norm(torch.cat((found[:, :, :1], found[:, :, 1:] + states[:, :, None]), dim=2))

    def _mixed(self, states: Tensor, embedded: Tensor, slots: int) -> Tensor:
        """(B, S, slots, 3 D): W norm(e + gamma h) of every position and slot.

        With norm(x) = g (x - mean) / std + b this is ((W g) e + gamma (W g) h - mean (W g) 1) / std + W b: the products
        are those of the tokens and those of the states, and a slot costs sums.
        """
        S, D = states.shape[1:]
        weight, bias = self.inward.weight * self.mix_norm.weight, self.inward.weight @ self.mix_norm.bias
        from_token, from_state = F.linear(embedded, weight), F.linear(self.gamma * states, weight)
        ones = weight.sum(1)
        state, token = self.gamma * precise(states), precise(embedded)
        mean, square = state.mean(-1, keepdim=True), squared(state)
        token_mean, token_square = token.mean(-1, keepdim=True), squared(token)
        mixed = []
        for slot in range(slots):
            here = slice(slot, slot + S)
            mean_here = mean + token_mean[:, here]
            dot = (state * token[:, here]).sum(-1, keepdim=True)
            variance = (square + 2 * dot + token_square[:, here]) / D - mean_here.square()
            summed = from_token[:, here] + from_state - (mean_here * ones).to(from_state.dtype)
            mixed.append(summed * (variance + self.mix_norm.eps).rsqrt().to(summed.dtype) + bias)
        return torch.stack(mixed, dim=2)


class JointMultiToken(Objective):
    """Next-token loss plus the mean of the losses of K further tokens."""

    Config = JointMultiTokenConfig

    def __init__(self, config: JointMultiTokenConfig, make_backbone: BackboneFactory) -> None:
        super().__init__()
        self.config = config
        self.backbone = make_backbone()
        self.fetch = Fetch(self.backbone.width, config.horizon + 1)

    def loss(self, batch: Batch, counts: Mapping[str, Tensor]) -> Loss:
        """Parts `next_token` and `ahead`, the latter a sum a slot; in nats per token."""
        K, (first, end) = self.config.horizon, batch.span
        T = batch.tokens.shape[1]
        start, stop = max(0, first - 1 - K), end - 1
        states = self.backbone(batch.tokens, documents=batch.documents).state[:, start:stop]
        read = torch.arange(start, stop + K, device=states.device).clamp(max=T - 1)  # nothing is scored beyond the end
        readout = self.fetch(states, self.backbone.embed(batch.tokens[:, read]), K + 1)
        log_probs = precise(self.backbone.logits(readout[:, first - 1 - start :, 0])).log_softmax(-1)
        ahead = []
        for steps in range(1, K + 1):
            from_, to = (column - steps - start for column in reached_columns(batch, steps))
            logits = self.backbone.logits(readout[:, from_:to, steps])
            ahead.append(ahead_loss(precise(logits).log_softmax(-1), batch, steps))
        return Loss(
            {
                "next_token": Part(token_loss(log_probs, batch), counts["next_token"], 1.0),
                "ahead": Part(torch.stack(ahead), counts["ahead"], self.config.ahead_weight),
            }
        )

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """Scored tokens; those that each further slot has a position to predict them from."""
        ahead = [predicts(batch, steps).sum() for steps in range(1, self.config.horizon + 1)]
        return {"next_token": batch.scored.sum(), "ahead": torch.stack(ahead)}

    def predictor(self) -> JointPredictor:
        """The backbone, slot 0 of Fetch, and the head."""
        return JointPredictor(self)


class JointPredictor(CausalPredictor):
    """A decoder whose head reads slot 0."""

    def __init__(self, objective: JointMultiToken) -> None:
        super().__init__(objective.backbone)
        self.fetch = objective.fetch

    def next_logits(self, hidden: Hidden, tokens: Tensor, cursor: CausalCursor | None = None) -> Tensor:
        """See `CausalPredictor.next_logits`."""
        return self.backbone.logits(self.fetch(hidden.state, self.backbone.embed(tokens), 1)[:, :, 0])
