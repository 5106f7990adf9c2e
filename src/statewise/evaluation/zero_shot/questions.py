"""Question files, multiple choice or the last word of a text, and their answers by likelihood: the most likely choice
wins.

JSON lines of one kind; other fields are ignored:

    {"context": "The cat sat on the", "choices": ["mat", "moon"], "answer": 0}
    {"text": "She poured the tea into his cup"}
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal

import numpy as np

from statewise.decoding.predictor import Predictor
from statewise.evaluation.scoring import perplexity
from statewise.evaluation.zero_shot.likelihood import Continuation, encoded, likelihoods
from statewise.runtime.json_files import loads
from statewise.tasks.base import RunningText
from statewise.tasks.own_files.lines import Problems, read_lines

Kind = Literal["choices", "last word"]


@dataclass(frozen=True)
class Question:
    """A context and its possible continuations."""

    line: int
    """Line number in the file."""
    context: str
    """The context without trailing whitespace."""
    choices: tuple[str, ...]
    """Continuations, including the whitespace before them. The last word of a text is a single choice."""
    sizes: tuple[int, ...]
    """Number of bytes of each choice as written in the file."""
    answer: int
    """Index of the correct choice."""


@dataclass(frozen=True)
class Questions:
    """The questions of a file."""

    path: Path
    kind: Kind
    questions: tuple[Question, ...]


def read_questions(path: Path, num: int | None = None) -> Questions:
    """The questions of a file, or the first `num`. Raises `ValueError` as `FILE:LINE: what is wrong`."""
    problems = Problems(path)
    items: list[Question] = []
    kind: Kind | None = None
    for number, line in read_lines(path):
        if len(items) == num:
            break
        try:
            record = _record(line)
            if kind is None:
                kind = _kind(record)
            items.append(_choices(number, record) if kind == "choices" else _last_word(number, record))
        except ValueError as error:
            problems.add(number, str(error))
    problems.raise_if_any()
    assert kind is not None
    return Questions(path, kind, tuple(items))


def _record(line: str) -> dict[str, Any]:
    record = loads(line)
    if not isinstance(record, dict):
        raise ValueError('a line must be {"context": ..., "choices": [...], "answer": 0} or {"text": ...}')
    return record


def _kind(record: dict[str, Any]) -> Kind:
    if "choices" in record:
        return "choices"
    if "text" in record:
        return "last word"
    raise ValueError('must have "context", "choices" and "answer", or "text", whose last word is to be predicted')


def _choices(number: int, record: dict[str, Any]) -> Question:
    missing = [name for name in ("context", "choices", "answer") if name not in record]
    if missing:
        raise ValueError(f'"{missing[0]}" is missing: a line of this file must have "context", "choices" and "answer"')
    context, choices, answer = record["context"], record["choices"], record["answer"]
    if not isinstance(choices, list) or len(choices) < 2:
        raise ValueError('"choices" must be a list of at least two texts')
    context = _text("context", context)
    choices = [_text("choices", choice) for choice in choices]
    if not isinstance(answer, int) or isinstance(answer, bool) or not 0 <= answer < len(choices):
        raise ValueError(f'"answer" must be the index of the correct choice, 0 to {len(choices) - 1}, not {answer!r}')
    bare = context.rstrip()
    seam = context[len(bare) :]
    joined = tuple(seam + choice if seam or choice[0].isspace() else f" {choice}" for choice in choices)
    return Question(number, bare, joined, tuple(len(choice.encode()) for choice in choices), answer)


def _last_word(number: int, record: dict[str, Any]) -> Question:
    if "text" not in record:
        raise ValueError('"text" is missing: every line of this file must have it')
    text = _text("text", record["text"]).rstrip()
    parts = re.fullmatch(r"(.*\S)(\s+)(\S+)", text, flags=re.DOTALL)
    if parts is None:
        raise ValueError('"text" must have at least two words: the last is predicted from the others')
    context, seam, word = parts.groups()
    return Question(number, context, (seam + word,), (len(word.encode()),), 0)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f'"{name}" must be text, not {value!r}')
    if not value.strip():
        raise ValueError(f'"{name}" must not be blank')
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f'"{name}" contains an unpaired surrogate (half of a character)') from None
    return value


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
        agreed = _agreed([contexts, *rows])
        if agreed == 0:
            raise ValueError(
                f"{questions.path}:{question.line}: the tokenizer merges the whole context with a choice: make the "
                "context longer"
            )
        continuations += [Continuation(row, agreed) for row in rows]
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
