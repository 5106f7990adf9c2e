"""Effective rank of the belief states (Roy & Vetterli 2007; Teoh et al. 2026, appendix D).

The exponential of the entropy of the normalised singular values of the matrix of states, one per row, not centred: a
low value means a compact representation. As in the paper the states are those of the last layer: the first head's
output for multi-token prediction, whose belief state is the trunk's; the states before Fetch for joint multi-token
prediction. Recurrent networks and belief slots have more in their belief state, of which this is a part.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from statewise.analysis.base import Analysis, Findings, Subject
from statewise.reporting.figures import Curve, Panel
from statewise.runtime.bounds import bounded
from statewise.tasks.batches import blocks, collate

NEGLIGIBLE = 1e-12
"""Smaller singular values are dropped."""


@dataclass(frozen=True)
class EffectiveRankConfig:
    """Options of `statewise analyze RUN effective-rank`."""

    sequences: int = 256
    """Held-out sequences."""
    positions: int = 256
    """First positions of each sequence that are used."""

    def __post_init__(self) -> None:
        bounded(self, "sequences", "positions", at_least=1)


class EffectiveRank(Analysis):
    """exp(-sum p ln p) with p the singular values of the states over their sum."""

    Config = EffectiveRankConfig
    config: EffectiveRankConfig

    def analyze(self, subject: Subject) -> Findings:
        """Metrics `effective_rank`, and `width` and `states`, the shape of the matrix; the spectrum as a curve."""
        rows, examples = [], subject.task.held_out(self.config.sequences)
        # No state depends on later tokens, so these need not be read.
        examples = replace(examples, lengths=np.minimum(examples.lengths, self.config.positions))
        for _, part in blocks(examples, 64):
            batch = collate(part)
            hidden = subject.snapshot.predictor.states(batch)
            # The first D features of a state are the last layer's, whatever else the backbone carries.
            last = hidden.state[..., : hidden.readout.shape[-1]]
            state = (last if subject.snapshot.predictor.state_is_last else hidden.readout).float().cpu()
            rows.append(state[batch.real].numpy())
        states = np.concatenate(rows).astype(np.float64)
        values = np.linalg.svd(states, compute_uv=False)
        metrics = {"effective_rank": effective_rank(values), "width": states.shape[1], "states": len(states)}
        # A logarithmic axis has no 0, and negligible values would take most of it.
        shares = (values[values >= NEGLIGIBLE] / values.sum()).tolist()
        spectrum = Curve("states", [float(rank) for rank in range(1, len(shares) + 1)], shares)
        panel = Panel("rank of the singular value", "share of their sum", [spectrum], log_y=True)
        verdict = (
            f"The states effectively use {metrics['effective_rank']:.1f} dimensions; {len(states):,} states of width "
            f"{states.shape[1]:,} could use {min(states.shape):,}."
        )
        return Findings(metrics, [panel], main=["effective_rank"], verdict=verdict)


def effective_rank(singular_values: np.ndarray) -> float:
    """The exponential of the entropy of the normalised singular values (m,)."""
    kept = singular_values[singular_values >= NEGLIGIBLE]
    if not len(kept):
        raise ValueError("all states are zero: they have no effective rank")
    shares = kept / kept.sum()
    return float(np.exp(-(shares * np.log(shares)).sum()))
