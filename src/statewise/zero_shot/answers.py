"""How a model answers questions: it takes the choice that it finds most likely."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import numpy as np

from statewise.decoding.base import Predictor
from statewise.tasks.base import RunningText
from statewise.zero_shot.likelihood import Asked, Progress, encoded, likelihoods
from statewise.zero_shot.questions import Questions


@dataclass(frozen=True)
class Answers:
    """What a model made of the questions of a file."""

    metrics: dict[str, float]
    chance: dict[str, float]
    """What guessing reaches, by metric, where that is known."""
    cut: int
    """Questions whose context had to be cut at its beginning."""
    items: list[dict[str, Any]]
    """Of each question its `line`, the `nats` of every choice, and whether it was answered right."""


def answer(
    predictor: Predictor, task: RunningText, questions: Questions, batch: int, progress: Progress | None = None
) -> Answers:
    """Answers by likelihood.

    Multiple choice: `accuracy`, of the most likely choice; `accuracy_per_byte`, of the one with the fewest nats by byte
    of its text, since long choices are less likely than short ones. The last word: `accuracy`, of greedy decoding;
    `perplexity`, by word. Both: `bits`, the mean of the right answer.
    """
    asked: list[Asked] = []
    for question in questions.questions:
        contexts, *rows = encoded(task, [question.context, *(question.context + choice for choice in question.choices)])
        given = _agreed([contexts, *rows])
        if given == 0:
            raise ValueError(
                f"{questions.path}:{question.line}: the tokenizer joins the whole context with a choice: give a longer "
                "context"
            )
        asked += [Asked(row, given) for row in rows]
    found = iter(likelihoods(predictor, asked, batch, progress))
    cut, items = 0, []
    right = {"accuracy": 0, "accuracy_per_byte": 0}
    for question in questions.questions:
        mine = [next(found) for _ in question.choices]
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
        perplexity = math.exp(nats_of_answers) if nats_of_answers < 700 else math.inf
        return Answers({"accuracy": right["accuracy"] / n, **bits, "perplexity": perplexity}, {}, cut, items)
    guessed = sum(1 / len(question.choices) for question in questions.questions) / n
    metrics = {name: count / n for name, count in right.items()}
    return Answers({**metrics, **bits}, dict.fromkeys(metrics, guessed), cut, items)


def _agreed(rows: Sequence[Sequence[int]]) -> int:
    """How many tokens all rows begin with. They end where a tokenizer joins the context with a choice: all choices are
    then asked for from the same place on, so that their likelihoods can be compared."""
    return sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, zip(*rows)))
