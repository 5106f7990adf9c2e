"""How good a predictor is at a task: teacher-forced, and by decoding from the prompts."""

from __future__ import annotations

import math

import numpy as np
import torch

from statewise.data import blocks, collate, same_prompt_length
from statewise.decoding.base import Decoder, Predictor
from statewise.tasks.base import Task
from statewise.types import Completion, Evaluation, Examples

SAMPLES = 6
"""Examples that an evaluation keeps for reports."""


def evaluate(task: Task, predictor: Predictor, decoder: Decoder, examples: Examples, *, block: int = 256) -> Evaluation:
    """The task's own scores of decoded answers, where there are prompts and the task wants them; then, teacher-forced,
    `loss` (nats per scored token), `perplexity`, `token_accuracy`, and the task's scores by position.

    `block` sequences are handled at a time.
    """
    metrics: dict[str, float] = {}
    samples = []
    prompted = np.flatnonzero((examples.prompt_lengths > 0) & (examples.prompt_lengths < examples.lengths))
    if task.decoded and len(prompted):
        asked = examples[prompted]
        completions = complete(task, predictor, decoder, asked, block=block)
        metrics = task.score(asked, completions)
        samples = [task.sample_of(asked, row, completions[row]) for row in range(min(SAMPLES, len(asked)))]
    forced, correct = teacher_forced(predictor, examples, block=block)
    return Evaluation(metrics | forced | task.score_positions(examples, correct), len(examples), samples)


def teacher_forced(predictor: Predictor, examples: Examples, *, block: int) -> tuple[dict[str, float], np.ndarray]:
    """Metrics of next-token prediction given the true past, and (n, T) bool: token t was the first choice."""
    correct = np.zeros(examples.tokens.shape, bool)
    total, count, right = 0.0, 0, 0
    for rows, part in blocks(examples, block):
        batch = collate(part)
        first, end = batch.span
        targets, scored = batch.targets
        logits = predictor.logits(batch)[:, first - 1 : end - 1].cpu()
        log_probs = logits.log_softmax(-1).gather(-1, targets[:, :, None])[:, :, 0]
        hits = (logits.argmax(-1) == targets) & scored
        total -= float(torch.where(scored, log_probs, 0.0).double().sum())
        count += int(scored.sum())
        right += int(hits.sum())
        correct[rows[:, None], np.arange(first, end)] = hits.numpy()
    if count == 0:
        raise ValueError("these examples have no token to score")
    loss = total / count
    perplexity = math.exp(loss) if loss < 700 else math.inf
    return {"loss": loss, "perplexity": perplexity, "token_accuracy": right / count}, correct


def complete(task: Task, predictor: Predictor, decoder: Decoder, examples: Examples, *, block: int) -> list[Completion]:
    """A completion for each example, in order."""
    completions: dict[int, Completion] = {}
    for rows, prompts in same_prompt_length(examples, block):
        limit = task.context - prompts.shape[1]
        completions |= zip(rows.tolist(), decoder.decode(predictor, prompts, limit=limit, end=task.end))
    return [completions[row] for row in range(len(examples))]
