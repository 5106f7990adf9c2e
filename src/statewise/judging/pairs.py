"""Two files of stories, paired by line."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from statewise.tasks.lines import Problems, read_lines

FORMAT = '{"prompt": ..., "completion": ..., "goal": ...} or {"prompt": ..., "story": ...}'


@dataclass(frozen=True)
class Pair:
    """Two stories that grew from one prompt, towards one goal if there is any."""

    a: str
    b: str


@dataclass(frozen=True)
class Told:
    """One line of a file."""

    prompt: str
    goal: str | None
    story: str
    """All of it: prompt, completion and goal."""


def read_pairs(a: Path, b: Path) -> list[Pair]:
    """The stories of two JSON lines files. Raises `ValueError` with file and line unless their prompts and goals are
    the same, line by line."""
    ours, theirs = _read(a), _read(b)
    problems = Problems(b)
    for (_, one), (number, other) in zip(ours, theirs):
        if one.prompt != other.prompt:
            problems.add(number, f"the prompt is not that of {a}, so the stories cannot be compared")
        elif one.goal is not None and other.goal is not None and one.goal != other.goal:
            problems.add(number, f"the goal is not that of {a}, so the stories cannot be compared")
    problems.raise_if_any()
    if len(ours) != len(theirs):
        raise ValueError(f"{a} holds {len(ours)} stories and {b} {len(theirs)}: each line must have its pair")
    return [Pair(one.story, other.story) for (_, one), (_, other) in zip(ours, theirs)]


def checksum(path: Path) -> str:
    """SHA-256 of a file, by which a judging knows it again."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read(path: Path) -> list[tuple[int, Told]]:
    problems = Problems(path)
    found = []
    for number, line in read_lines(path):
        if number == 1 and '"title": "statewise filling"' in line:  # what `statewise fill` says of itself
            continue
        try:
            found.append((number, _parse(line)))
        except ValueError as error:
            problems.add(number, str(error))
    problems.raise_if_any()
    return found


def _parse(line: str) -> Told:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(row, dict) or "prompt" not in row or ("completion" in row) == ("story" in row):
        raise ValueError(f"must be {FORMAT}")
    for key in ("prompt", "completion", "goal", "story"):
        if key in row and not isinstance(row[key], str):
            raise ValueError(f"{key!r} must be text")
    story = row["story"] if "story" in row else row["prompt"] + row["completion"] + row.get("goal", "")
    if not story.strip():
        raise ValueError("the story is empty")
    return Told(row["prompt"], row.get("goal"), story)
