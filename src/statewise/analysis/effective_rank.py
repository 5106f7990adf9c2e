"""Effective rank of the belief states (Roy & Vetterli 2007; Teoh et al. 2026, appendix D).

Few directions that carry much mean a compact state; the measure is the exponential of the entropy of the
normalised singular values of all states, one a row, not centred.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from statewise.analysis.base import Analysis, Curve, Findings, Panel, Subject
from statewise.data import blocks, collate

NEGLIGIBLE = 1e-12
"""Singular values below it are dropped."""


@dataclass(frozen=True)
class EffectiveRankConfig:
    """Options of `statewise analyze RUN effective-rank`."""

    sequences: int = 256
    """Held-out sequences whose states are used."""
    positions: int = 256
    """Positions of each sequence, from the first on."""

    def __post_init__(self) -> None:
        if self.sequences < 1 or self.positions < 1:
            raise ValueError("sequences and positions must be at least 1")


class EffectiveRank(Analysis):
    """exp(-sum p ln p) with p the singular values of the states over their sum."""

    Config = EffectiveRankConfig

    def __init__(self, config: EffectiveRankConfig) -> None:
        self.config = config

    def analyze(self, subject: Subject) -> Findings:
        """Metrics `effective_rank`, and `width` and `states`, the sides of the matrix; the spectrum as a curve."""
        rows = []
        for _, part in blocks(subject.task.held_out(self.config.sequences), 64):
            batch = collate(part)
            state = subject.model.predictor.states(batch).state.float().cpu()
            real = batch.real[:, : self.config.positions]
            rows.append(state[:, : self.config.positions][real].numpy())
        states = np.concatenate(rows).astype(np.float64)
        values = np.linalg.svd(states, compute_uv=False)
        metrics = {"effective_rank": effective_rank(values), "width": states.shape[1], "states": len(states)}
        shares = (values / values.sum()).tolist()
        spectrum = Curve("states", [float(place) for place in range(1, len(shares) + 1)], shares)
        return Findings(metrics, [Panel("singular value, by size", "share of their sum", [spectrum])],
                        main=["effective_rank"])  # fmt: skip


def effective_rank(singular_values: np.ndarray) -> float:
    """exp of the entropy of the normalised values (m,)."""
    kept = singular_values[singular_values >= NEGLIGIBLE]
    if not len(kept):
        raise ValueError("all states are zero: they have no rank")
    shares = kept / kept.sum()
    return float(np.exp(-(shares * np.log(shares)).sum()))
