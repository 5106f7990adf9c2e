"""The judging protocol (Belief State Transformer, appendix D.2): two files of stories, paired by line, and each pair
judged several times, in both orders, anonymously; and the summary of the judgements.

Every judgement is saved at once, so that interrupted judging can be resumed.
"""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any, Literal, NamedTuple

from statewise.reporting.statistics import wilson
from statewise.runtime.json_files import COUNT, TEXT, Maybe, Shape, loads, one_of
from statewise.runtime.ledger import Ledger, Record
from statewise.runtime.progress import announced
from statewise.runtime.text_files import read_text
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
    stories = []
    for number, line in read_lines(path):
        if number == 1 and '"title": "statewise filling"' in line:  # the header of `statewise fill`
            continue
        try:
            stories.append((number, _parse(line)))
        except ValueError as error:
            problems.add(number, str(error))
    problems.raise_if_any()
    if not stories:
        raise ValueError(f"{path} holds no stories")
    return stories


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


CRITERIA = """\
Two writers were each given the same task, and you see one story of each. Which writer did better?

First describe each story: is its language correct, does one sentence follow from the other, does it hold \
together from beginning to end, is it imaginative, does it repeat itself or break off? Then argue which story is \
the better one, or that there is little between them. The order in which they are shown means nothing."""
"""The criteria by which stories are compared; `--instructions` replaces them."""

VERDICT_FORM = """\
Close your answer with a line that holds your verdict and nothing else, in one of these three forms:
VERDICT: 1
VERDICT: 2
VERDICT: EQUAL"""

INSTRUCTIONS = f"{CRITERIA}\n\n{VERDICT_FORM}"

VERDICT = re.compile(r"[\W_]*verdict[\W_]*(?:story[\W_]*)?(1|2|equal)[\W_]*", flags=re.IGNORECASE)

Side = Literal["a", "b"]

NEEDED: Shape = {
    "story": COUNT,
    "first": one_of("a", "b"),
    "repeat": COUNT,
    "verdict": Maybe(one_of("a", "b", "equal")),
    "answer": TEXT,
}
"""Fields of a judgement. The verdict is a, b or equal, or None if the answer has no readable one."""


class Judge(ABC):
    """Compares two stories. Must be thread-safe."""

    @abstractmethod
    def ask(self, instructions: str, question: str) -> str:
        """The full answer as text."""


class JudgementRequest(NamedTuple):
    """One judgement to request from the judge."""

    story: int
    """Number of the pair, from 1."""
    first: Side
    """Side whose story is shown first."""
    repeat: int
    """Number of the repetition, from 1."""

    def text(self, pair: Pair) -> str:
        """The judge's input, which does not reveal the sides."""
        first, second = (pair.a, pair.b) if self.first == "a" else (pair.b, pair.a)
        return f"Story 1:\n\n{first.strip()}\n\nStory 2:\n\n{second.strip()}"

    def verdict(self, answer: str) -> str | None:
        """`a`, `b` or `equal`; None if the last line of the answer is not a verdict."""
        lines = [line for line in answer.splitlines() if line.strip()]
        match = VERDICT.fullmatch(lines[-1]) if lines else None
        if match is None:
            return None
        if match[1].lower() == "equal":
            return "equal"
        return self.first if match[1] == "1" else ("b" if self.first == "a" else "a")


def questions(stories: int, repeats: int) -> Iterator[JudgementRequest]:
    """All judgements of `stories` pairs, pair by pair: both orders, `repeats` times."""
    for story in range(1, stories + 1):
        for repeat in range(1, repeats + 1):
            for first in ("a", "b"):
                yield JudgementRequest(story, first, repeat)


def read_instructions(path: Path) -> str:
    """Instructions with the criteria of a file, and the format of verdicts. Raises `ValueError` if the file is empty or
    not UTF-8 text."""
    criteria = read_text(path).strip()
    if not criteria:
        raise ValueError(f"{path}: the instructions are empty: write the criteria of the judge")
    return f"{criteria}\n\n{VERDICT_FORM}"


def facts(
    model: str, checksums: dict[str, str], repeats: int, instructions: str, temperature: float | None
) -> dict[str, Any]:
    """Settings that must agree for judging to be resumed."""
    checksum = hashlib.sha256(instructions.encode()).hexdigest()
    return {
        "model": model,
        "files": checksums,
        "repeats": repeats,
        "instructions": checksum,
        "temperature": temperature,
    }


def _request_of(record: Record) -> JudgementRequest:
    return JudgementRequest(record["story"], record["first"], record["repeat"])


def judge(
    pairs: Sequence[Pair], reader: Judge, ledger: Ledger, *, repeats: int, jobs: int, instructions: str = INSTRUCTIONS
) -> list[Record]:
    """Requests the judgements that the ledger lacks, `jobs` at a time; returns all of them.

    If the reader raises, pending answers are still saved, unsent requests remain for another call, and the error is
    raised.
    """
    wanted = list(questions(len(pairs), repeats))
    known = set(map(_request_of, ledger.records))
    strange = known.difference(wanted)
    if strange or len(known) != len(ledger.records):
        what = f"{min(strange)} is unexpected" if strange else "one occurs twice"
        raise ValueError(f"{ledger.path}: not the judgements of these stories: {what}: choose another `out`")
    waiting = [question for question in wanted if question not in known]

    failed = Event()  # set by the worker itself, so that no further request is sent before this thread is notified

    def answer(question: JudgementRequest) -> Record | None:
        if failed.is_set():
            return None
        try:
            text = reader.ask(instructions, question.text(pairs[question.story - 1]))
            text = text.encode("utf-8", "replace").decode()  # an answer that was cut may end in half of a character
        except BaseException:
            failed.set()
            raise
        return {**question._asdict(), "verdict": question.verdict(text), "answer": text}

    with ThreadPoolExecutor(jobs) as pool:
        running = {pool.submit(answer, question) for question in waiting}
        try:
            finished = announced(as_completed(running), "judgements", len(wanted), before=len(known))
            for done in finished:
                record = done.result()
                if record is not None:
                    ledger.add(record)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            # An interrupt may come at any moment: only the ledger shows which answers are kept.
            kept = set(map(_request_of, ledger.records))
            for done in running:
                if not done.cancelled() and done.exception() is None:
                    record = done.result()
                    if record is not None and _request_of(record) not in kept:
                        ledger.add(record)
            raise
    return ledger.records


