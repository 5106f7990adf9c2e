"""When a model of two streams learns to fetch: attention from the prediction of each position to its own input.

A prediction starts from `<predict>` and knows its own token only by attention to the input of its position (the
State-Prediction Separation paper, equation 5). Until some head does that, the model can do little better than the
frequencies of tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from statewise.analysis.base import Analysis, Findings, Subject
from statewise.data_types import Examples
from statewise.decoding.predictor import Fetcher, Predictor, require
from statewise.evaluation.scoring import score_batch
from statewise.reporting.figures import Curve, Panel, over_steps
from statewise.runtime.bounds import bounded
from statewise.runtime.messages import percent
from statewise.tasks.batches import blocks, collate, rows_at_once

ROWS = 4
"""Sequences processed at a time, fewer if the vocabulary is large."""


@dataclass(frozen=True)
class FetchConfig:
    """Options of `statewise analyze RUN fetch`."""

    sequences: int = 32
    """Held-out sequences."""
    checkpoints: str = "all"
    """Checkpoints besides the chosen one: all, or steps like 100,200."""

    def __post_init__(self) -> None:
        bounded(self, "sequences", at_least=1)


@dataclass(frozen=True)
class Fetched:
    """Attention of one checkpoint's predictions to their own inputs, over all positions that predict a scored token."""

    weights: np.ndarray
    """(L, H): mean attention weight of the prediction on its own input."""
    uniform: float
    """The mean weight under uniform attention over all that a head may read."""
    loss: float
    """Nats per token."""


class Fetch(Analysis):
    """Mean attention of the prediction to its own input, by checkpoint, layer and head."""

    Config = FetchConfig
    config: FetchConfig

    def analyze(self, subject: Subject) -> Findings:
        """Metrics `fetch`, the largest mean weight over all heads at the chosen checkpoint, its `fetch_layer` and
        `fetch_head`, counted from 0, and `fetch_uniform`, that of uniform attention. The best head overall and in each
        layer, and the loss, by training step as curves; every head in the details."""
        examples = subject.task.held_out(self.config.sequences)
        by_step: dict[int | None, Fetched] = {}
        notes = []
        others = None if subject.snapshot.step is None else self.config.checkpoints  # None: the model belongs to no run
        for snapshot in subject.each_step(others):
            if "prediction" in require(snapshot.predictor, Fetcher).streams:
                by_step[snapshot.step] = fetched(snapshot.predictor, examples)
            else:
                notes.append(f"{snapshot.label} is left out: it has no prediction stream")
        if subject.snapshot.step not in by_step:
            raise ValueError("the chosen checkpoint has no prediction stream: its streams have not separated yet")
        chosen = by_step[subject.snapshot.step]
        layer, head = np.unravel_index(chosen.weights.argmax(), chosen.weights.shape)
        metrics = {
            "fetch": float(chosen.weights.max()),
            "fetch_layer": int(layer),
            "fetch_head": int(head),
            "fetch_uniform": chosen.uniform,
            "loss": chosen.loss,
        }
        steps = sorted(step for step in by_step if step is not None)
        in_order = [by_step[step] for step in steps] or [chosen]
        x = [float(step) for step in steps] or [0.0]
        best = np.array([one.weights.max(axis=1) for one in in_order])  # [checkpoints, layers]
        curves = [
            Curve("best head", x, best.max(axis=1).tolist()),
            *(Curve(f"layer {number}", x, best[:, number].tolist(), "series") for number in range(best.shape[1])),
            Curve("uniform attention", x, [one.uniform for one in in_order], "control"),
        ]
        panels = [
            over_steps(Panel("training step", "attention to its own input", curves, shares=True)),
            over_steps(
                Panel("training step", "loss (nats per token)", [Curve("held out", x, [one.loss for one in in_order])])
            ),
        ]
        details = {
            "steps": steps,
            "weights": [one.weights.tolist() for one in in_order],
            "uniform": [one.uniform for one in in_order],
            "loss": [one.loss for one in in_order],
        }
        verdict = (
            f"Head {head} of layer {layer} (counted from 0) gives {percent(metrics['fetch'])} of its attention to the "
            f"input of its own position, the most of all heads; uniform attention would give {percent(chosen.uniform)}."
        )
        return Findings(metrics, panels, details, notes, main=["fetch"], verdict=verdict)


def fetched(predictor: Predictor, examples: Examples) -> Fetched:
    """Measures one model. Raises `ValueError` if no token of `examples` is scored."""
    fetcher = require(predictor, Fetcher)
    weights: list[np.ndarray] = []  # sums, (L, H) each
    uniform, nats, count = 0.0, 0.0, 0
    for _, part in blocks(examples, rows_at_once(examples.tokens.shape[1], predictor.vocabulary, ROWS)):
        batch = collate(part)
        predicts = batch.scored.numpy()[:, 1:]
        own, keys = (of_batch[:, :-1].cpu().double().numpy() for of_batch in fetcher.fetches(batch))
        weights.append(own[predicts].sum(axis=0))
        uniform += float((1 / keys[predicts]).sum())
        nats += float(score_batch(predictor, batch, 1, batch.tokens.shape[1]).nats[predicts].sum())
        count += int(predicts.sum())
    if not count:
        raise ValueError("no token of the held-out sequences is scored")
    return Fetched(np.sum(weights, axis=0) / count, uniform / count, nats / count)
