"""Evaluates a predictor on a task: teacher-forced, by decoding from the prompts, or on whole documents of any
length."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch

from statewise.batch import Batch, Part
from statewise.data_types import Completion, Evaluation, Examples, Ragged
from statewise.decoding.base import Request
from statewise.decoding.carried_state import seeing_targets
from statewise.decoding.predictor import Carrier, require
from statewise.evaluation.scoring import per_token, per_unit, score, score_batch
from statewise.runtime.json_files import metric
from statewise.runtime.messages import LacksCapability, short
from statewise.tasks.base import HasBaselines, RunningText, Task, WholeTexts
from statewise.tasks.batches import blocks, collate, rows_at_once, similar_prompt_length

if TYPE_CHECKING:
    from statewise.decoding.base import Decoder
    from statewise.decoding.carried_state import StateReading
    from statewise.decoding.predictor import Predictor


Measure = Callable[[Batch], Mapping[str, Part]]
"""Sums and counts over a batch, by name."""
Losses = Callable[[Examples, np.ndarray, np.ndarray], None]
"""Takes examples, the nats of each token, (n, T) float64, and which tokens are scored, (n, T) bool."""
RESERVED = {"kind", "step", "tokens", "seconds", "reason", "part", "loss", "perplexity", "token_accuracy"}
"""Names that a metric of a task must not have: reports keep other values under them."""
SAMPLES, CONTINUATIONS = 12, 6
"""Numbers of answers to prompts and of continuations stored in a report. If a third of a model's answers are right, a
dozen show three or four of those."""
EXTREMES = 5
"""Number of the hardest, and of the easiest, sequences stored in a report."""
SHOWN_TOKENS = 64
"""Maximum number of tokens stored of each of these sequences and of each continuation."""

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Share:
    """The share of the examples that this process evaluates, and how it gets the results of other processes. By
    default, it evaluates all examples alone."""

    rank: int = 0
    processes: int = 1
    everyone: Callable[[Any], list[Any]] = lambda own: [own]
    """Takes the result of this process and returns the results of all processes, in order. All processes call it the
    same number of times; in between, each calls the model as often as its own examples need."""

    def of(self, every: Iterable[T]) -> Iterable[T]:
        """This process's part of a sequence that all processes have."""
        return islice(every, self.rank, None, self.processes)

    def rows(self, block: int) -> int:
        """How many sequences a process takes at a time, if all together take `block`."""
        return max(1, block // self.processes)


ALONE = Share()


def choose_examples(task: Task, num: int | None, data: Path | None, held_out_set: tuple[str, str] | None) -> Examples:
    """`num` (None: all) held-out examples, the first ones unless the task spreads them over its set; or examples of the
    file `data`, or of another `held_out_set` of the task, given by an option and its value. Raises `ValueError` if
    there is no such set. If the task has baselines, its `notes` then say how many examples of a file were trained
    on."""
    if num is not None and num < 1:
        raise ValueError(f"num must be at least 1, not {num}")
    if data is not None and held_out_set is not None:
        raise ValueError(f"`data` and `{held_out_set[0]}` both choose what to evaluate on: give only one")
    if data is not None:
        examples = task.read(data)[:num]
        task.notes = [*task.notes, *_trained_on(task, examples, data)]
        return examples
    return task.held_out(num) if held_out_set is None else task.held_out_by(*held_out_set, num)


def _trained_on(task: Task, examples: Examples, data: Path) -> list[str]:
    """A note if training sequences, which tasks with baselines read anyway, include examples of the file."""
    try:
        training = task.training() if isinstance(task, HasBaselines) else None
    except ValueError as error:
        return [f"{data}: whether the model was trained on its sequences is unknown: {error}"]
    count = int(training.holds(examples).sum()) if isinstance(training, Ragged) else 0
    return [f"{data}: the model was trained on {count:,} of its {len(examples):,} sequences"] if count else []


def evaluate(
    task: Task,
    predictor: Predictor,
    decoder: Decoder,
    examples: Examples,
    *,
    block: int = 256,
    details: bool = True,
    measure: Measure | None = None,
    losses: Losses | None = None,
    share: Share = ALONE,
) -> Evaluation:
    """The task's scores of decoded answers, if the task decodes and has prompts, and teacher-forced metrics:
    `loss` (nats per scored token), `perplexity`, `token_accuracy`, the same nats per unit of the task
    (`loss_per_word`, `perplexity_per_word`, `bits_per_byte`), and the task's scores by position.

    `block` sequences are processed at a time, fewer if their logits would be too large. `details`: also the task's
    baselines, continuations of sequences without prompts, and the hardest and easiest sequences. `measure`: further
    quantities to average over the examples. `losses` is called with the nats of all tokens. `share`: the part of this
    process; all processes return the same evaluation.
    """
    metrics: dict[str, float] = {}
    samples = []
    prompted = np.flatnonzero((examples.prompt_lengths > 0) & (examples.prompt_lengths < examples.lengths))
    if task.decoded and len(prompted):
        some = examples[prompted]
        completions = complete(task, predictor, decoder, some, block=block, share=share)
        metrics = _plain(task, task.score(some, completions))
        samples = [task.sample_of(some, row, completions[row]) for row in range(min(SAMPLES, len(some)))]
    few = rows_at_once(examples.tokens.shape[1], len(task.vocab), block)
    forced, chosen, nats = teacher_forced(predictor, examples, block=few, share=share)
    if losses is not None:
        losses(examples, nats, chosen >= 0)
    units = task.units(examples)
    if units:
        forced |= per_unit(float(nats.sum()), units)
    metrics |= forced | _plain(task, task.score_positions(examples, chosen))
    metrics |= _plain(task, task.score_nats(examples, nats, chosen >= 0))
    if measure is not None:
        metrics |= means(measure, examples, block=few, share=share)
    if not details:
        return Evaluation(metrics, len(examples), samples)
    alone = task.decoded and not len(prompted) and examples.documents is None
    hardest, easiest = extremes(task, examples, nats.sum(axis=1), (chosen >= 0).sum(axis=1))
    return Evaluation(
        metrics,
        len(examples),
        samples,
        continuations=continuations(task, predictor, decoder, examples, block=block, share=share) if alone else [],
        baselines=task.baselines(examples) if isinstance(task, HasBaselines) else {},
        hardest=hardest,
        easiest=easiest,
    )


def _plain(task: Task, metrics: Mapping[str, Any]) -> dict[str, float]:
    """Metrics of the task as plain numbers. Raises `ValueError` if a metric is not a number or its name is reserved."""
    plain: dict[str, float] = {}
    for name, value in metrics.items():
        what = f"{type(task).__name__}: the metric {name}"
        if name in RESERVED:
            raise ValueError(f"{what} has a reserved name, under which reports keep another value: rename it")
        number = value.item() if isinstance(value, np.generic) else value
        if not isinstance(number, (int, float)):
            raise ValueError(f"{what} must be a number, not {short(value)}")
        if not metric(name).holds(number):
            raise ValueError(f"{what} must be {metric(name).what}, as its name says that it is a share, not {number}")
        plain[name] = number
    return plain


def report(
    task: Task,
    evaluation: Evaluation,
    data: Path | None = None,
    protocols: Mapping[str, Mapping[str, float]] | None = None,
    held_out_set: tuple[str, str] | None = None,
    decoder: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """An evaluation as a run stores it, for `compare`; the caller adds the checkpoint. `data`: the evaluated file or
    corpus, if not held-out examples; `held_out_set`: the option and its value that chose another one; `protocols`:
    metrics by protocol, for models with a carried state; `decoder`: name and fields of a decoder other than greedy."""
    return {
        "headline": dataclasses.asdict(task.headline),
        "chance": dict(task.chance),
        **dataclasses.asdict(evaluation),
        **({"file": str(data)} if data else {}),
        **({"set": {"option": held_out_set[0], "value": held_out_set[1]}} if held_out_set else {}),
        **({"decoder": dict(decoder)} if decoder else {}),
        **({"protocols": dict(protocols), "sees_its_own_targets": seeing_targets(protocols)} if protocols else {}),
    }


def teacher_forced(
    predictor: Predictor, examples: Examples, *, block: int, share: Share = ALONE
) -> tuple[dict[str, float], np.ndarray, np.ndarray]:
    """Teacher-forced metrics; the most likely token at each scored position, (n, T) int64, -1 elsewhere; and the nats
    of the true ones, (n, T), 0 elsewhere."""
    chosen = np.full(examples.tokens.shape, -1, np.int64)
    nats = np.zeros(examples.tokens.shape)
    own = []
    for rows, part in share.of(blocks(examples, share.rows(block))):
        batch = collate(part)
        targets, scored = (column.numpy() for column in batch.targets)
        scores = score_batch(predictor, batch, *batch.span)
        right = int((scores.choices == targets)[scored].sum())
        at = (rows[:, None], np.arange(*batch.span))
        own.append((at, np.where(scored, scores.choices, -1), np.where(scored, scores.nats, 0.0), right))
    every = [block for scores in share.everyone(own) for block in scores]
    for at, choices, losses, _ in every:
        chosen[at], nats[at] = choices, losses
    count = int((chosen >= 0).sum())
    metrics = {**per_token(float(nats.sum()), count), "token_accuracy": sum(right for *_, right in every) / count}
    return metrics, chosen, nats


def means(measure: Measure, examples: Examples, *, block: int, share: Share = ALONE) -> dict[str, float]:
    """The mean of each part over all examples. A part with several sums gives `step_1_NAME`, `step_2_NAME`, ..., as far
    as the sequences reach."""
    own = []
    for _, some in share.of(blocks(examples, share.rows(block))):
        parts = measure(collate(some)).items()
        own.append({name: (part.total.cpu().double().numpy(), part.terms.cpu().numpy()) for name, part in parts})
    totals: dict[str, np.ndarray] = {}
    terms: dict[str, np.ndarray] = {}
    for sums in (sums for process in share.everyone(own) for sums in process):
        for name, (total, count) in sums.items():
            totals[name] = totals.get(name, 0.0) + total
            terms[name] = terms.get(name, 0) + count
    averages = {}
    for name in totals:
        for place in np.ndindex(totals[name].shape):
            if terms[name][place]:
                label = f"step_{place[0] + 1}_{name}" if place else name
                averages[label] = float(totals[name][place] / terms[name][place])
    return averages


def extremes(
    task: Task, examples: Examples, nats: np.ndarray, counts: np.ndarray
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The hardest and the easiest distinct sequences by nats per scored token; `nats` (n,) are totals, `counts` (n,)
    numbers of scored tokens. Each list has at most half of the sequences; both are empty if rows hold several
    documents."""
    if examples.documents is not None:
        return [], []
    rows, copies = _distinct(examples)
    means = nats[rows] / np.maximum(counts[rows], 1)
    order = np.argsort(-means, kind="stable")
    order = order[counts[rows][order] > 0]
    few = min(EXTREMES, len(order) // 2)

    def shown(index: int) -> dict[str, Any]:
        row = rows[index]
        text = task.decode(examples.tokens[row, : min(SHOWN_TOKENS, examples.lengths[row])])
        return {
            "text": text + " ..." * bool(examples.lengths[row] > SHOWN_TOKENS),
            "tokens": int(counts[row]),
            "nats_per_token": float(means[index]),
            "copies": int(copies[index]),
        }

    return [shown(index) for index in order[:few]], [shown(index) for index in order[::-1][:few]]


def _distinct(examples: Examples) -> tuple[np.ndarray, np.ndarray]:
    """The first row of each distinct sequence, in order, and its number of occurrences."""
    by_sequence: dict[bytes, list[int]] = {}
    for row in range(len(examples)):
        key = examples.prompt(row).tobytes() + b"|" + examples.answer(row).tobytes()
        by_sequence.setdefault(key, []).append(row)
    return np.array([rows[0] for rows in by_sequence.values()]), np.array([len(rows) for rows in by_sequence.values()])


def continuations(
    task: Task, predictor: Predictor, decoder: Decoder, examples: Examples, *, block: int, share: Share = ALONE
) -> list[dict[str, Any]]:
    """Sampled and true continuations of the first distinct sequences, cut in the middle or earlier; see
    `Evaluation.continuations`."""
    rows, _ = _distinct(examples)
    rows = rows[examples.lengths[rows] > 1][:CONTINUATIONS]
    if not len(rows):
        return []
    first = examples[rows]
    cuts = np.minimum(np.maximum(first.lengths // 2, 1), SHOWN_TOKENS)
    ends = np.minimum(first.lengths, cuts + SHOWN_TOKENS)
    cut = dataclasses.replace(first, lengths=ends, prompt_lengths=cuts)
    completions = complete(task, predictor, decoder, cut, block=block, most=SHOWN_TOKENS, share=share)
    return [task.sample_of(cut, row, completion) for row, completion in enumerate(completions)]


def complete(
    task: Task,
    predictor: Predictor,
    decoder: Decoder,
    examples: Examples,
    *,
    block: int,
    most: int | None = None,
    share: Share = ALONE,
) -> list[Completion]:
    """A completion for each example, in order, of at most `most` tokens and within the context."""
    completions: dict[int, Completion] = {}
    for rows in share.of(similar_prompt_length(examples, share.rows(block))):
        prompts = [examples.prompt(row) for row in rows.tolist()]
        left = task.context - len(prompts[0])  # after the shortest prompt; the context limits longer ones further
        if task.longest_answer is not None:  # or what the examples' own prompts leave, if these are not the task's
            left = min(left, max(task.longest_answer, int((examples.lengths - examples.prompt_lengths).max())))
        request = Request(prompts, left if most is None else min(left, most), task.end, rows=rows.tolist())
        completions |= zip(rows.tolist(), decoder.decode(predictor, request))
    every = {row: completed for some in share.everyone(completions) for row, completed in some.items()}
    return [every[row] for row in range(len(examples))]


def evaluate_whole_texts(task: Task, predictor: Predictor, reading: StateReading) -> Evaluation:
    """Reads each held-out document from beginning to end, chunk by chunk, under the protocol of `reading`: `loss`,
    `perplexity`, and metrics per unit of the task. The first token of a document is not scored.

    Raises `ValueError` for a model without a carried state, or a task without such documents.
    """
    model = require(require(predictor, Carrier).under(*reading), Carrier)
    if not isinstance(task, WholeTexts):
        raise LacksCapability("whole documents need a task with documents longer than its sequences", WholeTexts)
    nats, count, documents = 0.0, 0, 0
    units: Counter[str] = Counter()
    for text in task.held_out_texts():
        documents += 1
        if len(text) < 2:
            continue
        tokens, last = torch.from_numpy(text)[None], None
        for part, logits in zip(torch.split(tokens, model.chunk, dim=1), model.chunk_logits(tokens)):
            before, targets = logits[:, :-1], part[:, 1:]
            if last is not None:
                before, targets = torch.cat([last, before], dim=1), part
            last = logits[:, -1:]
            if targets.shape[1]:
                nats += float(score(before, targets).nats.sum())
        count += tokens.shape[1] - 1
        units.update(task.units(Examples.of([text], [0])))
    return Evaluation({**per_token(nats, count), **per_unit(nats, units)}, documents, [])


def token_losses(task: Task, examples: Examples, nats: np.ndarray, scored: np.ndarray) -> Iterator[dict[str, Any]]:
    """The line of each sequence, in order: its number from 0, its `nats` in all and the number of tokens
    that are `scored`, its `tokens` as text, and `nats_by_token`, null where a token is not scored. Where several
    documents share a row, a sequence is a row, and `documents` has the number of each token's document within it.

    `nats` (n, T) float64, `scored` (n, T) bool: as `evaluation.evaluate` passes them to `losses`.
    """
    spelled = isinstance(task, RunningText)  # a tokenizer's symbols are not the text that they stand for
    texts = {
        token: task.decode([token]) if spelled else task.vocab.symbols[token]
        for token in np.unique(examples.tokens).tolist()
    }
    for row, length in enumerate(examples.lengths.tolist()):
        counted, losses = scored[row, :length], nats[row, :length]
        tokens = examples.tokens[row, :length].tolist()
        documents = None if examples.documents is None else examples.documents[row, :length].tolist()
        yield {
            "sequence": row,
            "nats": float(losses[counted].sum()),
            "scored": int(counted.sum()),
            "tokens": [texts[token] for token in tokens],
            "nats_by_token": [loss if counts else None for loss, counts in zip(losses.tolist(), counted.tolist())],
            **({} if documents is None else {"documents": documents}),
        }