SHOWN, LONGEST = 10, 100
"""Answers without a verdict that are shown, and characters of each."""


def summarise(records: Sequence[Record], stories: int) -> dict[str, Any]:
    """Counts and win rates of `a`, as plain data.

    Judgements of one story are not independent, since they are about the same two texts. So intervals count stories:
    the paper's 64% [54%, 74%] is about what its 100 stories give, while 600 independent trials would give [60%, 68%].

    `judgements`: counts by verdict; `unreadable` are answers without one, and `unreadable_answers` which and how they
    end. `win_rate`: mean over stories of `a`'s share of their readable judgements, an `equal` counting half, with a
    Wilson interval over stories. `majority`: stories by the side that most decided judgements favour, and `a`'s share
    of those that are not tied. `unjudged`: stories without a readable judgement. `first_shown`: share of decided
    judgements for the story shown first; far from 1/2, the judge has a position bias.
    """
    verdicts = [record["verdict"] for record in records]
    judgements = {kind: verdicts.count(kind) for kind in ("a", "b", "equal")}
    shares, majority = [], {"a": 0, "b": 0, "tie": 0}
    for story in range(1, stories + 1):
        read = [record["verdict"] for record in records if record["story"] == story and record["verdict"] is not None]
        if not read:
            continue
        wins, losses = read.count("a"), read.count("b")
        shares.append((wins + read.count("equal") / 2) / len(read))
        majority["a" if wins > losses else "b" if losses > wins else "tie"] += 1
    decided = [record for record in records if record["verdict"] in ("a", "b")]
    first = sum(record["verdict"] == record["first"] for record in decided)
    return {
        "stories": stories,
        "judgements": {**judgements, "unreadable": verdicts.count(None)},
        "win_rate": _rate(sum(shares), len(shares)),
        "majority": {**majority, "win_rate": _rate(majority["a"], majority["a"] + majority["b"])},
        "unjudged": stories - len(shares),
        "first_shown": first / len(decided) if decided else None,
        "unreadable_answers": _unreadable(records),
    }


def _unreadable(records: Sequence[Record]) -> list[dict[str, Any]]:
    """The judgements without a verdict, and the last line of each answer, where it is expected."""
    answers = [
        {**{key: record[key] for key in ("story", "repeat", "first")}, "last_line": _last_line(record["answer"])}
        for record in records
        if record["verdict"] is None
    ]
    return sorted(answers, key=lambda one: (one["story"], one["repeat"], one["first"]))


def _last_line(answer: str) -> str:
    lines = [line.strip() for line in answer.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def _rate(wins: float, trials: int) -> dict[str, Any] | None:
    """The share of wins with its Wilson interval; None without trials."""
    if trials == 0:
        return None
    return {"value": wins / trials, "interval": list(wilson(wins / trials, trials)), "of": trials}


def as_text(summary: dict[str, Any], a: str, b: str) -> str:
    """The summary as text."""
    judgements, majority = summary["judgements"], summary["majority"]
    first = summary["first_shown"]
    lines = [
        f"{sum(judgements.values())} judgements of {summary['stories']} stories: {judgements['a']} for {a}, "
        f"{judgements['b']} for {b}, {judgements['equal']} equal, {judgements['unreadable']} unreadable",
        f"win rate of {a}: {_rate_text(summary['win_rate'])}, equal counting half",
        f"by majority: {majority['a']} stories won, {majority['b']} lost, {majority['tie']} tied; "
        f"of those decided: {_rate_text(majority['win_rate'])}",
    ]
    if summary["unjudged"]:
        lines.append(f"{summary['unjudged']} stories have no readable judgement and are excluded from both rates")
    if first is not None:
        lines.append(f"the story shown first won {first:.0%} of decided judgements")
    unreadable = summary["unreadable_answers"]
    if unreadable:
        lines.append("answers without a verdict, and their last lines:")
    for one in unreadable[:SHOWN]:
        shown = a if one["first"] == "a" else b
        end = repr(one["last_line"][-LONGEST:]) if one["last_line"] else "empty answer"
        lines.append(f"  story {one['story']}, {shown} first, judgement {one['repeat']}: {end}")
    if len(unreadable) > SHOWN:
        lines.append(f"  and {len(unreadable) - SHOWN} more, in the summary file")
    return "\n".join(lines)


def _rate_text(rate: dict[str, Any] | None) -> str:
    if rate is None:
        return "none"
    low, high = rate["interval"]
    return f"{rate['value']:.1%} [{low:.1%}, {high:.1%}] (95%, Wilson, over {rate['of']} stories)"
