"""Two files of stories, paired by line."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from statewise.runtime.json_files import loads
from statewise.tasks.own_files.lines import Problems, read_lines

FORMAT = '{"prompt": ..., "completion": ..., "goal": ...} or {"prompt": ..., "story": ...}'


@dataclass(frozen=True)
class Pair:
    """Two stories with the same prompt, and the same goal if there is one."""

    a: str
    b: str


@dataclass(frozen=True)
class Story:
    """One line of a file."""

    prompt: str
    goal: str | None
    story: str
    """Prompt, completion and goal."""


def read_pairs(a: Path, b: Path) -> list[Pair]:
    """The stories of two JSON lines files. Raises `ValueError` with file and line unless their prompts and goals agree
    line by line."""
    ours, theirs = _read(a), _read(b)
    problems = Problems(b)
    for (_, one), (number, other) in zip(ours, theirs):
        if one.prompt != other.prompt:
            problems.add(number, f"the prompt differs from that in {a}, so the stories cannot be compared")
        elif one.goal is not None and other.goal is not None and one.goal != other.goal:
            problems.add(number, f"the goal differs from that in {a}, so the stories cannot be compared")
    problems.raise_if_any()
    if len(ours) != len(theirs):
        raise ValueError(f"{a} has {len(ours)} stories and {b} {len(theirs)}: they must be paired line by line")
    return [Pair(one.story, other.story) for (_, one), (_, other) in zip(ours, theirs)]


def checksum(path: Path) -> str:
    """SHA-256 of a file, which identifies it when judging is resumed."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read(path: Path) -> list[tuple[int, Story]]:
    problems = Problems(path)
    found = []
    for number, line in read_lines(path):
        if number == 1 and '"title": "statewise filling"' in line:  # the header of `statewise fill`
            continue
        try:
            found.append((number, _parse(line)))
        except ValueError as error:
            problems.add(number, str(error))
    problems.raise_if_any()
    if not found:
        raise ValueError(f"{path} holds no stories")
    return found


def _parse(line: str) -> Story:
    row = loads(line)
    if not isinstance(row, dict) or "prompt" not in row or ("completion" in row) == ("story" in row):
        raise ValueError(f"must be {FORMAT}")
    for key in ("prompt", "completion", "goal", "story"):
        if key in row and not isinstance(row[key], str):
            raise ValueError(f"{key!r} must be text")
        if key in row and any("\ud800" <= letter <= "\udfff" for letter in row[key]):
            raise ValueError(f"{key!r} contains half of a surrogate pair, which is not a character")
    story = row["story"] if "story" in row else row["prompt"] + row["completion"] + row.get("goal", "")
    if not story.strip():
        raise ValueError("the story is empty")
    return Story(row["prompt"], row.get("goal"), story)
