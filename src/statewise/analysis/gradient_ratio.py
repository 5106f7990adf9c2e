"""Where the gradient of later losses lands (State-Prediction Separation, equation 6 and figure 5a).

r(p, k) is the norm of the gradient that the loss k places on sends through the parameters as used at slot p, over that
of the loss at p's own place. The vocabulary head is left out. It is exact: the norms follow from inputs and gradients
of every linear map, norm and embedding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from statewise.analysis.base import Analysis, Findings, Panel, Subject
from statewise.analysis.documents import documents
from statewise.analysis.smoothing import smoothed
from statewise.decoding.base import Traceable


@dataclass(frozen=True)
class GradientRatioConfig:
    """Options of `statewise analyze RUN gradient-ratio`."""

    sequences: int = 50
    """Held-out documents, long enough for the furthest loss. The paper takes 1,000."""
    sources: int = 4
    """Places of each whose gradient is looked at. The paper takes 8."""
    furthest: int = 64
    """Losses up to so many places on. The paper goes to 512."""
    every: int = 1
    """Every so many places."""
    rows: int = 32
    """Losses traced at a time, each in a row of its own."""
    seed: int = 0
    """Decides the places."""

    def __post_init__(self) -> None:
        for name in ("sequences", "sources", "furthest", "every", "rows"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")


class GradientRatio(Analysis):
    """Mean and median of the ratio, by offset and slot."""

    Config = GradientRatioConfig

    def __init__(self, config: GradientRatioConfig) -> None:
        self.config = config

    def analyze(self, subject: Subject) -> Findings:
        """Metrics `SLOT_mean` and `SLOT_median`, over all offsets from 1 on; a panel of means and one of medians."""
        config, predictor = self.config, subject.model.predictor
        if not isinstance(predictor, Traceable):
            raise ValueError("gradient-ratio needs a model that predicts from one backbone: next_token or next_latent")
        long = [row for row in documents(subject.task.held_out()) if len(row) >= config.furthest + 2]
        if not long:
            raise ValueError(
                f"no held-out document has the {config.furthest + 2} tokens that losses {config.furthest} places on "
                "need: set --furthest lower"
            )
        offsets = np.arange(0, config.furthest + 1, config.every)
        rng = np.random.default_rng(config.seed)
        chosen = [long[place] for place in np.sort(rng.permutation(len(long))[: config.sequences])]
        ratios = []
        for row in chosen:
            last = len(row) - config.furthest - 2
            for source in rng.integers(0, last + 1, size=config.sources):
                norms = self._norms(predictor, row, int(source), offsets)
                with np.errstate(invalid="ignore", divide="ignore"):
                    ratios.append(norms / norms[:1])
        all_ratios = np.stack(ratios)  # [examples, offsets, slots]
        defined = np.isfinite(all_ratios).all(axis=(0, 1))
        notes = [f"{name}: has no part in the loss of its own place, so that there is no ratio"
                 for name, known in zip(predictor.slots, defined) if not known]  # fmt: skip
        mean, median = all_ratios.mean(0), np.median(all_ratios, axis=0)
        metrics: dict[str, float] = {"documents": len(chosen), "examples": len(ratios)}
        panels = []
        for what, values in (("mean", mean), ("median", median)):
            curves = []
            for slot, name in enumerate(predictor.slots):
                if not defined[slot]:
                    continue
                metrics[f"{name}_{what}"] = float(values[1:, slot].mean())
                curves += smoothed(name, offsets[1:].astype(float), values[1:, slot])
            panels.append(Panel("places to the loss k", f"{what} of r(p, k)", curves))
        details = {
            "offsets": offsets.tolist(),
            "slots": list(predictor.slots),
            "mean": _plain(mean),
            "median": _plain(median),
        }
        return Findings(metrics, panels, details, notes)

    def _norms(self, predictor: Traceable, row: np.ndarray, source: int, offsets: np.ndarray) -> np.ndarray:
        """(offsets, slots): norms of the gradients that the losses send to the parameters as used at `source`."""
        # A row for each loss, though all read the same: one row with a batch of cotangents (`is_grads_batched`) would
        # do, if vmap could go back through attention. The head is applied where it is asked alone.
        found = []
        for first in range(0, len(offsets), self.config.rows):
            some = offsets[first : first + self.config.rows]
            tokens = torch.from_numpy(np.tile(row[: source + some[-1] + 2], (len(some), 1)))
            traced = predictor.trace(tokens, torch.from_numpy(source + some), source)
            outputs = [use.output for use in traced.uses]
            gradients = torch.autograd.grad(traced.losses.sum(), outputs, allow_unused=True)
            shape = len(some), len(predictor.slots), tokens.shape[1] - source
            squares = torch.zeros(len(some), len(predictor.slots), dtype=torch.float64)
            for use, gradient in zip(traced.uses, gradients):
                if gradient is not None:
                    # What rows or slots shared would hold the sum of their gradients.
                    assert gradient.shape[:-1].numel() == math.prod(shape), "a use that is not each slot's own"
                    here = (gradient * use.weight).view(*shape, -1)[:, :, 0]
                    squares += here.double().square().sum(-1).cpu()
            found.append(squares.sqrt().numpy())
        return np.concatenate(found)


def _plain(values: np.ndarray) -> list[list[float | None]]:
    """As lists, None where there is no number."""
    return [[float(value) if np.isfinite(value) else None for value in row] for row in values]
