"""The judging protocol (Belief State Transformer, appendix D.2): each pair several times, in both orders, anonymously.

Every judgement is saved at once, so that interrupted judging can be resumed.
"""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from threading import Event
from typing import Any, Literal, NamedTuple

from statewise.evaluation.judging.pairs import Pair
from statewise.runtime.json_files import COUNT, TEXT, Maybe, Shape, one_of
from statewise.runtime.ledger import Ledger, Record
from statewise.runtime.progress import announced

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
        found = VERDICT.fullmatch(lines[-1]) if lines else None
        if found is None:
            return None
        if found[1].lower() == "equal":
            return "equal"
        return self.first if found[1] == "1" else ("b" if self.first == "a" else "a")


def questions(stories: int, repeats: int) -> Iterator[JudgementRequest]:
    """All judgements of `stories` pairs, pair by pair: both orders, `repeats` times."""
    for story in range(1, stories + 1):
        for repeat in range(1, repeats + 1):
            for first in ("a", "b"):
                yield JudgementRequest(story, first, repeat)


def read_instructions(path: Path) -> str:
    """Instructions with the criteria of a file, and the format of verdicts. Raises `ValueError` if the file is empty or
    not UTF-8 text."""
    try:
        criteria = path.read_text(encoding="utf-8").strip()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text ({error.reason})") from None
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
        raise ValueError(f"{ledger.path}: not the judgements of these stories: {what}: choose another --out")
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
