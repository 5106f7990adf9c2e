"""Predictors of the Belief State Transformer, forwards and backwards.

Forwards, tokens are appended to the prefix, the suffix is empty or a goal, and the next-token head predicts. Backwards,
tokens are prepended to the suffix, the prefix is fixed, and the previous-token head predicts. Both use the same code:
`side` 0 is the prefix, its encoder and the next token; `side` 1 the suffix, its encoder and the previous token.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal, Protocol, Self

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from statewise.backbones.base import Backbone
from statewise.batch import Batch, Hidden
from statewise.decoding.predictor import FutureReader, GoalScorer, Reversible, SuffixEncoder
from statewise.losses.belief_state.text_head import TextHead
from statewise.objectives.predictors import CausalCursor, CausalPredictor


class BeliefModel(Protocol):
    """The parts of a Belief State Transformer that its predictors use."""

    prefix_encoder: Backbone
    suffix_encoder: Backbone | None
    head: TextHead
    """The text head; its vocabulary is V, or V + 1 with the closing symbol."""
    vocabulary: int
    """Number V of token ids."""

    def empty_prefix(self) -> Tensor:
        """The state (1, 1, D) of the empty prefix."""

    def empty_suffix(self) -> Tensor:
        """The state (1, 1, D) of the empty suffix."""

    def suffix_states(self, batch: Batch) -> Tensor:
        """(B, T, D): state of the suffix that begins with each token."""


class BeliefPredictor(CausalPredictor):
    """One encoder and one output of the text head; the other side is empty.

    The head computes in the precision of its weights, even if the encoders compute in bf16, which would round the
    logits of likely tokens to equal numbers; searches rank by them.
    """

    def __init__(self, objective: BeliefModel, side: Literal[0, 1] = 0) -> None:
        super().__init__(objective.prefix_encoder if side == 0 else suffix_encoder_of(objective))
        self.objective, self.vocabulary, self.side = objective, objective.vocabulary, side
        empty = objective.empty_suffix if side == 0 else objective.empty_prefix
        with torch.no_grad():
            self.nothing = self.project(empty(), 1 - side)[0]
            """(1, E): projected state of the other side if empty."""

    @override
    def next_logits(self, hidden: Hidden, tokens: Tensor, cursor: CausalCursor | None = None) -> Tensor:
        if isinstance(cursor, GoalCursor):
            return self.outputs(hidden.state, cursor.goal[:, None], self.side, cursor.choices)
        return self.outputs(hidden.state, self.nothing, self.side)

    def outputs(self, states: Tensor, other: Tensor, output: int, choices: int | None = None) -> Tensor:
        """(..., V): logits of one output of the head (0 next token, 1 previous token), from states (..., D) of its own
        side and projected states (..., E) of the other. `choices`: number of symbols, if not V."""
        own, kept = self.project(states, self.side), self.vocabulary if choices is None else choices
        prefix, suffix = (own, other) if self.side == 0 else (other, own)
        with self._full_precision():
            return self.objective.head.logits(prefix, suffix, output + 1)[..., output, :kept]

    def project(self, states: Tensor, side: int) -> Tensor:
        """(..., D) -> (..., E): the head's projection of the states of a side."""
        head = self.objective.head
        with self._full_precision():
            weight = next(head.parameters(), None)  # quantised heads have no parameters, and compute in float32
            states = states.to(self.device, torch.float32 if weight is None else weight.dtype)
            return head.project_prefix(states) if side == 0 else head.project_suffix(states)

    def _full_precision(self) -> AbstractContextManager[object]:
        kind = self.device.type
        # Models on the device `meta` are built to find out what they can do.
        return nullcontext() if kind == "meta" else torch.autocast(kind, enabled=False)

    def first_logits(self, cursor: CausalCursor, prompts: Tensor, counts: np.ndarray | None) -> Tensor:
        """See `CausalPredictor.first_logits`. Prompts may be empty: both encoders have a state for that."""
        if prompts.shape[1]:
            return super().first_logits(cursor, prompts, counts)
        state = self.empty().expand(len(prompts), 1, -1)
        cursor.remember(state, None)
        return self.next_logits(Hidden(state, state), prompts, cursor)[:, -1]

    def empty(self) -> Tensor:
        """(1, 1, D): the state of its own side if empty."""
        return self.objective.empty_prefix() if self.side == 0 else self.objective.empty_suffix()


def suffix_encoder_of(objective: BeliefModel) -> Backbone:
    """The backward encoder, which must exist."""
    assert objective.suffix_encoder is not None
    return objective.suffix_encoder


@dataclass
class GoalCursor(CausalCursor):
    """A cursor with a goal for each row."""

    goal: Tensor
    """(B, E): the projected states of the goals."""
    choices: int
    """Number of symbols of its logits: V, or V + 1 with `GoalScorer.closing`."""

    @override
    def reorder(self, rows: Tensor) -> None:
        super().reorder(rows)
        self.goal = self.goal.index_select(0, rows)

    @override
    def join(self, other: Self) -> None:
        super().join(other)
        self.goal = torch.cat([self.goal, other.goal])


