"""How much a model rests on its kept state (State-Prediction Separation, figure 5b).

The same model, with kept keys readable for the last `keep` places only: how much each position's loss rises.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from statewise.analysis.base import Analysis, Findings, Panel, Subject
from statewise.analysis.documents import positions
from statewise.analysis.smoothing import smoothed
from statewise.data import blocks, collate, rows_at_once
from statewise.decoding.base import Predictor, StateLimiter
from statewise.types import Batch

ROWS = 16
"""Sequences that are read at a time; fewer of a large vocabulary."""


@dataclass(frozen=True)
class RestrictedStateConfig:
    """Options of `statewise analyze RUN restricted-state`."""

    keep: int = 64
    """Places for which kept keys stay readable, the query's own included."""
    sequences: int = 256
    """Held-out sequences."""
    positions: int = 2048
    """Positions of a document that are looked at, from the first on."""

    def __post_init__(self) -> None:
        for name in ("keep", "sequences", "positions"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")


class RestrictedState(Analysis):
    """Mean rise of the loss, by position in the document."""

    Config = RestrictedStateConfig

    def __init__(self, config: RestrictedStateConfig) -> None:
        self.config = config

    def analyze(self, subject: Subject) -> Findings:
        """Metrics `rise` (nats a token, over positions that lie beyond the restriction) with its standard error over
        sequences, `loss` and `restricted_loss` there; the rise by position as a curve."""
        config, predictor = self.config, subject.model.predictor
        if not isinstance(predictor, StateLimiter):
            raise ValueError("restricted-state needs a model whose state can be restricted: the backbone two_stream")
        limited = predictor.limited(config.keep)
        sums = np.zeros((2, config.positions))
        counts = np.zeros(config.positions, np.int64)
        by_row = []  # (rise, positions) beyond the restriction
        examples = subject.task.held_out(config.sequences)
        for _, part in blocks(examples, rows_at_once(examples.tokens.shape[1], predictor.vocabulary, ROWS)):
            batch = collate(part)
            scored = batch.scored.numpy()[:, 1:]
            place = positions(part)[:, 1:]
            seen = scored & (place <= config.positions)  # the loss of a token is that of the position before it
            np.add.at(counts, place[seen] - 1, 1)
            found = [losses(model, batch) for model in (predictor, limited)]
            for which, nats in enumerate(found):
                np.add.at(sums[which], place[seen] - 1, nats[seen])
            far = seen & (place > config.keep)
            by_row.append(np.stack([np.where(far, found[1] - found[0], 0).sum(1), far.sum(1)]))
        there = np.flatnonzero(counts)
        beyond = there[there >= config.keep]
        if not len(beyond):
            raise ValueError(f"no held-out document has more than {config.keep} tokens: set --keep lower")
        rise = (sums[1] - sums[0])[there] / counts[there]
        loss, restricted = sums[:, beyond].sum(1) / counts[beyond].sum()
        metrics = {
            "rise": restricted - loss,
            **_error_of_rise(*np.concatenate(by_row, axis=1)),
            "loss": loss,
            "restricted_loss": restricted,
            "positions": counts[beyond].sum(),
        }
        curves = smoothed(f"kept keys of {config.keep} places", there.astype(float) + 1, rise)
        details = {"position": (there + 1).tolist(), "rise": rise.tolist(), "count": counts[there].tolist()}
        return Findings(
            {name: float(value) for name, value in metrics.items()},
            [Panel("position in the document", "rise of the loss (nats)", curves)],
            details,
        )


def _error_of_rise(sums: np.ndarray, counts: np.ndarray) -> dict[str, float]:
    """Standard error of sum(sums) / sum(counts), where sequences, (n,) each, are independent and tokens of one need not
    be. Of one sequence there is none."""
    n = len(sums)
    if n == 1:
        return {}
    apart = sums - sums.sum() / counts.sum() * counts
    return {"rise_standard_error": np.sqrt(n / (n - 1) * (apart**2).sum()) / counts.sum()}


def losses(predictor: Predictor, batch: Batch) -> np.ndarray:
    """(B, T - 1): nats of each token from the second on."""
    logits = predictor.logits(batch)[:, :-1]
    own = logits.gather(-1, batch.tokens[:, 1:, None].to(logits.device))[:, :, 0]
    found: np.ndarray = (logits.logsumexp(-1) - own).cpu().numpy()  # without a second array of their size
    return found
