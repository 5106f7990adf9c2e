"""How much a model relies on its kept state (State-Prediction Separation, figure 5b).

Measures the rise of each position's loss when the persistent keys, too, are read for `keep` positions onwards only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from statewise.analysis.base import Analysis, Findings, Subject
from statewise.analysis.positions import positions, smoothed
from statewise.decoding.predictor import Predictor, StateLimiter, require
from statewise.evaluation.scoring import score_batch
from statewise.reporting.figures import Panel
from statewise.runtime.bounds import bounded
from statewise.runtime.messages import counted
from statewise.tasks.base import Task
from statewise.tasks.batches import blocks, collate, rows_at_once

ROWS = 16
"""Sequences processed at a time, fewer if the vocabulary is large."""


@dataclass(frozen=True)
class RestrictedStateConfig:
    """Options of `statewise analyze RUN restricted-state`."""

    keep: int = 64
    """The paper's omega, counted as its window w (equation 5): position i reads the persistent keys of position k if
    i - k <= keep. So it reads its own and `keep` earlier ones. 0: its own alone."""
    sequences: int = 256
    """Held-out sequences."""
    positions: int = 2048
    """First positions of each document that are measured."""

    def __post_init__(self) -> None:
        bounded(self, "keep", at_least=0)
        bounded(self, "sequences", "positions", at_least=1)
        if self.positions < self.keep + 2:
            raise ValueError(
                f"positions {self.positions} is too low: with keep {self.keep} the first {self.keep + 1} lose no "
                f"key: set positions to {self.keep + 2} or more"
            )


class RestrictedState(Analysis):
    """Mean rise of the loss by position in the document."""

    Config = RestrictedStateConfig
    config: RestrictedStateConfig

    @override
    def check(self, task: Task, predictor: Callable[[], Predictor]) -> None:
        require(predictor(), StateLimiter)

    def analyze(self, subject: Subject) -> Findings:
        """Metrics `rise` (nats per token, over positions that lose keys) with its standard error over sequences, `loss`
        and `restricted_loss` there; the rise by position as a curve."""
        config, predictor = self.config, subject.snapshot.predictor
        limited = require(predictor, StateLimiter).limited(config.keep)
        sums = np.zeros((2, config.positions))
        counts = np.zeros(config.positions, np.int64)
        by_row = []  # (rise, positions) of those that lose keys
        examples = subject.task.held_out(config.sequences)
        for _, part in blocks(examples, rows_at_once(examples.tokens.shape[1], predictor.vocabulary, ROWS)):
            batch = collate(part)
            scored = batch.scored.numpy()[:, 1:]
            position = positions(part)[:, 1:]
            seen = scored & (position <= config.positions)  # the loss of a token counts at the position before it
            np.add.at(counts, position[seen] - 1, 1)
            found = [score_batch(model, batch, 1, batch.tokens.shape[1]).nats for model in (predictor, limited)]
            for which, nats in enumerate(found):
                np.add.at(sums[which], position[seen] - 1, nats[seen])
            far = seen & (position - 1 > config.keep)  # one with more positions before it than it keeps
            by_row.append(np.stack([np.where(far, found[1] - found[0], 0).sum(1), far.sum(1)]))
        there = np.flatnonzero(counts)
        beyond = there[there > config.keep]
        if not len(beyond):
            raise ValueError(
                f"no held-out document has the {config.keep + 3} tokens that --keep {config.keep} needs: set it lower"
            )
        rise = (sums[1] - sums[0])[there] / counts[there]
        loss, restricted = sums[:, beyond].sum(1) / counts[beyond].sum()
        metrics = {
            "rise": restricted - loss,
            **_error_of_rise(*np.concatenate(by_row, axis=1)),
            "loss": loss,
            "restricted_loss": restricted,
            "positions": int(counts[beyond].sum()),
        }
        curves = smoothed(f"keep {config.keep}", there.astype(float) + 1, rise)
        details = {"position": (there + 1).tolist(), "rise": rise.tolist(), "count": counts[there].tolist()}
        return Findings(
            {name: float(value) for name, value in metrics.items()},
            [Panel("position in the document", "rise of the loss (nats)", curves)],
            details,
            verdict=(
                f"If positions read the keys of only {counted(config.keep, 'earlier position')}, the loss "
                f"{'rises' if restricted >= loss else 'falls'} by {abs(restricted - loss):.4f} nats per token, from "
                f"{loss:.4f} to {restricted:.4f}."
            ),
        )


def _error_of_rise(sums: np.ndarray, counts: np.ndarray) -> dict[str, float]:
    """Standard error of sum(sums) / sum(counts) over n independent sequences, (n,) each; empty for a single one."""
    n = len(sums)
    if n == 1:
        return {}
    apart = sums - sums.sum() / counts.sum() * counts
    return {"rise_standard_error": np.sqrt(n / (n - 1) * (apart**2).sum()) / counts.sum()}
