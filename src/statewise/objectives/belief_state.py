"""The Belief State Transformer (Hu et al. 2025): a forward encoder of prefixes and a backward encoder of suffixes.

F reads the prefix from the left, B the suffix from the right; a text head on both predicts the token after the
prefix and the token before the suffix, for every prefix and every later suffix, including empty ones.
At inference the suffix is empty, or a goal: the model is then a GPT with another head.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor

from statewise.backbones.base import Backbone, BackboneFactory, plain_batch
from statewise.bounds import bounded
from statewise.decoding.predictor import FutureReader, GoalScorer, SuffixEncoder
from statewise.nn.initialisation import Init, check_init
from statewise.objectives.base import Objective
from statewise.objectives.pair_loss import pair_loss
from statewise.objectives.pairs import Pairs, Sampling, closes, expected_weights, layout
from statewise.objectives.predictors import CausalCursor, CausalPredictor
from statewise.objectives.targets import to_float32
from statewise.objectives.text_head import GatedHead, MixtureHead, MLPHead, TextHead
from statewise.types import Batch, Hidden, Loss, Part


@dataclass(frozen=True)
class BeliefStateConfig:
    """Fields of `objective: belief_state`."""

    next_weight: float = 1.0
    """Factor of the next-token loss. The paper adds both losses; its authors' code halves the sum."""
    previous_weight: float = 1.0
    """Factor of the previous-token loss. 0, an ablation, builds a head for next tokens only."""
    backward: bool = True
    """Whether there is a backward encoder. False, an ablation, predicts from the prefix only."""
    pairs: Literal["answer", "any_prefix", "all"] = "any_prefix"
    """Which previous tokens are targets if sequences have prompts. `answer`: those of the answer, from prefixes that
    contain the whole prompt (the authors' code); `any_prefix`: those of the answer, from prefixes of any length;
    `all`: those of the prompt as well. A prompt of one token counts as none. docs/results/path-star.md compares
    them."""
    min_gap: Literal[1, 2] = 2
    """Minimum j - i of a prefix x_1 .. x_i and a suffix x_j .. x_T. 1 adds the pairs with nothing in between, for
    which the target of both outputs is a special symbol."""
    share: float = 1.0
    """Share of the prefixes, drawn at each step, whose pairs are taken. Pairs with an empty prefix or suffix are always
    taken; the others weigh 1 / share, so that losses keep their expected value."""
    max_gap: int | None = None
    """Most j - i of pairs with both sides non-empty; null: any."""
    gap_exponent: float = 0.0
    """Such a pair weighs (j - i - 1) to the power of minus this: above 0, short gaps count more."""
    head: Literal["mlp", "gated", "mixture"] = "mlp"
    """The text head: a three-layer MLP (the paper), a gated residual one (its authors' code), or a mixture of products
    of experts, which takes a small part of the time (not the paper's)."""
    head_width: int = 512
    """Width inside the heads `mlp` and `gated`."""
    experts: int = 8
    """Experts of each output of the head `mixture`."""
    expert_width: int | None = None
    """Hidden width of its experts, which then share a vocabulary matrix; null: each maps states straight to tokens. Set
    it below the model's width where the vocabulary is large."""
    init: Init | None = None
    """Initialisation of the text head: `gpt2` (std 0.02), `fan_in` (1 / sqrt(inputs)) or a std; null: the backbone's if
    that is `fan_in` or a number, otherwise `gpt2` for `gated`, and PyTorch's default, uniform in +-1 / sqrt(inputs),
    for `mlp` and `mixture`."""

    def __post_init__(self) -> None:
        bounded(self, "next_weight", above=0)
        bounded(self, "previous_weight", at_least=0)
        bounded(self, "share", above=0, at_most=1)
        bounded(self, "head_width", "experts", "expert_width", at_least=1)
        bounded(self, "max_gap", at_least=2)
        bounded(self, "gap_exponent", at_least=0)
        check_init(self, "objective.", "gpt2", "fan_in", optional=True)

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
        found = layout(self.pairs(batch), config.sampling, self.vocabulary if config.min_gap == 1 else None)
        weights = {"next_token": config.next_weight, "previous_token": config.previous_weight}
        parts = {name: weight for name, weight in weights.items() if weight}
        factors = torch.stack([weight / counts[name].clamp(min=1) for name, weight in parts.items()])
        totals = pair_loss(
            self.head, prefix[found.prefix_rows], suffix[found.suffix_rows], found,
            factors.to(to_float32(prefix).dtype),
        )  # fmt: skip
        return Loss({name: Part(totals[place], counts[name], parts[name]) for place, name in enumerate(parts)})

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """Counted pairs of each head; of weighted ones their expected total weight."""
        pairs = self.pairs(batch)
        found = dict(zip(("next_token", "previous_token"), expected_weights(pairs, self.config.sampling)))
        if self.config.min_gap == 1:
            for name, masks in zip(found, (pairs.next_targets, pairs.previous_targets & pairs.prefixes)):
                found[name] = found[name] + masks.sum() + (masks & closes(pairs.group)).sum()
        return found if self.config.previous_weight else {"next_token": found["next_token"]}

    def head_matrices(self) -> list[Tensor]:
        """See `Objective.head_matrices`; those of the text head as well."""
        return [*super().head_matrices(), *self.head.head_matrices()]

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
        column = torch.arange(batch.tokens.shape[1], device=batch.tokens.device)
        length = batch.real.sum(1, keepdim=True)
        mirror = torch.where(column < length, length - 1 - column, column)  # padding stays at the end
        documents = None if batch.documents is None else batch.documents.gather(1, mirror)
        mirrored = batch._replace(tokens=batch.tokens.gather(1, mirror), documents=documents)  # padding is in place
        state = self.suffix_encoder.encode(mirrored).state
        return state.gather(1, mirror[:, :, None].expand_as(state))

    def empty_prefix(self) -> Tensor:
        """(1, 1, D): F of the empty prefix."""
        return self._alone(self.prefix_encoder, self.begin)

    def empty_suffix(self) -> Tensor:
        """(1, 1, D): B of the empty suffix; without a backward encoder, a placeholder that no head reads."""
        return self.empty_prefix() if self.suffix_encoder is None else self._alone(self.suffix_encoder, self.end)

    def _alone(self, encoder: Backbone, token: int) -> Tensor:
        device = next(self.parameters()).device
        return encoder.encode(plain_batch(torch.full((1, 1), token, device=device))).state

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
        return MixtureHead(width, config.experts, config.expert_width, vocabulary, **every)
    if config.head == "mlp":
        return MLPHead(width, config.head_width, vocabulary, **every)
    return GatedHead(width, config.head_width, vocabulary, norm_eps=encoder.norm_eps, **every)


