"""The Belief State Transformer (Hu et al. 2025): a forward encoder of prefixes and a backward encoder of suffixes.

F reads the prefix from the left, B the suffix from the right; a text head on both predicts the token after the
prefix and the token before the suffix, for every prefix and every later suffix, including empty ones.
At inference the suffix is empty, or a goal: the model is then a GPT with another head.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from statewise.backbones.base import Backbone, BackboneFactory, encode_backwards
from statewise.backbones.capabilities import Counted
from statewise.backbones.nn.layers import Init, check_init
from statewise.batch import Batch, Loss, Part
from statewise.losses.targets import answers, to_float32
from statewise.objectives.base import Objective, backbone_flops
from statewise.objectives.belief_state.pair_loss import pair_loss
from statewise.objectives.belief_state.pairs import (
    Layout,
    Pairs,
    Sampling,
    closes,
    expected_weights,
    layout,
    pair_numbers,
)
from statewise.objectives.belief_state.predictors import BeliefPredictor, GoalPredictor
from statewise.objectives.belief_state.text_head import GatedHead, MixtureHead, MLPHead, TextHead
from statewise.runtime.bounds import bounded, unset


@dataclass(frozen=True)
class BeliefStateConfig:
    """Fields of `objective: belief_state`."""

    next_weight: float = 1.0
    """Factor of the next-token loss. The paper adds both losses; its authors' code halves the sum."""
    previous_weight: float = 1.0
    """Factor of the previous-token loss. 0, an ablation, builds a head for next tokens only."""
    backward: bool = True
    """Whether there is a backward encoder. False, an ablation, predicts from the prefix only."""
    pairs: Literal["answer", "any_prefix", "all"] = "answer"
    """Which previous tokens are targets if sequences have prompts. `answer`: those of the answer, from prefixes that
    contain the whole prompt (the authors' code); `any_prefix`: those of the answer, from prefixes of any length;
    `all`: those of the prompt as well. A prompt of one token counts as none. docs/results/path-star.md compares
    them."""
    min_gap: Literal[1, 2] = 2
    """Minimum j - i of a prefix x_1 .. x_i and a suffix x_j .. x_T. 1 adds the pairs with nothing in between, for
    which the target of both outputs is a special symbol."""
    share: float = 1.0
    """Share of the prefixes, drawn at each step, whose pairs are taken. Pairs with an empty prefix or suffix are always
    taken; the others weigh 1 / share, so that losses keep their expected value. Saves time with the heads `mlp` and
    `gated`, hardly with `mixture`."""
    max_gap: int | None = None
    """Most j - i of pairs with both sides non-empty; null: any."""
    gap_exponent: float = 0.0
    """Such a pair weighs (j - i - 1) to the power of minus this: above 0, short gaps count more."""
    head: Literal["mixture", "mlp", "gated"] = "mixture"
    """The text head: a mixture of products of experts, whose loss over all pairs takes a small part of the others' time
    (not the paper's), a three-layer MLP (the paper), or a gated residual one (its authors' code)."""
    experts: int = 8
    """Experts of each output of the head `mixture`."""
    expert_width: int | None = 128
    """Hidden width of its experts, which share a vocabulary matrix, if the vocabulary is larger than this. In a smaller
    one, and with null in every one, each expert maps states straight to tokens."""
    head_width: int = 512
    """Width inside the heads `mlp` and `gated`."""
    init: Init | None = None
    """Initialisation of the text head: `gpt2` (std 0.02), `fan_in` (1 / sqrt(inputs)) or a std; null: the backbone's if
    that is `fan_in` or a number, otherwise `gpt2` for `gated`, and PyTorch's default, uniform in +-1 / sqrt(inputs),
    for `mlp` and `mixture`."""

    def __post_init__(self) -> None:
        bounded(self, "next_weight", prefix="objective.", above=0)
        bounded(self, "previous_weight", prefix="objective.", at_least=0)
        bounded(self, "share", prefix="objective.", above=0, at_most=1)
        bounded(self, "head_width", "experts", "expert_width", prefix="objective.", at_least=1)
        bounded(self, "max_gap", prefix="objective.", at_least=2)
        bounded(self, "gap_exponent", prefix="objective.", at_least=0)
        check_init(self, "objective.", "gpt2", "fan_in", optional=True)
        if self.head == "mixture":
            unset(
                self,
                "head_width",
                prefix="objective.",
                reason="is for the heads mlp and gated: add --objective.head mlp, or set experts",
            )
        else:
            # Runs from before the mixture became the default have stored expert_width null with the other heads.
            names = ("experts",) if self.expert_width is None else ("experts", "expert_width")
            unset(self, *names, prefix="objective.", reason=f"is for the head mixture, not for {self.head}")

    @property
    def sampling(self) -> Sampling:
        """Which pairs are taken, and what they weigh."""
        return Sampling(self.share, None if self.max_gap is None else self.max_gap - 1, self.gap_exponent)


