"""A user's own sequences, from a text file or JSON lines.

Text: a sequence a line, symbols separated by spaces; a tab, if there is one, separates prompt from answer.
JSON lines: `{"prompt": [...], "target": [...]}`. Either may be gzipped. Only answers are scored; a line
without a prompt is scored from its second symbol on. An end symbol closes every sequence.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from statewise.tasks.base import Kept, Task
from statewise.tasks.lines import Problems, read_lines
from statewise.tasks.vocab import Vocab
from statewise.types import Completion, Examples, Headline


@dataclass(frozen=True)
class SequencesConfig:
    """Fields of `task: sequences`."""

    path: str = ""
    """The file: text or JSON lines, plain or .gz."""
    held_out_path: str | None = None
    """A file of held-out sequences; null: a share of the lines of `path`."""
    held_out_share: float = 0.1
    """Share of the different lines of `path` that is held out, chosen by a hash of the line."""
    context: int | None = None
    """Longest sequence in tokens, end symbol included; null: the longest of the file."""
    end: str = "<end>"
    """Symbol that is put behind every sequence; must not occur in the file."""
    solved_at: float | None = None
    """Share of exact answers from which on the task counts as solved; null: it has no such point."""

    def __post_init__(self) -> None:
        if not 0 < self.held_out_share < 1:
            raise ValueError(f"task.held_out_share must lie between 0 and 1, not {self.held_out_share}")


Line = tuple[tuple[str, ...], tuple[str, ...]]
"""Symbols of prompt and answer."""


class Sequences(Task):
    """Sequences of symbols whose vocabulary is what occurs in the file."""

    Config = SequencesConfig

    def __init__(self, config: SequencesConfig, kept: Kept | None = None) -> None:
        self.config = config
        self._parts: tuple[Examples, Examples] | None = None
        if kept:
            facts = json.loads(kept["sequences.json"])
            self.vocab, self.sums = Vocab(facts["symbols"]), facts["sha256"]
            self.paths = [Path(path) for path in self.sums]
            self.context, self.has_prompts = facts["context"], facts["has_prompts"]
        else:
            self._take_in()
        self.end = self.vocab.ids[config.end]
        if self.has_prompts:
            self.headline = Headline("exact_match", higher_is_better=True, solved_at=config.solved_at)
        else:
            self.headline = Headline("loss", higher_is_better=False)

    def files(self) -> dict[str, bytes]:
        """Vocabulary, longest sequence, and checksums of the data."""
        facts = {
            "symbols": self.vocab.symbols,
            "context": self.context,
            "has_prompts": self.has_prompts,
            "sha256": self.sums,
        }
        return {"sequences.json": json.dumps(facts).encode()}

    # Reading

    def _take_in(self) -> None:
        """Learns the vocabulary and the longest sequence from the data."""
        if not self.config.path:
            raise ValueError("task.path is not set: give the file of sequences with --task.path FILE")
        self.paths = [Path(path).resolve() for path in (self.config.path, self.config.held_out_path) if path]
        lines = [line for _, line in parse_file(self.paths[0])]
        symbols = dict.fromkeys(symbol for prompt, answer in lines for symbol in (*prompt, *answer))
        if self.config.end in symbols:
            raise ValueError(
                f"{self.config.path}: the symbol {self.config.end!r} occurs in the data, but is the end symbol: "
                "set task.end to another"
            )
        self.vocab = Vocab([*symbols, self.config.end])
        self.has_prompts = any(prompt for prompt, _ in lines)
        every = [*lines, *(line for path in self.paths[1:] for _, line in parse_file(path))]
        self.context = self.config.context or 1 + max(len(prompt) + len(answer) for prompt, answer in every)
        self.sums = {str(path): _checksum(path) for path in self.paths}
        self._split()

    def _split(self) -> tuple[Examples, Examples]:
        """Training and held-out examples. Raises `ValueError` if the data is gone or has changed."""
        if self._parts is not None:
            return self._parts
        for path in self.paths:
            if not path.exists():
                raise ValueError(f"{path}: the data of this run is not there any more")
            if self.sums[str(path)] != _checksum(path):
                raise ValueError(f"{path}: the data has changed since the run began")
        path, *others = self.paths
        lines = parse_file(path)
        if others:
            held_out_lines = parse_file(others[0])
            trained_on = {line for _, line in lines}
            problems = Problems(others[0])
            for number, line in held_out_lines:
                if line in trained_on:
                    problems.add(number, f"this line is in {path.name} too, so it is not held out")
            problems.raise_if_any()
            self._parts = self._examples(path, lines), self._examples(others[0], held_out_lines)
            return self._parts
        different = sorted({line for _, line in lines}, key=_rank)
        if len(different) < 2:
            raise ValueError(f"{path}: at least two different lines are needed, to train on one and hold out another")
        count = max(1, round(self.config.held_out_share * len(different)))
        held_out = set(different[: min(count, len(different) - 1)])
        self._parts = (
            self._examples(path, [row for row in lines if row[1] not in held_out]),
            self._examples(path, [row for row in lines if row[1] in held_out]),
        )
        return self._parts

    def _examples(self, path: Path, lines: list[tuple[int, Line]]) -> Examples:
        problems = Problems(path)
        rows, prompt_lengths = [], []
        for number, (prompt, answer) in lines:
            length = len(prompt) + len(answer) + 1
            if length > self.context:
                problems.add(number, f"{length} tokens with the end symbol, but the context is {self.context}")
                continue
            try:
                rows.append(self.vocab.encode([*prompt, *answer, self.config.end]))
            except ValueError as error:
                problems.add(number, str(error))
                continue
            prompt_lengths.append(len(prompt))
        problems.raise_if_any()
        return Examples.of(rows, prompt_lengths)

    def training(self) -> Examples:
        """All lines that are not held out."""
        return self._split()[0]

    def held_out(self, n: int | None = None) -> Examples:
        """The held-out lines, or the first n of them."""
        examples = self._split()[1]
        return examples[: n if n is not None else len(examples)]

    def read(self, path: Path) -> Examples:
        """Sequences of a file; each symbol must be known from training."""
        return self._examples(path, parse_file(path))

    # Text

    def encode(self, text: str) -> np.ndarray:
        """Token ids of symbols separated by white space, or in a JSON list if some hold white space themselves."""
        if text.lstrip().startswith("[") and text not in self.vocab.ids:
            try:
                symbols = json.loads(text)
            except ValueError:
                symbols = None
            if isinstance(symbols, list) and all(isinstance(symbol, (str, int)) for symbol in symbols):
                return self.vocab.encode([str(symbol) for symbol in symbols])
        return self.vocab.encode(text.split())

    def decode(self, tokens: Sequence[int] | np.ndarray) -> str:
        """Symbols joined by spaces; as a JSON list if one of them holds white space."""
        symbols = self.vocab.decode(tokens)
        if any(symbol.split() != [symbol] for symbol in symbols):
            return json.dumps(symbols, ensure_ascii=False)
        return " ".join(symbols)

    def score(self, examples: Examples, completions: Sequence[Completion]) -> dict[str, float]:
        """`exact_match`: the answer and nothing else, end symbol included."""
        right = [np.array_equal(completion.tokens, examples.answer(row)) for row, completion in enumerate(completions)]
        return {"exact_match": float(np.mean(right))}


def parse_file(path: Path) -> list[tuple[int, Line]]:
    """(line number, symbols) of every line. The first line decides the format; others must follow it.

    Raises `ValueError` as `FILE:LINE: what is wrong`.
    """
    parsed: list[tuple[int, Line]] = []
    problems = Problems(path)
    parse = None
    for number, line in read_lines(path):
        if parse is None:
            parse = _parse_json if line.lstrip().startswith("{") else _parse_pair if "\t" in line else _parse_plain
        try:
            parsed.append((number, parse(line)))
        except ValueError as error:
            problems.add(number, str(error))
    problems.raise_if_any()
    return parsed


def _parse_plain(line: str) -> Line:
    if "\t" in line:
        raise ValueError("a tab, but the first line has none: either every line has a prompt or none")
    symbols = tuple(line.split())
    if len(symbols) < 1:
        raise ValueError("no symbol")
    return (), symbols


def _parse_pair(line: str) -> Line:
    halves = line.split("\t")
    if len(halves) != 2:
        raise ValueError(f"{len(halves) - 1} tabs: there must be one, between prompt and answer")
    prompt, answer = (tuple(half.split()) for half in halves)
    if not prompt:
        raise ValueError("the prompt, before the tab, is empty")
    return prompt, answer


def _parse_json(line: str) -> Line:
    try:
        found = json.loads(line)
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(found, dict) or set(found) != {"prompt", "target"}:
        raise ValueError('must be {"prompt": [...], "target": [...]}')
    for key in ("prompt", "target"):
        if not isinstance(found[key], list) or not all(isinstance(symbol, (str, int)) for symbol in found[key]):
            raise ValueError(f"{key!r} must be a list of strings or whole numbers")
    if not found["target"] and not found["prompt"]:
        raise ValueError("prompt and target are both empty")
    return tuple(map(str, found["prompt"])), tuple(map(str, found["target"]))


def _rank(line: Line) -> bytes:
    return hashlib.blake2b(json.dumps(line).encode(), digest_size=8).digest()


def _checksum(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
