"""Next-latent prediction (Teoh et al. 2026): the state must also predict the states that follow it.

A small dynamics network p_psi takes a state and the token that came next to the next state. It is rolled
out K steps along the true tokens; each predicted state is pulled towards the true one (equation 3), and
its next-token distribution towards the model's own at that place (equation 4). In the paper the head reads
the state itself; if the head reads another stream, the model's distribution is that of its readout.
At inference the network is a plain decoder, and the dynamics can draft.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import override

from statewise.backbones.base import Backbone, BackboneFactory
from statewise.backbones.nn.layers import Init, Matrix, RMSNorm, check_init, init_weights, make_norm
from statewise.data_types import Batch, Hidden, Loss, Part
from statewise.decoding.predictor import Drafter, FutureReader, StateDynamics
from statewise.objectives.base import Objective, head_flops, token_flops
from statewise.objectives.predictors import CausalCursor, DraftHead, HeadPredictor, guessing
from statewise.objectives.targets import (
    ahead_targets,
    check_horizon,
    follows,
    predicted,
    predicts,
    reached,
    reached_columns,
    to_float32,
    token_loss,
    token_targets,
)
from statewise.objectives.vocabulary_head import blockwise_divergence, fits_whole, head_loss, whole_divergence
from statewise.runtime.bounds import bounded, unset


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


PARTS = ("latent", "kl", "ce")
"""The losses of each rollout step."""


class NextLatent(Objective):
    """Next-token prediction with teacher-forced rollouts of the latent dynamics (equation 5)."""

    Config = NextLatentConfig

    def __init__(self, config: NextLatentConfig, make_backbone: BackboneFactory) -> None:
        super().__init__()
        self.config = config
        self.backbone = make_backbone()
        check_horizon(config.horizon, self.backbone.context)
        width = self.backbone.width
        self.dynamics = LatentDynamics(
            width,
            self.backbone.state_width,
            config.hidden_width(width),
            config.dynamics_norm,
            init=config.init or self.backbone.head_init or "gpt2",
            norm_eps=self.backbone.norm_eps,
        )

    def loss(self, batch: Batch, counts: Mapping[str, Tensor]) -> Loss:
        """Parts `next_token` (nats), `latent` (smooth L1 per element), `kl` and `ce` (nats); all but the first per
        step."""
        weights = {"next_token": 1.0, **self.config.weights}
        totals = self._totals(batch, self.backbone.encode(batch), self.config.weights)
        return Loss({name: Part(totals[name], counts[name], weight) for name, weight in weights.items()})

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """Scored tokens; per step, transitions within a document, and those whose next token is scored."""
        return self._counts(batch, self.config.weights)

    @property
    @override
    def held_out_losses(self) -> Callable[[Batch], dict[str, Part]]:
        return self.held_out_parts

    @torch.no_grad()
    def held_out_parts(self, batch: Batch) -> dict[str, Part]:
        """`latent`, `kl` and `ce` per step, also where their weights are 0, and `state_norm`, the Euclidean norm of
        the state, per token."""
        batch = batch.to(self.backbone.head_weight().device)
        hidden = self.backbone.encode(batch)
        totals, counts = self._totals(batch, hidden, PARTS), self._counts(batch, PARTS)
        parts = {name: Part(totals[name], counts[name], 1.0) for name in PARTS}
        norms = to_float32(hidden.state).norm(dim=-1) * batch.real
        return {**parts, "state_norm": Part(norms.sum(), batch.real.sum(), 1.0)}

    def _totals(self, batch: Batch, hidden: Hidden, parts: Collection[str]) -> dict[str, Tensor]:
        """The sum of `next_token`, (), and those of each of `parts` by step, (K,); steps beyond the sequence's length
        add nothing."""
        config, (first, end) = self.config, batch.span
        readout = hidden.readout[:, first - 1 : end - 1]
        goal, known = (each.detach() if config.stop_gradient else each for each in hidden)
        steps = min(config.horizon, batch.tokens.shape[1] - 1)
        targets, weight = token_targets(batch), self.backbone.head_weight()
        head = weight if config.head_gradient else weight.detach()
        readings = 1 + steps * len({"kl", "ce"} & {*parts})
        few = fits_whole(readings * targets.numel(), len(weight), weight.device)
        if few and "kl" in parts:
            log_probs = to_float32(self.backbone.logits(readout)).log_softmax(-1)
            goal_log_probs = self._goal_log_probs(known[:, first - 1 : end - 1], log_probs)
            total = token_loss(log_probs, batch)
        else:
            total = head_loss(readout, weight, targets)
        sums: dict[str, list[Tensor]] = {name: [] for name in parts}
        for step, rolled in enumerate(self.dynamics.rollout(hidden.state, batch.tokens, self.backbone, steps), 1):
            start, stop = reached_columns(batch, step)
            ahead = self.backbone.state_for_head(rolled[:, start - step : stop - step])
            if "latent" in parts:
                distance = F.smooth_l1_loss(rolled, goal[:, step:], reduction="none").mean(-1)
                sums["latent"].append((distance * follows(batch, step)).sum())
            if "kl" in parts:
                counted = predicts(batch, step)
                if few:
                    wanted = goal_log_probs[:, start - first + 1 :]
                    sums["kl"].append(whole_divergence(ahead, wanted, head, counted))
                else:
                    sums["kl"].append(blockwise_divergence(ahead, known[:, start:stop], head, counted))
            if "ce" in parts:
                sums["ce"].append(head_loss(ahead, head, ahead_targets(batch, step), at_once=few))
        if not steps:  # rows of one token: processes reduce gradients together, so all use the same parameters
            total = total + 0 * sum(parameter.sum() for parameter in self.dynamics.parameters())
        missing = goal.new_zeros(config.horizon - steps)
        by_step = {
            name: torch.cat((torch.stack(values), missing)) if values else missing for name, values in sums.items()
        }
        return {"next_token": total, **by_step}

    def _goal_log_probs(self, known: Tensor, log_probs: Tensor) -> Tensor:
        """(B, end - first, V): the target distributions of rolled-out states, whose gradient is the settings'. `known`
        is the readout that they are of, `log_probs` the same with every gradient."""
        if self.config.stop_gradient:
            return log_probs.detach()
        if self.config.head_gradient:
            return log_probs
        return to_float32(self.backbone.logits(known, frozen=True)).log_softmax(-1)

    def _counts(self, batch: Batch, parts: Collection[str]) -> dict[str, Tensor]:
        """What each sum of `_totals` is divided by."""
        horizon = self.config.horizon
        by_step = {name: (reached if name == "latent" else predicted)(batch, horizon) for name in parts}
        return {"next_token": batch.scored.sum(), **by_step}

    def flops(self, batch: Batch) -> float | None:
        """See `Objective.flops`. The tokens' part of the dynamics' first layer counts once per token, or once per entry
        of the vocabulary if these are fewer."""
        plain = token_flops(self.backbone, batch)
        if plain is None:
            return None
        dynamics, width = self.dynamics, self.backbone.width
        from_token = 2 * dynamics.first.out_features * width
        layers = (dynamics.first, dynamics.second, dynamics.third)
        step = sum(2 * layer.weight.numel() for layer in layers) - from_token
        rolled = int(reached(batch, self.config.horizon).sum())
        total = plain + 3 * (step * rolled + from_token * min(self.backbone.vocabulary, int(batch.real.sum())))
        if self.config.reads_head:  # logits and the states' gradient; the matrix gets one only if it is not frozen
            compared = int(predicted(batch, self.config.horizon).sum())
            total += (3 if self.config.head_gradient else 2) * head_flops(self.backbone) * compared
        return total

    def predictor(self) -> LatentDrafter:
        """A decoder that can draft; if the state predicts, one that can also read the whole future off it."""
        kind = LatentReader if self.backbone.state_predicts else LatentDrafter
        return kind(self.backbone, self.dynamics)


class LatentDrafter(HeadPredictor, Drafter, StateDynamics):
    """Drafts tokens from the last state by alternating dynamics and head."""

    def __init__(self, backbone: Backbone, dynamics: LatentDynamics) -> None:
        super().__init__(backbone)
        self.dynamics, self.draft_head = dynamics, DraftHead(backbone)

    def guesses(
        self, cursor: CausalCursor, token: Tensor, among: Tensor | None = None
    ) -> Generator[Tensor, Tensor, None]:
        """See `Drafter.guesses`: dynamics and head take turns, as far as asked."""
        states, device, weight = cursor.state(), self.device, self.dynamics.first.weight
        states = states.to(weight.dtype)
        while True:
            with guessing(states, weight):
                states = self.dynamics(states, self.backbone.embed(token.to(device)))
                logits = self.draft_head(self.backbone.state_for_head(states), among)
            token = yield logits

    @torch.no_grad()
    def advance(self, states: Tensor, tokens: Tensor) -> Tensor:
        """See `StateDynamics.advance`: one step of the dynamics network."""
        return self.dynamics(states.to(self.device), self.backbone.embed(tokens.to(self.device)))

    @torch.no_grad()
    def read_states(self, states: Tensor) -> Tensor:
        """See `StateDynamics.read_states`: by the vocabulary head."""
        return to_float32(self.backbone.logits(self.backbone.state_for_head(states.to(self.device))))


class LatentReader(LatentDrafter, FutureReader):
    """Predicts the future from a state alone: the first token by the head, the others by dynamics and head."""

    @torch.no_grad()
    def future(self, states: Tensor, tokens: Tensor) -> Tensor:
        """See `FutureReader.future`: head and dynamics alternate along the tokens (theorem 3.2)."""
        states, tokens = states.to(self.device), tokens.to(self.device)
        total = to_float32(states).new_zeros(len(tokens))
        for place in range(tokens.shape[1]):
            log_probs = to_float32(self.backbone.logits(self.backbone.state_for_head(states))).log_softmax(-1)
            total += log_probs.gather(-1, tokens[:, place : place + 1])[:, 0]
            states = self.dynamics(states, self.backbone.embed(tokens[:, place]))
        return total

    @torch.no_grad()
    def read_future(self, states: Tensor, count: int) -> Tensor:
        """See `FutureReader.read_future`: head and dynamics take turns, from the first token to the last."""
        tokens = [self.read_states(states).argmax(-1)]
        while len(tokens) < count:
            states = self.advance(states, tokens[-1])
            tokens.append(self.read_states(states).argmax(-1))
        return torch.stack(tokens, 1)
