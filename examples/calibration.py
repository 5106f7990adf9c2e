"""How often the most likely token comes, against the probability that the model gives it."""

from dataclasses import dataclass

import numpy as np
import torch
from statewise.analysis.base import Analysis, Findings, Subject
from statewise.reporting.figures import Curve, Panel
from statewise.runtime.bounds import bounded
from statewise.tasks.batches import blocks, collate


@dataclass(frozen=True)
class CalibrationConfig:
    """Options of `statewise analyze RUN calibration:Calibration`."""

    sequences: int = 256
    """Held-out sequences."""
    bins: int = 10
    """Equal parts of the probabilities."""

    def __post_init__(self) -> None:
        bounded(self, "sequences", "bins", at_least=1)


class Calibration(Analysis):
    """Expected calibration error: by bins of the probability, how far it is from the share of right tokens."""

    Config = CalibrationConfig

    @torch.no_grad()
    def analyze(self, subject: Subject) -> Findings:
        """Metrics `calibration_error` and `accuracy`, over the scored tokens; a curve of the bins."""
        probabilities, right = [], []
        for _, part in blocks(subject.task.held_out(self.config.sequences), 64):
            batch = collate(part)
            first, end = batch.span  # columns that hold scored tokens
            logits = subject.snapshot.predictor.logits(batch)[:, first - 1 : end - 1].float().cpu()
            probability, choice = logits.softmax(-1).max(-1)
            scored = batch.scored[:, first:end]
            probabilities.append(probability[scored].numpy())
            right.append((choice == batch.tokens[:, first:end])[scored].numpy())
        given, came = np.concatenate(probabilities).astype(np.float64), np.concatenate(right)
        bin_of = np.minimum((given * self.config.bins).astype(int), self.config.bins - 1)
        used = np.unique(bin_of)
        said = [float(given[bin_of == one].mean()) for one in used]
        true = [float(came[bin_of == one].mean()) for one in used]
        share = [float((bin_of == one).mean()) for one in used]
        error = sum(weight * abs(a - b) for weight, a, b in zip(share, said, true))
        curves = [Curve("model", said, true), Curve("calibrated", [0.0, 1.0], [0.0, 1.0], role="control")]
        return Findings(
            {"calibration_error": error, "accuracy": float(came.mean())},
            [Panel("probability of the most likely token", "share of right tokens", curves, shares=True)],
            details={"probability": said, "right": true, "share": share},
            main=["calibration_error"],
            verdict=f"On average the probability of the most likely token is off by {error:.3f}; "
            f"{came.mean():.0%} of these tokens are right.",
        )
