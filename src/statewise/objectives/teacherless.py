"""Teacherless training (Bachmann & Nagarajan 2024): the whole answer is predicted from the prompt alone.

After the prompt the model reads only filler tokens, so it cannot use the answer's tokens to predict later ones.
All tokens of an answer are predicted in one forward pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from statewise.backbones.base import BackboneFactory
from statewise.batch import Batch, Hidden, Loss, Part
from statewise.losses.targets import to_float32, token_targets
from statewise.losses.vocabulary_head import head_loss
from statewise.objectives.base import Objective, token_flops
from statewise.objectives.predictors import CausalCursor, CausalPredictor, uneven


@dataclass(frozen=True)
class TeacherlessConfig:
    """Teacherless training has no fields."""


class Teacherless(Objective):
    """Cross-entropy of the scored tokens, each replaced by a special filler token in the model's input."""

    Config = TeacherlessConfig

    def __init__(self, config: TeacherlessConfig, make_backbone: BackboneFactory) -> None:
        super().__init__()
        self.backbone = make_backbone(extra_tokens=1)
        self.filler = self.backbone.vocabulary - 1

    def loss(self, batch: Batch, counts: Mapping[str, Tensor]) -> Loss:
        """One part, `next_token`, in nats per token."""
        first, end = batch.span
        readout = self.backbone.readouts(batch._replace(tokens=self.inputs(batch)))
        weight = self.backbone.head_weight()[: self.filler]
        total = head_loss(readout[:, first - 1 : end - 1], weight, token_targets(batch))
        return Loss({"next_token": Part(total, counts["next_token"], 1.0)})

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """Scored tokens."""
        return {"next_token": batch.scored.sum()}

    @override
    def flops(self, batch: Batch) -> float | None:
        return token_flops(self.backbone, batch)

    def inputs(self, batch: Batch) -> Tensor:
        """(B, T): the tokens, with scored ones replaced by the filler."""
        return torch.where(batch.scored, self.filler, batch.tokens)

    def logits(self, readout: Tensor) -> Tensor:
        """(..., D) -> (..., V): the filler is never predicted."""
        return self.backbone.logits(readout)[..., : self.filler]

    def predictor(self) -> TeacherlessPredictor:
        """A predictor that computes a whole answer at once."""
        return TeacherlessPredictor(self)


@dataclass
class TeacherlessCursor(CausalCursor):
    """The cursor of a `TeacherlessPredictor`."""

    read: np.ndarray
    """(B,) fillers counted as read in each row."""
    ahead: Hidden | None = None
    """(B, n, ...): the outputs at all fillers that fit the context; None until needed."""

    @override
    def take_back(self, positions: int | np.ndarray) -> None:
        super().take_back(positions)
        self.read = self.read - positions

    @override
    def reorder(self, rows: Tensor) -> None:
        super().reorder(rows)
        self.read = self.read[rows.cpu().numpy()]
        if self.ahead is not None:
            self.ahead = Hidden(*(part.index_select(0, rows) for part in self.ahead))

    @override
    def join(self, other: Self) -> None:
        super().join(other)
        self.read, self.ahead = np.concatenate([self.read, other.read]), None


class TeacherlessPredictor(CausalPredictor):
    """Serves every `extend` from one forward pass over fillers, for any tokens."""

    reads_answers = False

    def __init__(self, objective: Teacherless) -> None:
        super().__init__(objective.backbone)
        self.objective, self.vocabulary = objective, objective.filler

    @override
    def next_logits(self, hidden: Hidden, tokens: Tensor, cursor: CausalCursor | None = None) -> Tensor:
        return self.objective.logits(hidden.readout)

    @override
    def new_cursor(self, rows: int) -> TeacherlessCursor:
        none = np.zeros(0, np.int64)
        return TeacherlessCursor(self.backbone.make_cache(rows), torch.empty(0), none, np.zeros(rows, np.int64))

    @torch.no_grad()
    def extend(self, cursor: CausalCursor, tokens: Tensor, counts: np.ndarray | None = None) -> Tensor:
        """See `Predictor.extend`. Raises `ValueError` beyond the context."""
        assert isinstance(cursor, TeacherlessCursor)
        counts = uneven(tokens, counts)
        room = self.context - cursor.cache.lengths
        if cursor.ahead is None and room.any():
            fillers = torch.full((len(tokens), int(room.max())), self.objective.filler, device=self.device)
            with cursor.cache.held_here():
                cursor.ahead = self.backbone.extend(fillers, cursor.cache, uneven(fillers, room))
                cursor.cache.rewind(room)
        n = tokens.shape[1]
        end = cursor.read + (n if counts is None else counts)
        if cursor.ahead is None or (end > room).any():
            raise ValueError(
                f"a sequence of {int((cursor.cache.lengths + end).max())} tokens does not fit the context of "
                f"{self.context}"
            )
        column = torch.from_numpy(cursor.read[:, None] + np.arange(n)).to(self.device)
        column = column.clamp(max=cursor.ahead.state.shape[1] - 1)  # outputs at unread columns are meaningless
        rows = torch.arange(len(column), device=self.device)[:, None]
        hidden = Hidden(*(part[rows, column] for part in cursor.ahead))
        cursor.read = end
        cursor.remember(hidden.state, counts)
        return to_float32(self.objective.logits(hidden.readout))

    def rewind(self, cursor: CausalCursor, positions: int | np.ndarray) -> None:
        """See `Predictor.rewind`. Raises `ValueError` beyond the end of the prompt, on which everything depends."""
        assert isinstance(cursor, TeacherlessCursor)
        wrong = np.flatnonzero((cursor.read - positions < 0) | (np.asarray(positions) < 0))
        if len(wrong):
            back, row = np.broadcast_to(positions, cursor.read.shape)[wrong[0]], wrong[0]
            raise ValueError(f"cannot go back {back} positions: {cursor.read[row]} have been read after the prompt")
        cursor.take_back(positions)

    @torch.no_grad()
    def states(self, batch: Batch) -> Hidden:
        """See `Predictor.states`. The model reads fillers in place of scored tokens."""
        batch = batch.to(self.device)
        return super().states(batch._replace(tokens=self.objective.inputs(batch)))
