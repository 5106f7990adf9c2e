"""Gradient of later losses by stream (State-Prediction Separation, equation 6 and figure 5a).

r(p, k) is the norm of the gradient of the loss k positions later with respect to the parameters as used at position p
in one stream, divided by that of the loss at p. The vocabulary head is excluded. The norms are exact, computed from
inputs and output gradients of every linear map, norm and embedding.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from typing_extensions import override

from statewise.analysis.base import Analysis, Findings, Subject
from statewise.analysis.positions import documents, smoothed
from statewise.decoding.predictor import Predictor, Traceable, require
from statewise.reporting.figures import Panel
from statewise.runtime.bounds import bounded
from statewise.runtime.devices import in_float64
from statewise.runtime.progress import announced
from statewise.tasks.base import Task


@dataclass(frozen=True)
class GradientRatioConfig:
    """Options of `statewise analyze RUN gradient-ratio`."""

    sequences: int = 50
    """Held-out documents that are long enough for the furthest loss. Paper: 1,000."""
    sources: int = 4
    """Positions p per document. Paper: 8."""
    furthest: int = 64
    """Largest offset k. Paper: 512."""
    every: int = 1
    """Step between offsets."""
    rows: int = 32
    """Losses traced at a time, one per row."""
    seed: int = 0
    """Seed of the positions."""

    def __post_init__(self) -> None:
        bounded(self, "sequences", "sources", "furthest", "every", "rows", at_least=1)
        if self.every > self.furthest:
            raise ValueError(f"every {self.every} is above furthest {self.furthest}: no offset would be left but 0")
        bounded(self, "seed", at_least=0)


class GradientRatio(Analysis):
    """Mean and median of the ratio, by offset and stream."""

    Config = GradientRatioConfig
    config: GradientRatioConfig

    @override
    def check(self, task: Task, predictor: Callable[[], Predictor]) -> None:
        require(predictor(), Traceable)

    def analyze(self, subject: Subject) -> Findings:
        """Metrics `STREAM_mean` and `STREAM_median` over offsets from 1 on; a panel of means and one of medians."""
        config, predictor = self.config, require(subject.snapshot.predictor, Traceable)
        long = [row for row in documents(subject.task.held_out()) if len(row) >= config.furthest + 2]
        if not long:
            raise ValueError(
                f"no held-out document has the {config.furthest + 2} tokens that an offset of {config.furthest} needs: "
                "set --furthest lower"
            )
        offsets = np.arange(0, config.furthest + 1, config.every)
        rng = np.random.default_rng(config.seed)
        chosen = [long[row] for row in np.sort(rng.permutation(len(long))[: config.sequences])]
        ratios = []
        for row in announced(chosen, "documents", len(chosen)):
            last = len(row) - config.furthest - 2
            for source in rng.integers(0, last + 1, size=config.sources):
                norms = self._norms(predictor, row, int(source), offsets)
                with np.errstate(invalid="ignore", divide="ignore"):
                    ratios.append(norms / norms[:1])
        all_ratios = np.stack(ratios)  # [examples, offsets, streams]
        defined = np.isfinite(all_ratios).all(axis=(0, 1))
        notes = [
            f"{name}: the loss at its own position does not depend on it, so the ratio is undefined"
            for name, known in zip(predictor.streams, defined)
            if not known
        ]
        mean, median = all_ratios.mean(0), np.median(all_ratios, axis=0)
        metrics: dict[str, float] = {"documents": len(chosen), "examples": len(ratios)}
        panels = []
        for what, values in (("mean", mean), ("median", median)):
            curves = []
            for stream, name in enumerate(predictor.streams):
                if not defined[stream]:
                    continue
                metrics[f"{name}_{what}"] = float(values[1:, stream].mean())
                curves += smoothed(name, offsets[1:].astype(float), values[1:, stream])
            panels.append(Panel("offset k of the loss", f"{what} of r(p, k)", curves))
        details = {
            "offsets": offsets.tolist(),
            "streams": list(predictor.streams),
            "mean": _plain(mean),
            "median": _plain(median),
        }
        known = [name for name, is_defined in zip(predictor.streams, defined) if is_defined]
        found = [f"{metrics[f'{name}_mean']:.2g} times in the stream {name}" for name in known]
        verdict = (
            f"Compared with the gradient of a position's own loss, the gradient of the losses 1 to {config.furthest} "
            f"positions later is on average {' and '.join(found) or 'undefined in every stream'}."
        )
        return Findings(metrics, panels, details, notes, verdict=verdict)

    def _norms(self, predictor: Traceable, row: np.ndarray, source: int, offsets: np.ndarray) -> np.ndarray:
        """(offsets, streams): norms of the losses' gradients with respect to the parameters as used at `source`."""
        # Every loss has a row of its own, though all rows are equal: a batch of cotangents (`is_grads_batched`) would
        # need vmap to differentiate through attention. The head is applied only where a loss is.
        found = []
        for first in range(0, len(offsets), self.config.rows):
            some = offsets[first : first + self.config.rows]
            tokens = torch.from_numpy(np.tile(row[: source + some[-1] + 2], (len(some), 1)))
            traced = predictor.trace(tokens, torch.from_numpy(source + some), source)
            outputs = [use.output for use in traced.uses]
            gradients = torch.autograd.grad(traced.losses.sum(), outputs, allow_unused=True)
            shape = len(some), len(predictor.streams), tokens.shape[1] - source
            squares = torch.zeros(len(some), len(predictor.streams), dtype=torch.float64)
            for use, gradient in zip(traced.uses, gradients):
                if gradient is not None:
                    # A use shared by rows or streams would hold the sum of their gradients.
                    assert gradient.shape[:-1].numel() == math.prod(shape), "a use shared by positions or streams"
                    here = (gradient * use.weight).view(*shape, -1)[:, :, 0]
                    squares += in_float64(here).square().sum(-1).cpu()
            found.append(squares.sqrt().numpy())
        return np.concatenate(found)


def _plain(values: np.ndarray) -> list[list[float | None]]:
    """The values as lists, with None for NaN and infinity."""
    return [[float(value) if np.isfinite(value) else None for value in row] for row in values]
