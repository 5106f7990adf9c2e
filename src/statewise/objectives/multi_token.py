"""Multi-token prediction (Gloeckle et al. 2024): further heads predict the tokens after the next one.

All heads share the vocabulary head and all blocks except the last; each has its own last block and norm. At inference
the network is a plain decoder with the first head, and the further heads can draft. Its belief state is the input of
all heads, the output of the shared trunk.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from statewise.backbones.base import BackboneFactory, last_columns, read_in_parts
from statewise.backbones.capabilities import Branch, Branching
from statewise.backbones.nn.cache import Cache, PlaceStore
from statewise.batch import Batch, Hidden, Loss, Part
from statewise.decoding.predictor import Drafter
from statewise.losses import multi_token as losses
from statewise.losses.multi_token import MultiTokenConfig
from statewise.losses.targets import ahead_counts, check_horizon
from statewise.objectives.base import Objective, document_flops, head_flops, token_flops
from statewise.objectives.predictors import CausalCursor, DraftHead, HeadPredictor
from statewise.runtime.messages import LacksCapability


class MultiToken(Objective):
    """Next-token loss plus the mean of the losses of K further heads."""

    Config = MultiTokenConfig
    name: ClassVar[str] = "multi_token"
    """The name of the objective in messages."""

    def __init__(self, config: MultiTokenConfig, make_backbone: BackboneFactory) -> None:
        super().__init__()
        self.config = config
        backbone = make_backbone()
        if not isinstance(backbone, Branching):
            raise LacksCapability(f"{self.name} needs a backbone whose last block can be replicated", Branching)
        check_horizon(config.horizon, backbone.context)
        self.backbone: Branching = backbone
        self.branches: Sequence[Branch] = nn.ModuleList(backbone.make_branch() for _ in range(config.horizon))  # type: ignore[assignment]

    def loss(self, batch: Batch, counts: Mapping[str, Tensor]) -> Loss:
        """Parts `next_token` and `ahead`, the latter with one sum per head, in nats per token."""
        return Loss(self.token_parts(batch, counts, self.all_readouts(batch)))

    def all_readouts(self, batch: Batch) -> list[Tensor]:
        """The readouts (B, T, D) of the first head, then of each further one."""
        trunk = self.backbone.trunk(batch)
        return [self.backbone.last(trunk).readout, *(branch(trunk) for branch in self.branches)]

    def token_parts(self, batch: Batch, counts: Mapping[str, Tensor], readouts: Sequence[Tensor]) -> dict[str, Part]:
        """The parts of `loss`."""
        return losses.parts(self.config, self.backbone, readouts, batch, counts)

    @override
    def counts(self, batch: Batch) -> dict[str, Tensor]:
        return ahead_counts(batch, self.config.horizon)

    def flops(self, batch: Batch) -> float | None:
        """See `Objective.flops`: each further head adds a last block, and the vocabulary head where it has a target."""
        plain = token_flops(self.backbone, batch)
        if plain is None:
            return None
        blocks = self.config.horizon * document_flops(self.backbone.branch_flops, batch)
        ahead = ahead_counts(batch, self.config.horizon)["ahead"]
        return plain + 3 * (blocks + head_flops(self.backbone) * int(ahead.sum()))

    def predictor(self) -> BranchDrafter:
        """A plain decoder with the first head; the others can draft."""
        return BranchDrafter(self.backbone, self.branches)


@dataclass
class BranchedCursor(CausalCursor):
    """The cursor of a `BranchDrafter`. The branches read only when they draft, so plain decoding does not pay for them:
    a cache of theirs may have read less than the trunk."""

    trunk: PlaceStore
    """The trunk's states of all positions."""
    branches: list[Cache]

    @override
    def reorder(self, rows: Tensor) -> None:
        super().reorder(rows)
        for cache in (self.trunk, *self.branches):
            cache.reorder(rows)

    @override
    def join(self, other: Self) -> None:
        super().join(other)
        self.trunk.join(other.trunk)
        for cache, more in zip(self.branches, other.branches):
            cache.join(more)

    def unread(self, branch: int) -> tuple[Tensor, np.ndarray]:
        """The trunk's states that a branch has to read for a guess, (B, m, D), and their number in each row, at least
        1."""
        cache = self.branches[branch]
        cache.rewind((cache.lengths == self.trunk.lengths).astype(np.int64))
        return self.trunk.since(cache.lengths)[0, :, 0], self.trunk.lengths - cache.lengths


class BranchDrafter(HeadPredictor, Drafter):
    """A decoder whose belief state is the shared trunk's output, before the last block. Drafts at most K tokens: head
    i, at the last position read, predicts the token i + 1 positions on, whatever stands between."""

    state_is_last = False

    def __init__(self, backbone: Branching, branches: Sequence[Branch]) -> None:
        super().__init__(backbone)
        self.branching, self.branches, self.draft_head = backbone, branches, DraftHead(backbone)

    @override
    def new_cursor(self, rows: int) -> BranchedCursor:
        plain, trunk = super().new_cursor(rows), PlaceStore(rows, most=self.context)
        return BranchedCursor(
            plain.cache, plain.recent, plain.known, trunk, [branch.make_cache(rows) for branch in self.branches]
        )

    def read(self, cursor: CausalCursor, tokens: Tensor, counts: np.ndarray | None) -> Hidden:
        """See `CausalPredictor.read`; stores the trunk's states."""
        assert isinstance(cursor, BranchedCursor)
        hidden, trunk = self.branching.extend_trunk(tokens, cursor.cache, counts)
        cursor.trunk.begin(tokens.shape[1], counts)
        cursor.trunk.append(0, (trunk[:, None],))
        cursor.trunk.advance()
        return hidden

    @override
    def read_last(self, cursor: CausalCursor, prompts: Tensor, counts: np.ndarray | None) -> Hidden:
        return read_in_parts(lambda part, new: self.read(cursor, part, new), prompts, counts)

    @torch.no_grad()
    def guesses(
        self, cursor: BranchedCursor, token: Tensor, among: Tensor | None = None
    ) -> Generator[Tensor, Tensor, None]:
        """See `Drafter.guesses`: each head reads what it has not read yet, up to the cursor, and guesses one place."""
        for number, branch in enumerate(self.branches):
            states, counts = cursor.unread(number)
            readout = branch.extend(states, cursor.branches[number], counts)
            yield self.draft_head(last_columns(readout, counts)[:, 0], among)

    @override
    def rewind(self, cursor: CausalCursor, positions: int | np.ndarray) -> None:
        assert isinstance(cursor, BranchedCursor)
        super().rewind(cursor, positions)
        cursor.trunk.rewind(positions)
        for cache in cursor.branches:
            cache.rewind(np.maximum(0, cache.lengths - cursor.trunk.lengths))

    @override
    def hold(self, cursor: CausalCursor) -> None:
        assert isinstance(cursor, BranchedCursor)
        for cache in (cursor.cache, *cursor.branches):
            cache.hold()

    @override
    def release(self, cursor: CausalCursor) -> None:
        assert isinstance(cursor, BranchedCursor)
        for cache in (cursor.cache, *cursor.branches):
            cache.release()

    @torch.no_grad()
    def states(self, batch: Batch) -> Hidden:
        """State: the trunk's output, which Teoh et al. 2026 (appendix D) probe; readout: the first head's."""
        trunk = self.branching.trunk(batch.to(self.device))
        return Hidden(self.branching.trunk_state(trunk), self.branching.last(trunk).readout)
