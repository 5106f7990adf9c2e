"""Answers questions by likelihood: the most likely choice wins."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import numpy as np

from statewise.decoding.predictor import Predictor
from statewise.evaluation.scoring import perplexity
from statewise.evaluation.zero_shot.likelihood import Continuation, encoded, likelihoods
from statewise.evaluation.zero_shot.questions import Questions
from statewise.tasks.base import RunningText


@dataclass(frozen=True)
class Answers:
    """A model's answers to the questions of a file."""

    metrics: dict[str, float]
    chance: dict[str, float]
    """Chance level by metric, where known."""
    cut: int
    """Number of questions whose context was truncated from the left."""
    items: list[dict[str, Any]]
    """Per question its `line`, the `nats` of every choice, and whether the answer is correct, by metric."""


def answer(predictor: Predictor, task: RunningText, questions: Questions, batch: int) -> Answers:
    """Answers by likelihood, `batch` sequences at a time.

    Multiple choice: `accuracy` of the most likely choice; `accuracy_per_byte` of the choice with the fewest nats per
    byte, since long choices are less likely than short ones. Last word: `accuracy` of greedy decoding; `perplexity` per
    word. Both: `bits`, the mean over correct answers. Raises `ValueError` if the tokenizer merges a whole context with
    a choice.
    """
    continuations: list[Continuation] = []
    for question in questions.questions:
        contexts, *rows = encoded(task, [question.context, *(question.context + choice for choice in question.choices)])
        given = _agreed([contexts, *rows])
        if given == 0:
            raise ValueError(
                f"{questions.path}:{question.line}: the tokenizer merges the whole context with a choice: make the "
                "context longer"
            )
        continuations += [Continuation(row, given) for row in rows]
    scores = iter(likelihoods(predictor, continuations, batch))
    cut, items = 0, []
    right = {"accuracy": 0, "accuracy_per_byte": 0}
    for question in questions.questions:
        mine = [next(scores) for _ in question.choices]
        nats = np.array([one.nats.sum() for one in mine])
        cut += any(one.cut or one.pieces > 1 for one in mine)
        if questions.kind == "choices":
            hits = {
                "accuracy": int(nats.argmin()) == question.answer,
                "accuracy_per_byte": int((nats / question.sizes).argmin()) == question.answer,
            }
        else:
            hits = {"accuracy": mine[0].greedy}
        for name, hit in hits.items():
            right[name] += hit
        items.append({"line": question.line, "nats": nats.tolist(), **hits})
    n = len(items)
    answers = [item["nats"][question.answer] for item, question in zip(items, questions.questions)]
    nats_of_answers = math.fsum(answers) / n
    bits = {"bits": nats_of_answers / math.log(2)}
    if questions.kind == "last word":
        bits["perplexity"] = perplexity(nats_of_answers)
        return Answers({"accuracy": right["accuracy"] / n, **bits}, {}, cut, items)
    guessed = sum(1 / len(question.choices) for question in questions.questions) / n
    metrics = {name: count / n for name, count in right.items()}
    return Answers({**metrics, **bits}, dict.fromkeys(metrics, guessed), cut, items)


def _agreed(rows: Sequence[Sequence[int]]) -> int:
    """Length of the common prefix of token rows. It is shorter than the context if the tokenizer merges the seam; all
    choices are then scored from the same position, so that their likelihoods are comparable."""
    return sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, zip(*rows)))
