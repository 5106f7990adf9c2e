"""Multi-token prediction (Gloeckle et al. 2024): further heads predict the tokens after the next one.

All heads share the vocabulary head and all blocks except the last; each has its own last block and norm.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from statewise.batch import Batch, Hidden, Loss, Part
from statewise.losses.sequence_loss import SequenceLoss, Vocabulary, settings
from statewise.losses.targets import AheadConfig, ahead_counts, ahead_targets, reached_columns, token_targets
from statewise.losses.vocabulary_head import head_loss


@dataclass(frozen=True)
class MultiTokenConfig(AheadConfig):
    """Fields of `objective: multi_token`."""


def parts(
    config: AheadConfig,
    model: Vocabulary,
    readouts: Sequence[Tensor],
    batch: Batch,
    counts: Mapping[str, Tensor],
    smoothing: float = 0.0,
) -> dict[str, Part]:
    """Parts `next_token` and `ahead`, the latter with one sum per head, in nats per token. `readouts` (B, T, D): what
    the vocabulary head reads for the next token, then for each further one."""
    (first, end), weight = batch.span, model.head_weight()
    following = head_loss(readouts[0][:, first - 1 : end - 1], weight, token_targets(batch), smoothing=smoothing)
    ahead = []
    for steps, readout in enumerate(readouts[1:], 1):
        start, stop = reached_columns(batch, steps)
        ahead.append(head_loss(readout[:, start - steps : stop - steps], weight, ahead_targets(batch, steps)))
    return config.parts(following, ahead, counts)


class MultiTokenLoss(SequenceLoss):
    """Next-token loss plus the mean of the losses of K further heads: parts `next_token` and `ahead`, in nats a token.

    Each further head is a module that maps states (B, T, E) to what the vocabulary head reads, (B, T, D): in the paper
    a block like the last one with its norm, whose input, the output of all blocks before it, is given as `state`.
    """

    def __init__(self, branch: nn.Module | Callable[[], nn.Module], horizon: int = 1, **config: Any) -> None:
        """`branch` is one further head, of which each gets a copy, or a function that makes one; `horizon` is their
        number K. `config` are further fields of `MultiTokenConfig`. Raises `ValueError` if they are out of bounds."""
        super().__init__()
        self.config: MultiTokenConfig = settings(MultiTokenConfig, horizon=horizon, **config)
        if not callable(branch):
            raise ValueError(f"branch must be a module, or a function that makes one, not {type(branch).__name__}")
        self.branches = nn.ModuleList(
            copy.deepcopy(branch) if isinstance(branch, nn.Module) else branch() for _ in range(horizon)
        )

    def compute(
        self, model: Vocabulary, hidden: Hidden, batch: Batch, counts: Mapping[str, Tensor], smoothing: float
    ) -> Loss:
        """See `SequenceLoss.compute`."""
        readouts = [hidden.readout, *(branch(hidden.state) for branch in self.branches)]
        return Loss(parts(self.config, model, readouts, batch, counts, smoothing))

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """Scored tokens, and for each further head the tokens that it can predict."""
        return ahead_counts(batch, self.config.horizon)