class BeliefState(Objective):
    """Both encoders and the text head (equations 1 and 2). Its own begin and end tokens represent the empty prefix and
    the empty suffix."""

    Config = BeliefStateConfig

    def __init__(self, config: BeliefStateConfig, make_backbone: BackboneFactory) -> None:
        super().__init__()
        self.config = config
        self.prefix_encoder = make_backbone(extra_tokens=2, tied=True)  # tied: the text head is the only head
        self.vocabulary = self.prefix_encoder.vocabulary - 2
        self.begin, self.end = self.vocabulary, self.vocabulary + 1
        self.suffix_encoder: Backbone | None = None
        if config.backward:
            self.suffix_encoder = make_backbone(extra_tokens=2, tied=True, embedding_of=self.prefix_encoder)
        self.head = make_head(config, self.prefix_encoder, self.vocabulary + (config.min_gap == 1))

    def loss(self, batch: Batch, counts: Mapping[str, Tensor]) -> Loss:
        """Parts `next_token` and `previous_token`, in nats per pair."""
        config = self.config
        prefix = torch.cat((self.empty_prefix()[0], self.prefix_states(batch).flatten(0, 1)))
        suffix = prefix  # without a backward encoder a stand-in that no head reads
        if self.suffix_encoder is not None:
            suffix = torch.cat((self.empty_suffix()[0], self.suffix_states(batch).flatten(0, 1)))
        plan = batch.plan if isinstance(batch.plan, Layout) else self.plan(batch)
        weights = {"next_token": config.next_weight, "previous_token": config.previous_weight}
        parts = {name: weight for name, weight in weights.items() if weight}
        factors = torch.stack([weight / counts[name].clamp(min=1) for name, weight in parts.items()])
        totals = pair_loss(
            self.head, prefix[plan.prefix_rows], suffix[plan.suffix_rows], plan, factors.to(to_float32(prefix).dtype)
        )
        # Cloned: results of a sharded module must not be views.
        return Loss({name: Part(totals[place].clone(), counts[name], parts[name]) for place, name in enumerate(parts)})

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """Counted pairs of each head; their expected total weight if pairs are weighted."""
        pairs = self.pairs(batch)
        counts = dict(zip(("next_token", "previous_token"), expected_weights(pairs, self.config.sampling)))
        if self.config.min_gap == 1:
            for name, masks in zip(counts, (pairs.next_targets, pairs.previous_targets & pairs.prefixes)):
                counts[name] = counts[name] + masks.sum() + (masks & closes(pairs.group)).sum()
        return counts if self.config.previous_weight else {"next_token": counts["next_token"]}

    def plan(self, batch: Batch) -> Layout:
        """See `Objective.plan`: where its pairs are. Draws from torch's generator of the CPU if `share` is below 1."""
        config = self.config
        return layout(self.pairs(batch), config.sampling, self.vocabulary if config.min_gap == 1 else None)

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
        group = batch.document_ids
        answer, real = answers(batch, group), group > 0
        kind = self.config.pairs
        return Pairs(
            tokens=batch.tokens,
            group=group,
            next_targets=answer,
            previous_targets=real if kind == "all" else answer,
            prefixes=answer if kind == "answer" else real,
        )


def make_head(config: BeliefStateConfig, encoder: Backbone, vocabulary: int) -> TextHead:
    """The text head for states of `encoder` and of a second encoder like it."""
    every: dict[str, Any] = {"outputs": 2 if config.previous_weight else 1, "reads_suffix": config.backward}
    every["init"], width = config.init or encoder.head_init, encoder.state_width
    if config.head == "mixture":
        shared = config.expert_width is not None and config.expert_width < vocabulary
        return MixtureHead(width, config.experts, config.expert_width if shared else None, vocabulary, **every)
    if config.head == "mlp":
        return MLPHead(width, config.head_width, vocabulary, **every)
    return GatedHead(width, config.head_width, vocabulary, norm_eps=encoder.norm_eps, **every)
