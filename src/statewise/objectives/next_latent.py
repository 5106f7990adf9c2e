"""Next-latent prediction (Teoh et al. 2026): the state must also predict the states that follow it.

A small dynamics network p_psi takes a state and the token that came next to the next state. It is rolled
out K steps along the true tokens; each predicted state is pulled towards the true one (equation 3) and
towards the true one's next-token distribution (equation 4). At inference the network is a plain decoder,
and the dynamics can draft.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from statewise.backbones.base import Backbone, BackboneFactory
from statewise.backbones.powers import Followed
from statewise.bounds import bounded
from statewise.decoding.predictor import Drafter, FutureReader
from statewise.nn.norm import RMSNorm, make_norm
from statewise.objectives import head_divergence
from statewise.objectives.base import Objective
from statewise.objectives.costs import head_flops, token_flops
from statewise.objectives.head_divergence import fits_whole
from statewise.objectives.head_loss import head_loss
from statewise.objectives.predictors import CausalCursor, CausalPredictor, TraceablePredictor, head_predictor
from statewise.objectives.targets import predicts, reached_columns, to_float32, token_loss, token_targets
from statewise.types import Batch, Loss, Part


@dataclass(frozen=True)
class NextLatentConfig:
    """Fields of `objective: next_latent`."""

    horizon: int = 1
    """Rollout steps K (the paper's d)."""
    latent_weight: float = 1.0
    """Factor of the regression onto later states (equation 3). 0 leaves it out."""
    kl_weight: float = 1.0
    """Factor of the divergence between next-token distributions (equation 4). 0 leaves it out."""
    stop_gradient: bool = True
    """Whether the later states are fixed targets. False, an ablation, lets gradient into them."""
    dynamics_factor: float = 0.5
    """Width inside the dynamics network as a multiple of 2D, embedding and state together, D the backbone's width;
    rounded to a multiple of 128, below 1024 of 8. The authors: 0.5 Countdown, path-star; 2 Manhattan; 1.333 stories."""
    dynamics_norm: Literal["rms", "layer"] = "rms"
    """Normalisation of the dynamics network's input: RMSNorm (the authors' code), LayerNorm (their text)."""

    def __post_init__(self) -> None:
        bounded(self, "horizon", at_least=1)
        bounded(self, "dynamics_factor", above=0)
        bounded(self, "latent_weight", "kl_weight", at_least=0)
        if self.latent_weight == 0 and self.kl_weight == 0:
            raise ValueError("latent_weight and kl_weight are both 0: that is the objective next_token")

    def hidden_width(self, width: int) -> int:
        """Width H inside the dynamics network of a backbone of width D. The authors round 2D times their factor to a
        multiple of 128; a step of 128 would double the narrow networks that they do not have."""
        wanted = self.dynamics_factor * 2 * width
        unit = 128 if wanted >= 1024 else 8
        return max(1, round(wanted / unit)) * unit


class LatentDynamics(nn.Module):
    """p_psi: the next state from a state and the token after it (equation 9), a residual three-layer MLP. `E` is the
    state's width, which of most backbones is D."""

    def __init__(self, width: int, state_width: int, hidden: int, norm: Literal["rms", "layer"]) -> None:
        super().__init__()
        self.widths = [width, state_width]
        self.norm = make_norm(norm, width + state_width, bias=False)
        self.first = nn.Linear(width + state_width, hidden, bias=False)
        self.second = nn.Linear(hidden, hidden, bias=False)
        self.third = nn.Linear(hidden, state_width, bias=False)
        for linear in (self.first, self.second, self.third):
            nn.init.normal_(linear.weight, std=0.02)

    def forward(self, state: Tensor, embedded: Tensor) -> Tensor:
        """State (..., E) and embedding (..., D) of the token that follows it -> the next state (..., E)."""
        return self._rest(state, self.first(self.norm(torch.cat((embedded, state), dim=-1))))

    def _rest(self, state: Tensor, x: Tensor) -> Tensor:
        return state + self.third(F.gelu(self.second(F.gelu(x))))

    def rollout(self, states: Tensor, tokens: Tensor, backbone: Backbone, steps: int) -> Iterator[Tensor]:
        """Yields, for step = 1 .. steps, the states predicted `step` positions on, (B, T - step, E): column t from
        the true state at t and the tokens t + 1 .. t + step. `states` (B, T, E), `tokens` (B, T).

        With RMSNorm the first layer is W [e; h] / rms = (We e + Wh h) / rms: what comes from the tokens is the same
        at every step, so it is computed once, for each token of the vocabulary if these are fewer.
        """
        norm = self.norm
        if not isinstance(norm, RMSNorm):
            embedded = backbone.embed(tokens)
            for step in range(1, steps + 1):
                states = self(states[:, :-1], embedded[:, step:])
                yield states
            return
        assert norm.eps is not None
        from_token, from_state = torch.split(self.first.weight * norm.weight, self.widths, dim=1)
        few = backbone.vocabulary < tokens.numel()
        embedded = backbone.embed(torch.arange(backbone.vocabulary, device=tokens.device) if few else tokens)
        token_part = F.linear(embedded, from_token)
        token_square = squared(embedded)
        if few:  # in float32, since the gradients of many places add up in one row
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


class NextLatent(Objective):
    """Next-token prediction with teacher-forced rollouts of the latent dynamics (equation 5)."""

    Config = NextLatentConfig

    def __init__(self, config: NextLatentConfig, make_backbone: BackboneFactory) -> None:
        super().__init__()
        self.config = config
        self.backbone = make_backbone()
        width = self.backbone.width
        self.dynamics = LatentDynamics(
            width, self.backbone.state_width, config.hidden_width(width), config.dynamics_norm
        )

    def loss(self, batch: Batch, counts: Mapping[str, Tensor]) -> Loss:
        """Parts `next_token` (nats), `latent` (smooth L1 per element) and `kl` (nats), the latter two per step."""
        config, (first, end) = self.config, batch.span
        hidden = self.backbone.encode(batch)
        readout = hidden.readout[:, first - 1 : end - 1]
        goal = hidden.state.detach() if config.stop_gradient else hidden.state
        goal_log_probs = None
        steps = min(config.horizon, batch.tokens.shape[1] - 1)
        targets, weight = token_targets(batch), self.backbone.head_weight()
        if config.kl_weight and fits_whole((1 + steps) * targets.numel(), len(weight), weight.device):
            log_probs = to_float32(self.backbone.logits(readout)).log_softmax(-1)
            goal_log_probs = self._goal_log_probs(goal, hidden.readout, log_probs, batch)
            total = token_loss(log_probs, batch)
        else:
            total = head_loss(readout, weight, targets)
        parts = {"next_token": Part(total, counts["next_token"], 1.0)}
        latent, kl = [], []
        for step, rolled in enumerate(self.dynamics.rollout(hidden.state, batch.tokens, self.backbone, steps), 1):
            if config.latent_weight:
                distance = F.smooth_l1_loss(rolled, goal[:, step:], reduction="none").mean(-1)
                latent.append((distance * follows(batch, step)).sum())
            if config.kl_weight:
                start, stop = reached_columns(batch, step)
                ahead = self.backbone.state_for_head(rolled[:, start - step : stop - step])
                counted = predicts(batch, step)
                if goal_log_probs is not None:
                    wanted = goal_log_probs[:, start - first + 1 :]
                    kl.append(head_divergence.whole(ahead, wanted, weight.detach(), counted))
                else:
                    known = self.backbone.state_for_head(goal[:, start:stop])
                    kl.append(head_divergence.blockwise(ahead, known, weight, counted))
        if config.latent_weight:
            parts["latent"] = Part(self._per_step(latent, goal), counts["latent"], config.latent_weight)
        if config.kl_weight:
            parts["kl"] = Part(self._per_step(kl, goal), counts["kl"], config.kl_weight)
        return Loss(parts)

    def _goal_log_probs(self, goal: Tensor, readout: Tensor, log_probs: Tensor, batch: Batch) -> Tensor:
        """(B, end - first, V): the distributions that rolled-out states should give. The head is frozen here."""
        first, end = batch.span
        if self.config.stop_gradient and readout.data_ptr() == goal.data_ptr():
            return log_probs.detach()  # state and readout are one tensor: nothing to compute again
        known = self.backbone.state_for_head(goal[:, first - 1 : end - 1])
        return to_float32(self.backbone.logits(known, frozen=True)).log_softmax(-1)

    def _per_step(self, sums: list[Tensor], like: Tensor) -> Tensor:
        """(K,): a sum a step; steps beyond the sequence's length add nothing."""
        missing = self.config.horizon - len(sums)
        return torch.cat((torch.stack(sums) if sums else like.new_zeros(0), like.new_zeros(missing)))

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """Scored tokens; per step, transitions within a document, and those whose next token is scored."""
        steps = range(1, self.config.horizon + 1)
        counts = {"next_token": batch.scored.sum()}
        if self.config.latent_weight:
            counts["latent"] = torch.stack([follows(batch, step).sum() for step in steps])
        if self.config.kl_weight:
            counts["kl"] = torch.stack([predicts(batch, step).sum() for step in steps])
        return counts

    def flops(self, batch: Batch) -> float | None:
        """See `Objective.flops`. The tokens' part of the dynamics' first layer counts once a token, or once for each
        token of the vocabulary if these are fewer."""
        plain = token_flops(self.backbone, batch)
        if plain is None:
            return None
        dynamics, width = self.dynamics, self.backbone.width
        from_token = 2 * dynamics.first.out_features * width
        layers = (dynamics.first, dynamics.second, dynamics.third)
        step = sum(2 * layer.weight.numel() for layer in layers) - from_token
        rolled = sum(int(follows(batch, ahead).sum()) for ahead in range(1, self.config.horizon + 1))
        total = plain + 3 * (step * rolled + from_token * min(self.backbone.vocabulary, int(batch.real.sum())))
        if self.config.kl_weight:  # the head is frozen there: its matrix gets no gradient
            compared = sum(int(predicts(batch, ahead).sum()) for ahead in range(1, self.config.horizon + 1))
            total += 2 * head_flops(self.backbone) * compared
        return total

    def predictor(self) -> CausalPredictor:
        """A plain decoder; where the head reads the states that are rolled out, one that can also draft."""
        if not self.backbone.state_predicts:
            return head_predictor(self.backbone)
        if isinstance(self.backbone, Followed):
            return TraceableDrafter(self.backbone, self.dynamics)
        return LatentDrafter(self.backbone, self.dynamics)


def follows(batch: Batch, step: int) -> Tensor:
    """(B, T - step) bool: column t says whether position t + step exists, in the same document as t."""
    real = batch.real[:, step:]
    if batch.documents is None:
        return real
    return real & (batch.documents[:, step:] == batch.documents[:, :-step])


class LatentDrafter(CausalPredictor, Drafter, FutureReader):
    """Guesses ahead by head, token, dynamics, head, ... from the last state."""

    def __init__(self, backbone: Backbone, dynamics: LatentDynamics) -> None:
        super().__init__(backbone)
        self.dynamics = dynamics

    @torch.no_grad()
    def draft(self, cursor: CausalCursor, token: Tensor, steps: int) -> tuple[Tensor, Tensor]:
        """See `Drafter.draft`."""
        state, tokens, logits = cursor.state(), [], []
        for _ in range(steps):
            state = self.dynamics(state, self.backbone.embed(token))
            logits.append(to_float32(self.backbone.logits(self.backbone.state_for_head(state))))
            token = logits[-1].argmax(-1)
            tokens.append(token)
        return torch.stack(tokens, 1), torch.stack(logits, 1)

    @torch.no_grad()
    def future(self, states: Tensor, tokens: Tensor) -> Tensor:
        """See `FutureReader.future`: head and dynamics take turns along the tokens (theorem 3.2)."""
        tokens = tokens.to(self.device)
        total = to_float32(states).new_zeros(len(tokens))
        for place in range(tokens.shape[1]):
            log_probs = to_float32(self.backbone.logits(self.backbone.state_for_head(states))).log_softmax(-1)
            total += log_probs.gather(-1, tokens[:, place : place + 1])[:, 0]
            states = self.dynamics(states, self.backbone.embed(tokens[:, place]))
        return total


class TraceableDrafter(LatentDrafter, TraceablePredictor):
    """The same around a backbone every use of whose parameters can be followed."""

    def __init__(self, backbone: Followed, dynamics: LatentDynamics) -> None:
        TraceablePredictor.__init__(self, backbone)
        self.dynamics = dynamics