class BeliefPredictor(CausalPredictor):
    """The forward encoder and the next-token head, with a suffix state that is computed once."""

    def __init__(self, objective: BeliefState) -> None:
        super().__init__(objective.prefix_encoder)
        self.objective, self.vocabulary = objective, objective.vocabulary
        with torch.no_grad():
            self.nothing = objective.head.project_suffix(objective.empty_suffix())[0]

    def next_logits(self, hidden: Hidden, tokens: Tensor, cursor: CausalCursor | None = None) -> Tensor:
        """See `CausalPredictor.next_logits`."""
        suffix = cursor.suffix[:, None] if isinstance(cursor, GoalCursor) else self.nothing
        return self.outputs(hidden.state, suffix, 1)[..., 0, :]

    def outputs(self, prefix: Tensor, suffix: Tensor, count: int) -> Tensor:
        """(..., count, V): logits of the first `count` outputs of prefix states (..., D) and projected suffixes."""
        head = self.objective.head
        return to_float32(head.logits(head.project_prefix(prefix), suffix, count)[..., : self.vocabulary])


@dataclass
class GoalCursor(CausalCursor):
    """A cursor with a goal for each row."""

    suffix: Tensor
    """(B, E): the projected states of the goals."""

    def reorder(self, rows: Tensor) -> None:
        """See `Predictor.reorder`."""
        super().reorder(rows)
        self.suffix = self.suffix.index_select(0, rows)

    def join(self, other: Self) -> None:
        """See `Predictor.join`."""
        super().join(other)
        self.suffix = torch.cat([self.suffix, other.suffix])


