"""Joint multi-token prediction (Ahn et al. 2025): predicts the next tokens jointly, each given those before it.

A small module on top of the backbone, Fetch, attends over K + 1 places at every position t: the state h_t with
the token at t, then h_t with each of the tokens t + 1 .. t + K. Place i predicts the token at t + i + 1. So
h_t must contain everything about the past that these tokens depend on. Inference uses place 0 only; the others can
draft.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from statewise.backbones.nn.layers import Init, check_init, init_weights, make_norm
from statewise.backbones.nn.masks import causal_bias
from statewise.batch import Batch, Hidden, Loss
from statewise.losses.sequence_loss import SequenceLoss, Vocabulary, check_sizes, settings
from statewise.losses.targets import AheadConfig, ahead_counts, ahead_targets, reached_columns, token_targets
from statewise.losses.vocabulary_head import head_loss

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


def loss(
    config: JointMultiTokenConfig,
    fetch: Fetch,
    model: Vocabulary,
    hidden: Hidden,
    batch: Batch,
    counts: Mapping[str, Tensor],
    smoothing: float = 0.0,
) -> Loss:
    """Parts `next_token` and `ahead`, the latter with one sum per place, in nats per token."""
    K, (first, end) = config.horizon, batch.span
    T = batch.tokens.shape[1]
    start, stop = max(0, first - 1 - K), end - 1
    states = model.state_for_head(hidden.state[:, start:stop])
    ahead_of = torch.arange(start, stop, device=states.device)[:, None] + torch.arange(K + 1, device=states.device)
    embedded = model.embed(batch.tokens[:, ahead_of.clamp(max=T - 1)])  # not scored beyond the end
    readout = fetch(states.flatten(0, 1), embedded.flatten(0, 1)).unflatten(0, states.shape[:2])
    by_place = readout.unbind(2)  # a slice of all places would have a gradient of their size for each
    weight = model.head_weight()
    following = head_loss(by_place[0][:, first - 1 - start :], weight, token_targets(batch), smoothing=smoothing)
    ahead = []
    for steps in range(1, K + 1):
        from_, to = (column - steps - start for column in reached_columns(batch, steps))
        ahead.append(head_loss(by_place[steps][:, from_:to], weight, ahead_targets(batch, steps)))
    return Loss(config.parts(following, ahead, counts))


class JointMultiTokenLoss(SequenceLoss):
    """Next-token loss through Fetch plus the mean of the losses of K further tokens: parts `next_token` and `ahead`, in
    nats per token. The next token is predicted by `fetch`, so a trained model decodes with it."""

    def __init__(
        self, width: int, horizon: int = 1, *, init: Init = "gpt2", norm_eps: float = 1e-5, **config: Any
    ) -> None:
        """`width` is D, that of hidden states and embeddings; `config` are further fields of `JointMultiTokenConfig`.
        Raises `ValueError` if they do not fit together."""
        super().__init__()
        self.config: JointMultiTokenConfig = settings(JointMultiTokenConfig, horizon=horizon, init=init, **config)
        check_sizes(width=width)
        self.width = width
        self.fetch = Fetch(width, horizon + 1, init=init, norm_eps=norm_eps)

    def compute(
        self, model: Vocabulary, hidden: Hidden, batch: Batch, counts: Mapping[str, Tensor], smoothing: float
    ) -> Loss:
        """See `SequenceLoss.compute`."""
        return loss(self.config, self.fetch, model, hidden, batch, counts, smoothing)

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """Scored tokens, and for each place the tokens that it can predict."""
        return ahead_counts(batch, self.config.horizon)
