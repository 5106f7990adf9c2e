"""Evaluation on whole held-out documents of any length."""

from __future__ import annotations

from collections import Counter

import torch

from statewise.data_types import Evaluation, Examples, LacksPower
from statewise.decoding.carried_state import StateReading
from statewise.decoding.predictor import Carrier, Predictor, require
from statewise.evaluation.scoring import per_token, per_unit, score
from statewise.tasks.base import Task, WholeTexts


def evaluate_whole_texts(task: Task, predictor: Predictor, reading: StateReading) -> Evaluation:
    """Reads each held-out document from beginning to end, chunk by chunk, under the protocol of `reading`: `loss`,
    `perplexity`, and metrics per unit of the task. The first token of a document is not scored.

    Raises `ValueError` for a model without a carried state, or a task without such documents.
    """
    carrier = require(require(predictor, Carrier).under(*reading), Carrier)
    if not isinstance(task, WholeTexts):
        raise LacksPower("whole documents need a task with documents longer than its sequences", WholeTexts)
    nats, count, documents = 0.0, 0, 0
    units: Counter[str] = Counter()
    for text in task.held_out_texts():
        documents += 1
        if len(text) < 2:
            continue
        tokens, last = torch.from_numpy(text)[None], None
        for part, logits in zip(torch.split(tokens, carrier.chunk, dim=1), carrier.chunk_logits(tokens)):
            before, targets = logits[:, :-1], part[:, 1:]
            if last is not None:
                before, targets = torch.cat([last, before], dim=1), part
            last = logits[:, -1:]
            if targets.shape[1]:
                nats += float(score(before, targets).nats.sum())
        count += tokens.shape[1] - 1
        units.update(task.units(Examples.of([text], [0])))
    return Evaluation({**per_token(nats, count), **per_unit(nats, units)}, documents, [])
