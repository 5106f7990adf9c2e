"""Question files: multiple choice, or the last word of a text, to be answered by likelihood.

JSON lines of one kind; other fields are ignored:

    {"context": "The cat sat on the", "choices": ["mat", "moon"], "answer": 0}
    {"text": "She poured the tea into his cup"}
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from statewise.runtime.json_files import loads
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
