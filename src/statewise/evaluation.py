"""How good a predictor is at a task: teacher-forced, and by decoding from the prompts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

import numpy as np
import torch

from statewise.data import blocks, collate, rows_at_once, same_prompt_length
from statewise.decoding.base import Decoder, Predictor
from statewise.decoding.continued import carrier
from statewise.tasks.base import Task, WholeTexts
from statewise.types import Completion, Evaluation, Examples

SAMPLES = 6
"""Examples that an evaluation keeps for reports."""


def evaluate(task: Task, predictor: Predictor, decoder: Decoder, examples: Examples, *, block: int = 256) -> Evaluation:
    """The task's own scores of decoded answers, where there are prompts and the task wants them; then, teacher-forced,
    `loss` (nats per scored token), `perplexity`, `token_accuracy`, the same nats by each of the task's units
    (`loss_per_word`, `perplexity_per_word`, `bits_per_byte`), and the task's scores by position.

    `block` sequences are handled at a time, fewer where their logits would be too many.
    """
    metrics: dict[str, float] = {}
    samples = []
    prompted = np.flatnonzero((examples.prompt_lengths > 0) & (examples.prompt_lengths < examples.lengths))
    if task.decoded and len(prompted):
        asked = examples[prompted]
        completions = complete(task, predictor, decoder, asked, block=block)
        metrics = task.score(asked, completions)
        samples = [task.sample_of(asked, row, completions[row]) for row in range(min(SAMPLES, len(asked)))]
    few = rows_at_once(examples.tokens.shape[1], len(task.vocab), block)
    forced, chosen = teacher_forced(predictor, examples, block=few)
    units = task.units(examples)
    if units:
        forced |= per_unit(forced["loss"] * int(collate(examples).scored.sum()), units)
    return Evaluation(metrics | forced | task.score_positions(examples, chosen), len(examples), samples)


def per_unit(nats: float, units: Mapping[str, int]) -> dict[str, float]:
    """The nats of a whole set by each unit of which it has any: as a loss, and as people are used to it, which is in
    bits for bytes and as a perplexity for all else."""
    metrics: dict[str, float] = {}
    for unit, count in units.items():
        if count:
            loss = nats / count
            usual = {"bits_per_byte": loss / math.log(2)} if unit == "byte" else {f"perplexity_per_{unit}": _exp(loss)}
            metrics |= {f"loss_per_{unit}": loss, **usual}
    return metrics


def _exp(loss: float) -> float:
    return math.exp(loss) if loss < 700 else math.inf


def teacher_forced(predictor: Predictor, examples: Examples, *, block: int) -> tuple[dict[str, float], np.ndarray]:
    """Metrics of next-token prediction given the true past, and (n, T) int64: the first choice for each scored token,
    -1 elsewhere."""
    chosen = np.full(examples.tokens.shape, -1, np.int64)
    total, count, right = 0.0, 0, 0
    for rows, part in blocks(examples, block):
        batch = collate(part)
        first, end = batch.span
        targets, scored = batch.targets
        logits = predictor.logits(batch)[:, first - 1 : end - 1].cpu()
        log_probs = logits.log_softmax(-1).gather(-1, targets[:, :, None])[:, :, 0]
        first_choice = logits.argmax(-1)
        total -= float(torch.where(scored, log_probs, 0.0).double().sum())
        count += int(scored.sum())
        right += int(((first_choice == targets) & scored).sum())
        chosen[rows[:, None], np.arange(first, end)] = torch.where(scored, first_choice, -1).numpy()
    if count == 0:
        raise ValueError("these examples have no token to score")
    loss = total / count
    return {"loss": loss, "perplexity": _exp(loss), "token_accuracy": right / count}, chosen


def complete(task: Task, predictor: Predictor, decoder: Decoder, examples: Examples, *, block: int) -> list[Completion]:
    """A completion for each example, in order."""
    completions: dict[int, Completion] = {}
    for rows, prompts in same_prompt_length(examples, block):
        limit = task.context - prompts.shape[1]
        completions |= zip(rows.tolist(), decoder.decode(predictor, prompts, limit=limit, end=task.end))
    return [completions[row] for row in range(len(examples))]


@torch.no_grad()
def whole_texts(task: Task, predictor: Predictor) -> Evaluation:
    """Each held-out document read from its beginning to its end, chunk after chunk with the state carried on, however
    long it is: `loss`, `perplexity`, and by the task's units. The first token of a document is not scored.

    Raises `ValueError` for a model that carries no state, or a task without such documents.
    """
    power = carrier(predictor)
    if not isinstance(task, WholeTexts):
        raise ValueError("this task has no documents beyond its sequences: of the tasks, text has them")
    nats, count, documents = 0.0, 0, 0
    units: Counter[str] = Counter()
    for text in task.held_out_texts():
        documents += 1
        if len(text) < 2:
            continue
        tokens = torch.from_numpy(text)[None]
        cursor, last = predictor.start(tokens[:, :1])
        for part in torch.split(tokens[:, 1:], power.chunk, dim=1):
            logits = predictor.extend(cursor, part)
            logits, last = torch.cat([last[:, None], logits[:, :-1]], dim=1), logits[:, -1]
            given = logits.log_softmax(-1).cpu().gather(-1, part[:, :, None])
            nats -= float(given.double().sum())
        count += tokens.shape[1] - 1
        units.update(task.units(Examples.of([text], [0])))
    if not count:
        raise ValueError("the held-out documents have no token to score")
    loss = nats / count
    metrics = {"loss": loss, "perplexity": _exp(loss), **per_unit(nats, units)}
    return Evaluation(metrics, documents, [])
