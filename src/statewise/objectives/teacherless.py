"""Teacherless training (Bachmann & Nagarajan 2024): the whole answer is predicted from the prompt alone.

Behind the prompt the model reads nothing but a filler, so no token of the answer can be copied or guessed
from the one before it. All tokens of an answer are then predicted in one forward pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from statewise.backbones.base import BackboneFactory
from statewise.objectives.base import CausalCursor, CausalPredictor, Objective, precise, token_flops, token_targets
from statewise.objectives.head_loss import head_loss
from statewise.types import Batch, Hidden, Loss, Part


@dataclass(frozen=True)
class TeacherlessConfig:
    """Teacherless training has nothing to choose."""


class Teacherless(Objective):
    """Cross-entropy of the scored tokens, each of which the model reads as a filler, a token of its own."""

    Config = TeacherlessConfig

    def __init__(self, config: TeacherlessConfig, make_backbone: BackboneFactory) -> None:
        super().__init__()
        self.backbone = make_backbone(extra_tokens=1)
        self.filler = self.backbone.vocabulary - 1

    def loss(self, batch: Batch, counts: Mapping[str, Tensor]) -> Loss:
        """One part, `next_token`, in nats per token."""
        first, end = batch.span
        readout = self.backbone.readouts(self.inputs(batch), documents=self.backbone.documents_of(batch))
        weight = self.backbone.head_weight()[: self.filler]
        total = head_loss(readout[:, first - 1 : end - 1], weight, token_targets(batch))
        return Loss({"next_token": Part(total, counts["next_token"], 1.0)})

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """Scored tokens."""
        return {"next_token": batch.scored.sum()}

    def flops(self, batch: Batch) -> float | None:
        """See `Objective.flops`."""
        return token_flops(self.backbone, batch)

    def inputs(self, batch: Batch) -> Tensor:
        """(B, T): the tokens with those that are to be predicted blotted out."""
        return torch.where(batch.scored, self.filler, batch.tokens)

    def logits(self, readout: Tensor) -> Tensor:
        """(..., D) -> (..., V): the filler is never predicted."""
        return self.backbone.logits(readout)[..., : self.filler]

    def predictor(self) -> TeacherlessPredictor:
        """All of an answer at once."""
        return TeacherlessPredictor(self)


@dataclass
class TeacherlessCursor(CausalCursor):
    """Where a `TeacherlessPredictor` stands."""

    ahead: Hidden | None = None
    """(B, n, D): what all fillers that the context holds give; None until one is asked for."""
    read: int = 0
    """How many of them count as read."""


class TeacherlessPredictor(CausalPredictor):
    """Answers every `extend` from one forward pass over fillers, whatever the tokens are."""

    reads_answers = False

    def __init__(self, objective: Teacherless) -> None:
        super().__init__(objective.backbone)
        self.objective, self.vocabulary = objective, objective.filler

    def next_logits(self, hidden: Hidden, tokens: Tensor, cursor: CausalCursor | None = None) -> Tensor:
        """See `CausalPredictor.next_logits`."""
        return self.objective.logits(hidden.readout)

    @torch.no_grad()
    def start(self, prompts: Tensor) -> tuple[TeacherlessCursor, Tensor]:
        """See `Predictor.start`."""
        cursor = TeacherlessCursor(self.backbone.make_cache(), prompts.new_empty(0, 0))
        return cursor, self._read_prompt(cursor, prompts)

    @torch.no_grad()
    def extend(self, cursor: CausalCursor, tokens: Tensor) -> Tensor:
        """See `Predictor.extend`. Raises `ValueError` beyond the context."""
        assert isinstance(cursor, TeacherlessCursor)
        room = self.context - cursor.cache.length
        if cursor.ahead is None and room:
            fillers = torch.full((len(tokens), room), self.objective.filler, device=self.device)
            cursor.cache.hold()
            cursor.ahead = self.backbone(fillers, cache=cursor.cache)
            cursor.cache.rewind(room)
        end = cursor.read + tokens.shape[1]
        if cursor.ahead is None or end > room:
            raise ValueError(
                f"a sequence of {cursor.cache.length + end} tokens does not fit the context of {self.context}"
            )
        given = Hidden(*(part[:, cursor.read : end] for part in cursor.ahead))
        cursor.read, cursor.recent = end, given.state
        return precise(self.objective.logits(given.readout))

    def rewind(self, cursor: CausalCursor, positions: int) -> None:
        """See `Predictor.rewind`. Raises `ValueError` before the end of the prompt, which decides everything else."""
        assert isinstance(cursor, TeacherlessCursor)
        if not 0 <= positions <= cursor.read:
            raise ValueError(f"cannot go back {positions} positions: {cursor.read} have been read behind the prompt")
        cursor.read -= positions
        cursor.recent = cursor.recent[:, : max(0, cursor.recent.shape[1] - positions)]

    def reorder(self, cursor: CausalCursor, rows: Tensor) -> None:
        """See `Predictor.reorder`."""
        assert isinstance(cursor, TeacherlessCursor)
        super().reorder(cursor, rows)
        if cursor.ahead is not None:
            cursor.ahead = Hidden(*(part.index_select(0, rows.to(part.device)) for part in cursor.ahead))

    @torch.no_grad()
    def states(self, batch: Batch) -> Hidden:
        """See `Predictor.states`. The model reads fillers in place of scored tokens."""
        device = self.device
        return super().states(batch._replace(tokens=self.objective.inputs(
            batch._replace(tokens=batch.tokens.to(device), scored=batch.scored.to(device)))))  # fmt: skip
