"""Evaluates a predictor on a task: teacher-forced, and by decoding from the prompts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from statewise.carried_state.protocol import seeing_targets
from statewise.data import blocks, collate, rows_at_once, same_prompt_length
from statewise.decoding.base import Decoder, Request
from statewise.decoding.predictor import Predictor
from statewise.scoring import per_token, per_unit, score_batch
from statewise.tasks.base import HasBaselines, Task
from statewise.types import Batch, Completion, Evaluation, Examples, Part

Measure = Callable[[Batch], Mapping[str, Part]]
"""Sums and counts over a batch, by name."""
SAMPLES = 6
"""Examples stored in reports."""
EXTREMES = 5
"""Hardest and easiest sequences stored in reports, of each."""
SHOWN = 64
"""Maximum tokens stored of each of these and of each continuation."""


def choose_examples(task: Task, num: int | None, data: Path | None, by: tuple[str, str] | None) -> Examples:
    """The first `num` (None: all) held-out examples, or those of the file `data`, or of another held-out set of the
    task, given by an option and its value (`by`). Raises `ValueError` if there is no such set."""
    if num is not None and num < 1:
        raise ValueError(f"num must be at least 1, not {num}")
    if data is not None and by is not None:
        raise ValueError(f"--data and --{by[0]} both choose what to evaluate on: give only one")
    if data is not None:
        return task.read(data)[:num]
    return task.held_out(num) if by is None else task.held_out_by(*by, num)


def evaluate(
    task: Task, predictor: Predictor, decoder: Decoder, examples: Examples, *, block: int = 256, details: bool = True,
    measure: Measure | None = None,
) -> Evaluation:  # fmt: skip
    """The task's scores of decoded answers, if the task decodes and has prompts, and teacher-forced metrics:
    `loss` (nats per scored token), `perplexity`, `token_accuracy`, the same nats per unit of the task
    (`loss_per_word`, `perplexity_per_word`, `bits_per_byte`), and the task's scores by position.

    `block` sequences are processed at a time, fewer if their logits would be too large. `details`: also the task's
    baselines, continuations of sequences without prompts, and the hardest and easiest sequences. `measure`: whatever
    else is to be averaged over the examples.
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
    forced, chosen, nats = teacher_forced(predictor, examples, block=few)
    units = task.units(examples)
    if units:
        forced |= per_unit(float(nats.sum()), units)
    metrics |= forced | task.score_positions(examples, chosen) | task.score_nats(examples, nats, chosen >= 0)
    if measure is not None:
        metrics |= means(measure, examples, block=few)
    if not details:
        return Evaluation(metrics, len(examples), samples)
    alone = task.decoded and not len(prompted) and examples.documents is None
    hardest, easiest = extremes(task, examples, nats.sum(axis=1), (chosen >= 0).sum(axis=1))
    return Evaluation(
        metrics, len(examples), samples,
        continuations=continuations(task, predictor, decoder, examples, block=block) if alone else [],
        baselines=task.baselines(examples) if isinstance(task, HasBaselines) else {},
        hardest=hardest, easiest=easiest,
    )  # fmt: skip


def report(
    task: Task,
    evaluation: Evaluation,
    data: Path | None = None,
    protocols: Mapping[str, Mapping[str, float]] | None = None,
) -> dict[str, Any]:
    """An evaluation and its checkpoint's step as a run stores them, for `compare`. `data`: the evaluated file or
    corpus, if not held-out examples; `protocols`: metrics by protocol, for models with a carried state."""
    return {
        "headline": dataclasses.asdict(task.headline),
        "chance": dict(task.chance),
        **dataclasses.asdict(evaluation),
        **({"file": str(data)} if data else {}),
        **({"protocols": dict(protocols), "sees_its_own_targets": seeing_targets(protocols)} if protocols else {}),
    }


def teacher_forced(
    predictor: Predictor, examples: Examples, *, block: int
) -> tuple[dict[str, float], np.ndarray, np.ndarray]:
    """Teacher-forced metrics; the most likely token at each scored position, (n, T) int64, -1 elsewhere; and the nats
    of the true ones, (n, T), 0 elsewhere."""
    chosen = np.full(examples.tokens.shape, -1, np.int64)
    nats = np.zeros(examples.tokens.shape)
    count, right = 0, 0
    for rows, part in blocks(examples, block):
        batch = collate(part)
        targets, scored = (column.numpy() for column in batch.targets)
        found = score_batch(predictor, batch, *batch.span)
        nats[rows[:, None], np.arange(*batch.span)] = np.where(scored, found.nats, 0.0)
        count += int(scored.sum())
        right += int((found.choices == targets)[scored].sum())
        chosen[rows[:, None], np.arange(*batch.span)] = np.where(scored, found.choices, -1)
    return {**per_token(float(nats.sum()), count), "token_accuracy": right / count}, chosen, nats


