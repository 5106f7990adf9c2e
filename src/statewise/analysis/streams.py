"""What streams of a model contribute to later positions (State-Prediction Separation, figure 5).

Gradient ratio (equation 6, figure 5a): r(p, k) is the norm of the gradient of the loss k positions later with respect
to the parameters as used at position p in one stream, divided by that of the loss at p. The vocabulary head is
excluded. The norms are exact, computed from inputs and output gradients of every linear map, norm and embedding.

Restricted state (figure 5b): the rise of the loss at each position when the persistent keys, too, are read for `keep`
positions onwards only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from typing_extensions import override

from statewise.analysis.base import Analysis, Findings, Subject, finite_or_none
from statewise.data_types import Examples
from statewise.decoding.predictor import Predictor, StateLimiter, Traceable, require
from statewise.evaluation.scoring import score_batch
from statewise.reporting.figures import Curve, Panel
from statewise.runtime.bounds import bounded
from statewise.runtime.devices import in_float64
from statewise.runtime.messages import counted
from statewise.runtime.progress import announced
from statewise.tasks.base import Task
from statewise.tasks.batches import blocks, collate, rows_at_once

FEWEST = 20
"""Curves with fewer points are not smoothed."""


def documents(examples: Examples) -> Iterator[np.ndarray]:
    """The tokens (t,) of each document, or of a part where a row begins or ends inside a document."""
    for row in range(len(examples)):
        tokens = examples.tokens[row, : examples.lengths[row]]
        if examples.documents is None:
            yield tokens
            continue
        ends = np.flatnonzero(np.diff(examples.documents[row, : len(tokens)])) + 1
        yield from np.split(tokens, ends)


def positions(examples: Examples) -> np.ndarray:
    """(n, T): distance of each position from the start of its document."""
    column = np.broadcast_to(np.arange(examples.tokens.shape[1]), examples.tokens.shape)
    if examples.documents is None:
        return column
    starts = np.zeros_like(examples.documents, dtype=bool)
    starts[:, 1:] = examples.documents[:, 1:] != examples.documents[:, :-1]
    return column - np.maximum.accumulate(np.where(starts, column, 0), axis=1)


def smoothed(label: str, x: np.ndarray, y: np.ndarray) -> list[Curve]:
    """The smoothed curve of evenly spaced points, followed by the raw one."""
    if len(x) < FEWEST:
        return [Curve(label, x.tolist(), y.tolist())]
    from scipy.signal import savgol_filter

    window = max(5, len(x) // 8) | 1
    trend = savgol_filter(y, window, 2)
    return [Curve(label, x.tolist(), trend.tolist()), Curve(label, x.tolist(), y.tolist(), "raw")]


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
            raise ValueError(f"every {self.every} is above furthest {self.furthest}: only offset 0 would be left")
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
                "set `furthest` lower"
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
            "mean": finite_or_none(mean),
            "median": finite_or_none(median),
        }
        known = [name for name, is_defined in zip(predictor.streams, defined) if is_defined]
        in_words = [f"{metrics[f'{name}_mean']:.2g} times in the stream {name}" for name in known]
        verdict = (
            f"Compared with the gradient of a position's own loss, the gradient of the losses 1 to {config.furthest} "
            f"positions later is on average {' and '.join(in_words) or 'undefined in every stream'}."
        )
        return Findings(metrics, panels, details, notes, verdict=verdict)

    def _norms(self, predictor: Traceable, row: np.ndarray, source: int, offsets: np.ndarray) -> np.ndarray:
        """(offsets, streams): norms of the losses' gradients with respect to the parameters as used at `source`."""
        # Every loss has a row of its own, though all rows are equal: a batch of cotangents (`is_grads_batched`) would
        # need vmap to differentiate through attention. The head is applied only where a loss is.
        norms = []
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
            norms.append(squares.sqrt().numpy())
        return np.concatenate(norms)


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
            losses = [score_batch(model, batch, 1, batch.tokens.shape[1]).nats for model in (predictor, limited)]
            for which, nats in enumerate(losses):
                np.add.at(sums[which], position[seen] - 1, nats[seen])
            far = seen & (position - 1 > config.keep)  # one with more positions before it than it keeps
            by_row.append(np.stack([np.where(far, losses[1] - losses[0], 0).sum(1), far.sum(1)]))
        there = np.flatnonzero(counts)
        beyond = there[there > config.keep]
        if not len(beyond):
            raise ValueError(
                f"no held-out document has the {config.keep + 3} tokens that `keep` {config.keep} needs: set it lower"
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
