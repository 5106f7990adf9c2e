"""The Belief State Transformer (Hu et al. 2025): a forward and a backward encoder that meet at every gap.

F reads the prefix from the left, B the suffix from the right; a text head on both predicts the token after the
prefix and the token before the suffix, for every prefix and every suffix behind it, the empty ones included.
At inference the suffix is empty, or a goal: then it is a GPT with another head.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np
import torch
from torch import Tensor

from statewise.backbones.base import Backbone, BackboneFactory, plain_batch
from statewise.bounds import bounded
from statewise.decoding.predictor import FutureReader, GoalScorer, SuffixEncoder
from statewise.objectives.base import Objective
from statewise.objectives.pair_loss import Pairs, pair_loss
from statewise.objectives.predictors import CausalCursor, CausalPredictor
from statewise.objectives.targets import to_float32
from statewise.objectives.text_head import GatedHead, MLPHead, TextHead
from statewise.types import Batch, Hidden, Loss, Part


@dataclass(frozen=True)
class BeliefStateConfig:
    """Fields of `objective: belief_state`."""

    next_weight: float = 1.0
    """Factor of the next-token loss. The paper adds both losses; its authors' code halves the sum."""
    previous_weight: float = 1.0
    """Factor of the previous-token loss. 0, an ablation, builds a head for next tokens alone."""
    backward: bool = True
    """Whether there is a backward encoder. False, an ablation, leaves all predictions to the prefix."""
    pairs: Literal["answer", "any_prefix", "all"] = "any_prefix"
    """Which previous tokens are targets where sequences have prompts: `answer`: those of the answer, from prefixes
    that hold the whole prompt (the authors' code); `any_prefix`: those of the answer, from prefixes of any length;
    `all`: those of the prompt as well. A prompt of one token counts as none. docs/results/path-star.md
    compares them."""
    min_gap: Literal[1, 2] = 2
    """Least j - i of a prefix x_1 .. x_i and a suffix x_j .. x_T. 1 adds the pairs with nothing between them, for
    which both outputs are to say so by a symbol of their own."""
    share: float = 1.0
    """Share of the prefixes, drawn anew at each step, whose pairs are taken; losses keep their expected value."""
    head: Literal["mlp", "gated"] = "mlp"
    """The text head: a three-layer MLP (the paper), or a gated residual one (its authors' code)."""
    head_width: int = 512
    """Width inside the text head."""

    def __post_init__(self) -> None:
        bounded(self, "next_weight", above=0)
        bounded(self, "previous_weight", at_least=0)
        bounded(self, "share", above=0, at_most=1)
        bounded(self, "head_width", at_least=1)