class GoalPredictor(BeliefPredictor, GoalScorer, FutureReader, SuffixEncoder):
    """With the backward encoder, it can condition on goals and score them."""

    def __init__(self, objective: BeliefState) -> None:
        super().__init__(objective)
        self.predicts_previous = objective.head.outputs == 2

    @torch.no_grad()
    def suffix_states(self, batch: Batch) -> Tensor:
        """See `SuffixEncoder.suffix_states`."""
        return self.objective.suffix_states(batch.to(self.device))

    @torch.no_grad()
    def start_with_goal(
        self, prompts: Tensor, goal: Tensor, counts: np.ndarray | None = None
    ) -> tuple[CausalCursor, Tensor]:
        """See `GoalScorer.start_with_goal`."""
        suffix = self._suffixes(goal[None].to(self.device))[:, 0] if len(goal) else self.nothing
        plain = self.new_cursor(len(prompts))
        cursor = GoalCursor(plain.cache, plain.recent, plain.known, suffix.expand(len(prompts), -1))
        return cursor, self.read_prompt(cursor, prompts, counts)

    @torch.no_grad()
    def score_goal(self, cursor: CausalCursor, goal: Tensor) -> Tensor:
        """See `GoalScorer.score_goal`. Reads the goal in one pass, then rewinds."""
        goal = goal.to(self.device)
        states = [cursor.state()[:, None]]
        B = len(states[0])
        if len(goal) > 1:
            with cursor.cache.held_here():
                states.append(self.backbone.extend(goal[:-1].expand(B, -1), cursor.cache).state)
                cursor.cache.rewind(len(goal) - 1)
        suffixes = torch.cat((self._suffixes(goal[None])[:, 1:], self.nothing[None]), dim=1)
        log_probs = self.outputs(torch.cat(states, 1), suffixes, 1)[..., 0, :].log_softmax(-1)
        return log_probs.gather(-1, goal.expand(B, -1)[..., None])[..., 0].sum(1)

    @torch.no_grad()
    def score_ending(self, sequences: Tensor, count: int, head: Literal["previous", "next"]) -> Tensor:
        """See `GoalScorer.score_ending`. Raises `ValueError` if the model lacks the previous-token head it needs."""
        if head == "previous":
            self._need_previous()
        sequences = sequences.to(self.device)
        whole = torch.cat((self.objective.empty_prefix().expand(len(sequences), -1, -1),
                           self.backbone.encode(plain_batch(sequences)).state[:, :-1]), dim=1)  # fmt: skip
        ending = sequences[:, -count:]
        suffixes = self._suffixes(ending)
        behind = torch.cat((suffixes[:, 1:], self.nothing.expand(len(ending), 1, -1)), dim=1)
        place = 0 if head == "next" else 1
        log_probs = self.outputs(whole[:, -count:], behind, place + 1)[..., place, :].log_softmax(-1)
        return log_probs.gather(-1, ending[..., None])[..., 0].sum(1)

    @torch.no_grad()
    def future(self, states: Tensor, tokens: Tensor) -> Tensor:
        """See `FutureReader.future`: from the last token to the first by the previous-token head (theorem 2), so the
        tokens must reach to the end of the sequence. Raises `ValueError` without that head."""
        self._need_previous()
        tokens = tokens.to(self.device)
        suffixes = self._suffixes(tokens)
        behind = torch.cat((suffixes[:, 1:], self.nothing.expand(len(tokens), 1, -1)), dim=1)
        log_probs = self.outputs(states[:, None].to(self.device), behind, 2)[..., 1, :].log_softmax(-1)
        return log_probs.gather(-1, tokens[..., None])[..., 0].sum(1)

    def _need_previous(self) -> None:
        if not self.predicts_previous:
            raise ValueError("this model was trained without previous tokens, so it has no head for them")

    def _suffixes(self, tokens: Tensor) -> Tensor:
        """(B, G) -> (B, G, E): the projected state of the suffix that begins with each token."""
        encoder = self.objective.suffix_encoder
        assert encoder is not None
        return self.objective.head.project_suffix(encoder.encode(plain_batch(tokens.flip(1))).state.flip(1))


def answers(batch: Batch, group: Tensor) -> Tensor:
    """(B, T) bool: the scored tokens, and the first token of a document whose second one is scored."""
    opens = torch.ones_like(batch.scored)
    opens[:, 1:] = group[:, 1:] != group[:, :-1]
    follows = torch.zeros_like(batch.scored)
    follows[:, :-1] = batch.scored[:, 1:] & (group[:, 1:] == group[:, :-1])
    return batch.scored | (opens & follows)
