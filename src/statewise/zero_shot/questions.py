"""Files of questions that a language model answers by likelihood: multiple choice, and the last word of a text.

JSON lines, all of one kind; further fields are ignored:

    {"context": "The cat sat on the", "choices": ["mat", "moon"], "answer": 0}
    {"text": "She poured the tea into his cup"}
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from statewise.tasks.lines import Problems, read_lines

Kind = Literal["choices", "last word"]


@dataclass(frozen=True)
class Question:
    """A text and what may follow it."""

    line: int
    """Where it stands in its file."""
    context: str
    """Without white space at its end."""
    choices: tuple[str, ...]
    """What may follow, the white space between included. The last word of a text is one choice."""
    sizes: tuple[int, ...]
    """Bytes of each choice as the file writes it."""
    answer: int
    """Which of them is right."""


@dataclass(frozen=True)
class Questions:
    """Those of one file."""

    path: Path
    kind: Kind
    questions: tuple[Question, ...]


def read_questions(path: Path, num: int | None = None) -> Questions:
    """The questions of a file, or the first `num`. Raises `ValueError` as `FILE:LINE: what is wrong`."""
    problems = Problems(path)
    found: list[Question] = []
    kind: Kind | None = None
    for number, line in read_lines(path):
        if len(found) == num:
            break
        try:
            record = _record(line)
            if kind is None:
                kind = _kind(record)
            found.append(_choices(number, record) if kind == "choices" else _last_word(number, record))
        except ValueError as error:
            problems.add(number, str(error))
    problems.raise_if_any()
    assert kind is not None
    return Questions(path, kind, tuple(found))


def _record(line: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(record, dict):
        raise ValueError('a line must be {"context": ..., "choices": [...], "answer": 0} or {"text": ...}')
    return record


def _kind(record: dict[str, Any]) -> Kind:
    if "choices" in record:
        return "choices"
    if "text" in record:
        return "last word"
    raise ValueError('"choices" is missing, beside "context" and "answer"; or "text", whose last word is asked for')


def _choices(number: int, record: dict[str, Any]) -> Question:
    missing = [name for name in ("context", "choices", "answer") if name not in record]
    if missing:
        raise ValueError(f'"{missing[0]}" is missing: a line of this file must hold "context", "choices" and "answer"')
    context, choices, answer = record["context"], record["choices"], record["answer"]
    if not isinstance(choices, list) or len(choices) < 2:
        raise ValueError('"choices" must be a list of two texts or more')
    context = _text("context", context)
    choices = [_text("choices", choice) for choice in choices]
    if not isinstance(answer, int) or isinstance(answer, bool) or not 0 <= answer < len(choices):
        raise ValueError(f'"answer" must be the place of the right choice, 0 to {len(choices) - 1}, not {answer!r}')
    bare = context.rstrip()
    seam = context[len(bare) :]
    joined = tuple(seam + choice if seam or choice[0].isspace() else f" {choice}" for choice in choices)
    return Question(number, bare, joined, tuple(len(choice.encode()) for choice in choices), answer)


def _last_word(number: int, record: dict[str, Any]) -> Question:
    if "text" not in record:
        raise ValueError('"text" is missing: a line of this file must hold it')
    text = _text("text", record["text"]).rstrip()
    parts = re.fullmatch(r"(.*\S)(\s+)(\S+)", text, flags=re.DOTALL)
    if parts is None:
        raise ValueError('"text" must hold two words or more: the last is told from those before')
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
        raise ValueError(f'"{name}" holds one half of a character') from None
    return value
