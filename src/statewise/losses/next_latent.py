"""Next-latent prediction (Teoh et al. 2026): the state must also predict the states that follow it.

A small dynamics network p_psi takes a state and the token that came next to the next state. It is rolled
out K steps along the true tokens; each predicted state is pulled towards the true one (equation 3), and
its next-token distribution towards the model's own at that place (equation 4). In the paper the head reads
the state itself; if the head reads another stream, the model's distribution is that of its readout.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from statewise.backbones.nn.layers import Init, Matrix, RMSNorm, check_init, init_weights, make_norm
from statewise.batch import Batch, Hidden, Loss, Part
from statewise.losses.sequence_loss import SequenceLoss, Vocabulary, check_sizes, settings
from statewise.losses.targets import (
    ahead_targets,
    follows,
    predicted,
    predicts,
    reached,
    reached_columns,
    to_float32,
    token_loss,
    token_targets,
)
from statewise.losses.vocabulary_head import blockwise_divergence, fits_whole, head_loss, whole_divergence
from statewise.runtime.bounds import bounded, unset
from statewise.runtime.messages import short

PARTS = ("latent", "kl", "ce")
"""The losses of each rollout step."""


@dataclass(frozen=True)
class NextLatentConfig:
    """Fields of `objective: next_latent`."""

    horizon: int = 1
    """Rollout steps K (the paper's d)."""
    latent_weight: float = 1.0
    """Factor of the regression onto later states (equation 3). 0 leaves it out."""
    kl_weight: float = 1.0
    """Factor of the KL divergence between next-token distributions (equation 4). 0 leaves it out."""
    ce_weight: float = 0.0
    """Factor of the cross-entropy of the true next tokens under the rolled-out states' distributions, an ablation that
    replaces the divergence. 0 leaves it out."""
    head_gradient: bool = False
    """Whether divergence and cross-entropy of rolled-out states train the vocabulary head too. True is an ablation;
    the later states' distributions stay fixed targets unless stop_gradient is false."""
    stop_gradient: bool = True
    """Whether the later states are fixed targets. False, an ablation, lets gradients flow into them."""
    dynamics_factor: float = 0.5
    """Width inside the dynamics network as a multiple of 2D, embedding and state together, D the backbone's width;
    rounded to a multiple of 128, below 1024 of 8. The authors: 0.5 Countdown, path-star; 2 Manhattan; 1.333 stories."""
    dynamics_norm: Literal["rms", "layer"] = "rms"
    """Normalisation of the dynamics network's input: RMSNorm (the authors' code), LayerNorm (their text)."""
    init: Init | None = None
    """Initialisation of the dynamics network: `gpt2` (std 0.02), `fan_in` (1 / sqrt(inputs)) or a std; null: the
    backbone's, without scaling by depth."""

    def __post_init__(self) -> None:
        bounded(self, "horizon", prefix="objective.", at_least=1)
        bounded(self, "dynamics_factor", prefix="objective.", above=0)
        bounded(self, "latent_weight", "kl_weight", "ce_weight", prefix="objective.", at_least=0)
        check_init(self, "objective.", "gpt2", "fan_in", optional=True)
        if not (self.latent_weight or self.kl_weight):
            unset(
                self,
                "stop_gradient",
                prefix="objective.",
                reason="is for latent_weight and kl_weight, which are 0: no later state is a target",
            )
        if not self.weights:
            raise ValueError(
                "objective.latent_weight, kl_weight and ce_weight are all 0: that is the objective next_token"
            )
        if self.head_gradient and not self.reads_head:
            raise ValueError(
                "objective.head_gradient needs kl_weight or ce_weight above 0: nothing else reads the head"
            )

    @property
    def weights(self) -> dict[str, float]:
        """The parts of the loss that are summed over rollout steps, with their factors; none of 0."""
        every = {"latent": self.latent_weight, "kl": self.kl_weight, "ce": self.ce_weight}
        return {name: weight for name, weight in every.items() if weight}

    @property
    def reads_head(self) -> bool:
        """Whether the vocabulary head reads rolled-out states in training."""
        return self.kl_weight + self.ce_weight > 0

    def hidden_width(self, width: int) -> int:
        """Width H inside the dynamics network of a backbone of width D. The authors round 2D times their factor to a
        multiple of 128; a step of 128 would double the narrow networks that they do not have."""
        wanted = self.dynamics_factor * 2 * width
        unit = 128 if wanted >= 1024 else 8
        return max(1, round(wanted / unit)) * unit


class LatentDynamics(nn.Module):
    """p_psi: the next state from a state and the token after it (equation 9), a residual three-layer MLP. `E` is the
    state's width, which is D for most backbones."""

    def __init__(
        self, width: int, state_width: int, hidden: int, norm: Literal["rms", "layer"], *, init: Init, norm_eps: float
    ) -> None:
        super().__init__()
        self.widths = [width, state_width]
        self.norm = make_norm(norm, width + state_width, bias=False, eps=norm_eps)
        self.first = Matrix(width + state_width, hidden, bias=False)
        self.second = nn.Linear(hidden, hidden, bias=False)
        self.third = nn.Linear(hidden, state_width, bias=False)
        init_weights(self, init)

    def forward(self, state: Tensor, embedded: Tensor) -> Tensor:
        """State (..., E) and embedding (..., D) of the token that follows it -> the next state (..., E)."""
        return self._rest(state, self.first(self.norm(torch.cat((embedded, state), dim=-1))))

    def _rest(self, state: Tensor, x: Tensor) -> Tensor:
        return state + self.third(F.gelu(self.second(F.gelu(x))))

    def rollout(self, states: Tensor, tokens: Tensor, model: Vocabulary, steps: int) -> Iterator[Tensor]:
        """Yields, for step = 1 .. steps, the states predicted `step` positions on, (B, T - step, E): column t from
        the true state at t and the tokens t + 1 .. t + step. `states` (B, T, E), `tokens` (B, T).

        With RMSNorm the first layer is W [e; h] / rms = (We e + Wh h) / rms: what comes from the tokens is the same
        at every step, so it is computed once, for each token of the vocabulary if these are fewer.
        """
        norm = self.norm
        if not isinstance(norm, RMSNorm):
            embedded = model.embed(tokens)
            for step in range(1, steps + 1):
                states = self(states[:, :-1], embedded[:, step:])
                yield states
            return
        assert norm.eps is not None
        from_token, from_state = torch.split(self.first.weight * norm.weight, self.widths, dim=1)
        few = model.vocabulary < tokens.numel()
        embedded = model.embed(torch.arange(model.vocabulary, device=tokens.device) if few else tokens)
        token_part = F.linear(embedded, from_token)
        token_square = squared(embedded)
        if few:  # in float32, since each row accumulates the gradients of many places
            both = F.embedding(tokens, torch.cat((to_float32(token_part), token_square), dim=1))
            token_part, token_square = both[..., :-1].to(token_part.dtype), both[..., -1:]
        for step in range(1, steps + 1):
            states = states[:, :-1]
            mean_square = (squared(states) + token_square[:, step:]) / sum(self.widths)
            summed = F.linear(states, from_state) + token_part[:, step:]
            states = self._rest(states, summed * (mean_square + norm.eps).rsqrt().to(summed.dtype))
            yield states


def squared(x: Tensor) -> Tensor:
    """(..., D) -> (..., 1): squared length."""
    return (x * x).sum(-1, keepdim=True)


def totals(
    config: NextLatentConfig,
    dynamics: LatentDynamics,
    model: Vocabulary,
    hidden: Hidden,
    batch: Batch,
    parts: Collection[str],
    smoothing: float = 0.0,
) -> dict[str, Tensor]:
    """The sum of `next_token`, (), and those of each of `parts` by step, (K,); steps beyond the sequence's length
    add nothing."""
    first, end = batch.span
    readout = hidden.readout[:, first - 1 : end - 1]
    goal, known = (each.detach() if config.stop_gradient else each for each in hidden)
    steps = min(config.horizon, batch.tokens.shape[1] - 1)
    targets, weight = token_targets(batch), model.head_weight()
    head = weight if config.head_gradient else weight.detach()
    readings = 1 + steps * len({"kl", "ce"} & {*parts})
    few = fits_whole(readings * targets.numel(), len(weight), weight.device)
    if few and "kl" in parts:
        log_probs = to_float32(model.logits(readout)).log_softmax(-1)
        goal_log_probs = _goal_log_probs(config, model, known[:, first - 1 : end - 1], log_probs)
        goal_probs = goal_log_probs.exp()
        total = token_loss(log_probs, batch, smoothing)
    else:
        total = head_loss(readout, weight, targets, smoothing=smoothing)
    sums: dict[str, list[Tensor]] = {name: [] for name in parts}
    for step, rolled in enumerate(dynamics.rollout(hidden.state, batch.tokens, model, steps), 1):
        start, stop = reached_columns(batch, step)
        ahead = model.state_for_head(rolled[:, start - step : stop - step])
        if "latent" in parts:
            distance = F.smooth_l1_loss(rolled, goal[:, step:], reduction="none").mean(-1)
            sums["latent"].append((distance * follows(batch, step)).sum())
        if "kl" in parts:
            counted = predicts(batch, step)
            if few:
                later = slice(start - first + 1, None)
                wanted = goal_log_probs[:, later], goal_probs[:, later]
                sums["kl"].append(whole_divergence(ahead, wanted, head, counted))
            else:
                sums["kl"].append(blockwise_divergence(ahead, known[:, start:stop], head, counted))
        if "ce" in parts:
            sums["ce"].append(head_loss(ahead, head, ahead_targets(batch, step), at_once=few))
    if not steps:  # rows of one token: processes reduce gradients together, so all use the same parameters
        total = total + 0 * sum(parameter.sum() for parameter in dynamics.parameters())
    missing = goal.new_zeros(config.horizon - steps)
    by_step = {name: torch.cat((torch.stack(values), missing)) if values else missing for name, values in sums.items()}
    return {"next_token": total, **by_step}


def _goal_log_probs(config: NextLatentConfig, model: Vocabulary, known: Tensor, log_probs: Tensor) -> Tensor:
    """(B, end - first, V): the target distributions of rolled-out states, whose gradient is the settings'. `known`
    is the readout that they are of, `log_probs` the same with every gradient."""
    if config.stop_gradient:
        return log_probs.detach()
    if config.head_gradient:
        return log_probs
    return to_float32(model.logits(known, frozen=True)).log_softmax(-1)


def counts(config: NextLatentConfig, batch: Batch, parts: Collection[str]) -> dict[str, Tensor]:
    """What each sum of `totals` is divided by."""
    horizon = config.horizon
    by_step = {name: (reached if name == "latent" else predicted)(batch, horizon) for name in parts}
    return {"next_token": batch.scored.sum(), **by_step}


def loss(
    config: NextLatentConfig,
    dynamics: LatentDynamics,
    model: Vocabulary,
    hidden: Hidden,
    batch: Batch,
    counts: Mapping[str, Tensor],
    smoothing: float = 0.0,
) -> Loss:
    """Parts `next_token` (nats), `latent` (smooth L1 per element), `kl` and `ce` (nats); all but the first per step."""
    weights = {"next_token": 1.0, **config.weights}
    sums = totals(config, dynamics, model, hidden, batch, config.weights, smoothing)
    return Loss({name: Part(sums[name], counts[name], weight) for name, weight in weights.items()})


class NextLatentLoss(SequenceLoss):
    """Next-token loss plus the losses of teacher-forced rollouts of the latent dynamics (equation 5): parts
    `next_token` (nats), `latent` (smooth L1 per element), `kl` and `ce` (nats), those of weight 0 left out."""

    def __init__(
        self, width: int, horizon: int = 1, *, init: Init = "gpt2", norm_eps: float = 1e-5, **config: Any
    ) -> None:
        """`width` is D, that of hidden states and embeddings; `config` are further fields of `NextLatentConfig`. Raises
        `ValueError` if they do not fit together."""
        super().__init__()
        self.config: NextLatentConfig = settings(NextLatentConfig, horizon=horizon, init=init, **config)
        if isinstance(norm_eps, bool) or not isinstance(norm_eps, (int, float)) or not 0 <= norm_eps < 1:
            raise ValueError(f"norm_eps must be a number of at least 0 and below 1, not {short(norm_eps)}")
        check_sizes(width=width)
        self.width = width
        hidden = self.config.hidden_width(width)
        self.dynamics = LatentDynamics(width, width, hidden, self.config.dynamics_norm, init=init, norm_eps=norm_eps)

    def compute(
        self, model: Vocabulary, hidden: Hidden, batch: Batch, counts: Mapping[str, Tensor], smoothing: float
    ) -> Loss:
        """See `SequenceLoss.compute`."""
        return loss(self.config, self.dynamics, model, hidden, batch, counts, smoothing)

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """Scored tokens; per step, transitions within a document, and those whose next token is scored."""
        return counts(self.config, batch, self.config.weights)
