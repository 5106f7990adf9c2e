"""The objective next-latent prediction (Teoh et al. 2026); `statewise.losses.next_latent` has its loss.

At inference the network is a plain decoder, and the dynamics can draft.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping

import torch
from torch import Tensor
from typing_extensions import override

from statewise.backbones.base import Backbone, BackboneFactory
from statewise.batch import Batch, Loss, Part
from statewise.decoding.predictor import Drafter, FutureReader, StateDynamics
from statewise.losses import next_latent as losses
from statewise.losses.next_latent import PARTS, LatentDynamics, NextLatentConfig
from statewise.losses.targets import check_horizon, predicted, reached, to_float32
from statewise.objectives.base import Objective, head_flops, token_flops
from statewise.objectives.predictors import CausalCursor, DraftHead, HeadPredictor, guessing


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
        return losses.loss(self.config, self.dynamics, self.backbone, self.backbone.encode(batch), batch, counts)

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """Scored tokens; per step, transitions within a document, and those whose next token is scored."""
        return losses.counts(self.config, batch, self.config.weights)

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
        totals = losses.totals(self.config, self.dynamics, self.backbone, hidden, batch, PARTS)
        counts = losses.counts(self.config, batch, PARTS)
        parts = {name: Part(totals[name], counts[name], 1.0) for name in PARTS}
        norms = to_float32(hidden.state).norm(dim=-1) * batch.real
        return {**parts, "state_norm": Part(norms.sum(), batch.real.sum(), 1.0)}

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