def means(measure: Measure, examples: Examples, *, block: int) -> dict[str, float]:
    """The mean of each part over all examples; of one with several sums `step_1_NAME`, `step_2_NAME`, ..., as far as
    the sequences reach."""
    totals: dict[str, np.ndarray] = {}
    terms: dict[str, np.ndarray] = {}
    for _, some in blocks(examples, block):
        for name, part in measure(collate(some)).items():
            totals[name] = totals.get(name, 0.0) + part.total.double().cpu().numpy()
            terms[name] = terms.get(name, 0) + part.terms.cpu().numpy()
    found = {}
    for name in totals:
        for place in np.ndindex(totals[name].shape):
            if terms[name][place]:
                label = f"step_{place[0] + 1}_{name}" if place else name
                found[label] = float(totals[name][place] / terms[name][place])
    return found


def extremes(
    task: Task, examples: Examples, nats: np.ndarray, counts: np.ndarray
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The hardest and the easiest distinct sequences, at most half of all in each, by `nats` (n,) per scored token,
    `counts` (n,); none if rows hold several documents."""
    if examples.documents is not None:
        return [], []
    rows, copies = _distinct(examples)
    means = nats[rows] / np.maximum(counts[rows], 1)
    order = np.argsort(-means, kind="stable")
    order = order[counts[rows][order] > 0]
    few = min(EXTREMES, len(order) // 2)

    def shown(index: int) -> dict[str, Any]:
        row = rows[index]
        text = task.decode(examples.tokens[row, : min(SHOWN, examples.lengths[row])])
        return {"text": text + " ..." * bool(examples.lengths[row] > SHOWN), "tokens": int(counts[row]),
                "nats_per_token": float(means[index]), "copies": int(copies[index])}  # fmt: skip

    return [shown(index) for index in order[:few]], [shown(index) for index in order[::-1][:few]]


def _distinct(examples: Examples) -> tuple[np.ndarray, np.ndarray]:
    """The first row of each distinct sequence, in order, and its number of occurrences."""
    by_sequence: dict[bytes, list[int]] = {}
    for row in range(len(examples)):
        key = examples.prompt(row).tobytes() + b"|" + examples.answer(row).tobytes()
        by_sequence.setdefault(key, []).append(row)
    return np.array([rows[0] for rows in by_sequence.values()]), np.array([len(rows) for rows in by_sequence.values()])


def continuations(
    task: Task, predictor: Predictor, decoder: Decoder, examples: Examples, *, block: int
) -> list[dict[str, Any]]:
    """Sampled and true continuations of the first distinct sequences, cut in the middle or earlier; see
    `Evaluation.continuations`."""
    rows, _ = _distinct(examples)
    rows = rows[examples.lengths[rows] > 1][:SAMPLES]
    if not len(rows):
        return []
    first = examples[rows]
    cuts = np.minimum(np.maximum(first.lengths // 2, 1), SHOWN)
    ends = np.minimum(first.lengths, cuts + SHOWN)
    cut = dataclasses.replace(first, lengths=ends, prompt_lengths=cuts)
    completions = complete(task, predictor, decoder, cut, block=block, most=SHOWN)
    return [task.sample_of(cut, row, completion) for row, completion in enumerate(completions)]


def complete(
    task: Task, predictor: Predictor, decoder: Decoder, examples: Examples, *, block: int, most: int | None = None
) -> list[Completion]:
    """A completion for each example, in order, of at most `most` tokens and within the context."""
    completions: dict[int, Completion] = {}
    for rows, prompts in same_prompt_length(examples, block):
        left = task.context - prompts.shape[1]
        if task.longest_answer is not None:  # or what the examples' own prompts leave, if these are not the task's
            left = min(left, max(task.longest_answer, int((examples.lengths - examples.prompt_lengths).max())))
        request = Request(prompts, left if most is None else min(left, most), task.end, rows=rows.tolist())
        completions |= zip(rows.tolist(), decoder.decode(predictor, request))
    return [completions[row] for row in range(len(examples))]