class BeliefState(Objective):
    """Both encoders and the text head (equations 1 and 2). Begin and end are tokens of its own, read by the
    encoders for the empty prefix and the empty suffix."""

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
        kind = MLPHead if config.head == "mlp" else GatedHead
        self.head: TextHead = kind(
            self.prefix_encoder.state_width,
            config.head_width,
            self.vocabulary + (config.min_gap == 1),
            outputs=2 if config.previous_weight else 1,
            reads_suffix=config.backward,
        )

    def loss(self, batch: Batch, counts: Mapping[str, Tensor]) -> Loss:
        """Parts `next_token` and `previous_token`, in nats per pair."""
        group = batch.document_ids
        ends_with = self.prefix_states(batch)
        begins_with = ends_with if self.suffix_encoder is None else self.suffix_states(batch)  # a stand-in, never read
        prefix, suffix = self.before(ends_with, group), self.behind(begins_with, group)
        weights = {"next_token": self.config.next_weight, "previous_token": self.config.previous_weight}
        parts = {name: weight for name, weight in weights.items() if weight}
        pairs = self.pairs(batch, group)
        columns = pairs.prefix_columns
        drawn = max(1, round(self.config.share * len(columns)))
        if drawn < len(columns):
            chosen = torch.randperm(len(columns), device="cpu")[:drawn].sort().values.tolist()
            pairs = pairs._replace(prefix_columns=[columns[place] for place in chosen])
        scale = len(columns) / drawn
        factors = torch.stack([scale * weight / counts[name].clamp(min=1) for name, weight in parts.items()])
        totals = scale * pair_loss(self.head, prefix, suffix, pairs, factors.to(to_float32(prefix).dtype))
        if self.config.min_gap == 1:
            totals = totals + self.closed_loss(batch, group, ends_with, begins_with)
        return Loss({name: Part(totals[place], counts[name], parts[name]) for place, name in enumerate(parts)})

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """Counted pairs of each head."""
        pairs = self.pairs(batch, batch.document_ids)
        group = pairs.group
        if batch.documents is None:
            later = pairs.group.flip(1).cumsum(1).flip(1)
            earlier = pairs.prefixes.cumsum(1)
            following, previous = pairs.next_targets * later, pairs.previous_targets * earlier
        else:
            same = (group[:, :, None] == group[:, None]) & (group > 0)[:, None]
            same = same.triu()
            following = (same & pairs.next_targets[:, :, None]).sum((1, 2))
            previous = (same & pairs.prefixes[:, :, None] & pairs.previous_targets[:, None]).sum((1, 2))
        found = {"next_token": following.sum(), "previous_token": previous.sum()}
        if self.config.min_gap == 1:
            closed = torch.stack([mask.sum((0, 1)) for mask in self.closed(batch, group)]).sum(0)
            found = {name: count + closed[place] for place, (name, count) in enumerate(found.items())}
        return found if self.config.previous_weight else {"next_token": found["next_token"]}

    def predictor(self) -> BeliefPredictor:
        """A decoder with an empty suffix, that can head for goals and score them if there is a backward encoder."""
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
        mirror = torch.where(column < length, length - 1 - column, column)  # padding stays behind
        documents = None if batch.documents is None else batch.documents.gather(1, mirror)
        mirrored = batch._replace(tokens=batch.tokens.gather(1, mirror), documents=documents)  # padding is in place
        state = self.suffix_encoder.encode(mirrored).state
        return state.gather(1, mirror[:, :, None].expand_as(state))

    def empty_prefix(self) -> Tensor:
        """(1, 1, D): F of nothing."""
        return self._alone(self.prefix_encoder, self.begin)

    def empty_suffix(self) -> Tensor:
        """(1, 1, D): B of nothing; without a backward encoder a stand-in that no head reads."""
        return self.empty_prefix() if self.suffix_encoder is None else self._alone(self.suffix_encoder, self.end)

    def _alone(self, encoder: Backbone, token: int) -> Tensor:
        device = next(self.parameters()).device
        return encoder.encode(plain_batch(torch.full((1, 1), token, device=device))).state

    def before(self, states: Tensor, group: Tensor) -> Tensor:
        """(B, T, D) prefix states -> those of the prefix that ends just before each column."""
        states = torch.cat((self.empty_prefix().expand(len(states), 1, -1).to(states.dtype), states[:, :-1]), dim=1)
        opens = torch.ones_like(group, dtype=torch.bool)
        opens[:, 1:] = group[:, 1:] != group[:, :-1]
        return torch.where(opens[:, :, None], states[:, :1], states)

    def behind(self, states: Tensor, group: Tensor) -> Tensor:
        """(B, T, D) suffix states -> those of the suffix that begins just behind each column."""
        states = torch.cat((states[:, 1:], self.empty_suffix().expand(len(states), 1, -1).to(states.dtype)), dim=1)
        return torch.where(closes(group)[:, :, None], states[:, -1:], states)

    # Which pairs count

    def pairs(self, batch: Batch, group: Tensor) -> Pairs:
        """The pairs of a batch, under the convention for prompts."""
        answer = answers(batch, group)
        real = group > 0
        kind = self.config.pairs
        first = 0 if batch.span[0] == 1 else batch.span[0]  # without a prompt, the first token is a target as well
        width = batch.tokens.shape[1]
        return Pairs(
            tokens=batch.tokens,
            group=group,
            next_targets=answer,
            previous_targets=real if kind == "all" else answer,
            prefixes=answer if kind == "answer" else real,
            prefix_columns=range(first if kind == "answer" else 0, width),
            suffix_span=(0 if kind == "all" else first, width),
        )

    def closed(self, batch: Batch, group: Tensor) -> tuple[Tensor, Tensor]:
        """Two (B, T, 2) bool, for the pairs with nothing between them: whether the one whose suffix begins at each
        column counts for each head, and the one whose prefix ends a document there, with the empty suffix."""
        pairs = self.pairs(batch, group)
        both = torch.stack((pairs.next_targets, pairs.previous_targets & pairs.prefixes), dim=-1)
        return both, both & closes(group)[:, :, None]

    def closed_loss(self, batch: Batch, group: Tensor, ends_with: Tensor, begins_with: Tensor) -> Tensor:
        """(K,): summed cross-entropy of the pairs with nothing between them; their target is the last symbol."""
        head, (meeting, ending) = self.head, self.closed(batch, group)
        rows = ending.any(-1)
        total = to_float32(ends_with).new_zeros(head.outputs)
        for prefix, suffix, counted in (
            (self.before(ends_with, group), begins_with, meeting),
            (ends_with[rows], self.behind(begins_with, group)[rows], ending[rows]),
        ):
            logits = head.logits(head.project_prefix(prefix), head.project_suffix(suffix))
            log_probs = to_float32(logits).log_softmax(-1)[..., self.vocabulary]
            total = total - (log_probs * counted[..., : head.outputs]).flatten(0, -2).sum(0)
        return total


class BeliefPredictor(CausalPredictor):
    """The forward encoder and the next-token head, behind a suffix that is computed once."""

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
    """A cursor with a goal ahead of each row."""

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
    """With the backward encoder at hand, goals can be headed for and scored."""

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
        """See `GoalScorer.score_goal`. The goal is read at once, and taken back."""
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
        """See `GoalScorer.score_ending`. Raises `ValueError` without a previous-token head, if that is asked for."""
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


def closes(group: Tensor) -> Tensor:
    """(B, T) bool: nothing of the same document follows."""
    last = torch.ones_like(group, dtype=torch.bool)
    last[:, :-1] = group[:, 1:] != group[:, :-1]
    return last