class TwoSidedPredictor(BeliefPredictor, GoalScorer):
    """A predictor with both encoders, which can condition on goals and score them. With `side` 1, prompts, goals and
    completions are in reverse order: a goal is a reversed prefix."""

    def __init__(self, objective: BeliefModel, side: Literal[0, 1] = 0) -> None:
        super().__init__(objective, side)
        self.predicts_previous = objective.head.outputs == 2
        self.closing = self.vocabulary if objective.head.vocabulary > self.vocabulary else None

    @torch.no_grad()
    @override
    def start_with_goal(
        self, prompts: Tensor, goal: Tensor, counts: np.ndarray | None = None, *, may_close: bool = False
    ) -> tuple[CausalCursor, Tensor]:
        ahead = self._others(goal[None].to(self.device))[:, 0] if len(goal) else self.nothing
        return self.start_before(prompts, ahead, counts, may_close=may_close)

    def start_before(
        self, prompts: Tensor, ahead: Tensor, counts: np.ndarray | None = None, *, may_close: bool = False
    ) -> tuple[CausalCursor, Tensor]:
        """`start_with_goal`, with projected states `ahead`, (B, E) or (1, E), in place of a goal."""
        plain = self.new_cursor(len(prompts))
        goals, choices = ahead.expand(len(prompts), -1), self.vocabulary + may_close
        cursor = GoalCursor(plain.cache, plain.recent, plain.known, goals, choices)
        return cursor, self.first_logits(cursor, prompts, counts)

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
        log_probs = self.outputs(torch.cat(states, 1), self._behind(goal[None]), self.side).log_softmax(-1)
        return log_probs.gather(-1, goal.expand(B, -1)[..., None])[..., 0].sum(1)

    @torch.no_grad()
    def score_ending(self, sequences: Tensor, count: int, head: Literal["previous", "next"]) -> Tensor:
        """See `GoalScorer.score_ending`. Raises `ValueError` if the model lacks the previous-token head it needs."""
        if head == "previous":
            self.need_previous()
        sequences = sequences.to(self.device)
        whole = torch.cat(
            (self.empty().expand(len(sequences), -1, -1), self.backbone.encode(Batch.plain(sequences)).state[:, :-1]),
            dim=1,
        )
        ending = sequences[:, -count:]
        output = self.side if head == "next" else 1 - self.side
        log_probs = self.outputs(whole[:, -count:], self._behind(ending), output).log_softmax(-1)
        return log_probs.gather(-1, ending[..., None])[..., 0].sum(1)

    def need_previous(self) -> None:
        """Raises `ValueError` without a previous-token head."""
        if not self.predicts_previous:
            raise ValueError("this model was trained without previous tokens, so it has no head for them")

    def _behind(self, tokens: Tensor) -> Tensor:
        """(B, G) -> (B, G, E): projected states of what follows each token; nothing follows the last."""
        return torch.cat((self._others(tokens)[:, 1:], self.nothing.expand(len(tokens), 1, -1)), dim=1)

    def _others(self, tokens: Tensor) -> Tensor:
        """(B, G) -> (B, G, E): projected states of the other side, beginning with each token."""
        encoder = suffix_encoder_of(self.objective) if self.side == 0 else self.objective.prefix_encoder
        return self.project(encoder.encode(Batch.plain(tokens.flip(1))).state.flip(1), 1 - self.side)


class GoalPredictor(TwoSidedPredictor, FutureReader, SuffixEncoder, Reversible):
    """The forward predictor, which can also decode the future from prefix states alone."""

    @torch.no_grad()
    @override
    def suffix_states(self, batch: Batch) -> Tensor:
        return self.objective.suffix_states(batch.to(self.device))

    @torch.no_grad()
    def future(self, states: Tensor, tokens: Tensor) -> Tensor:
        """See `FutureReader.future`: from the last token to the first by the previous-token head (theorem 2), so the
        tokens must reach to the end of the sequence. Raises `ValueError` without that head."""
        self.need_previous()
        tokens = tokens.to(self.device)
        log_probs = self.outputs(states[:, None], self._behind(tokens), 1).log_softmax(-1)
        return log_probs.gather(-1, tokens[..., None])[..., 0].sum(1)

    @torch.no_grad()
    def read_future(self, states: Tensor, count: int) -> Tensor:
        """See `FutureReader.read_future`: from the last token to the first by the previous-token head, each conditioned
        on the state and the tokens after it (theorem 2). Raises `ValueError` without that head."""
        backwards = self.backwards()
        nothing = torch.zeros(len(states), 0, dtype=torch.int64, device=self.device)
        cursor, logits = backwards.start_before(nothing, self.project(states, 0))
        tokens = [logits.argmax(-1)]
        for _ in range(count - 1):
            tokens.append(backwards.extend(cursor, tokens[-1][:, None])[:, -1].argmax(-1))
        return torch.stack(tokens[::-1], 1)

    def backwards(self) -> TwoSidedPredictor:
        """See `Reversible.backwards`. Raises `ValueError` without a previous-token head."""
        self.need_previous()
        return TwoSidedPredictor(self.objective, side=1)
