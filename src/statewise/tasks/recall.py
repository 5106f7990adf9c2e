"""Recall over distance: keys are given in the first chunk, and one of them is asked for in a later one.

A sequence is a chunk with the keys, `1:7 2:3 .0 .2`, and chunks of fillers, one of which ends with a question and its
answer, `.1 .1 ?2 2:3`. A model whose attention ends with the chunk can only guess, unless it carries something on; and
what it must carry are the keys and nothing else. There is one question, since a second one could be answered by the
first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from statewise.tasks.base import Kept, Task, World
from statewise.tasks.hashing import hash_rows
from statewise.tasks.lines import Problems, read_lines
from statewise.tasks.vocab import Vocab
from statewise.types import Completion, Examples, Headline

HELD_OUT_SHARE = 16
"""One sequence in so many is held out: which, the hash of its keys and fillers decides."""


@dataclass(frozen=True)
class RecallConfig:
    """Fields of `task: recall`."""

    keys: int = 2
    """Keys that are given, and may be asked for."""
    values: int = 16
    """Different symbols that a key may be."""
    own_symbols: bool = True
    """Whether each key has symbols of its own, `1:7` and `2:7`; else `7` is a symbol that any key may be, and which key
    it was must be kept in mind too: that is much harder to learn."""
    chunk: int = 16
    """Tokens of a chunk."""
    distance: int = 3
    """Chunks behind the first; a key is asked for in one of them, each as often."""
    fillers: int = 4
    """Different symbols that stand, at random, between keys and questions."""
    document_chunks: int | None = None
    """Chunks that are a document of their own, beyond which no model looks back; null: the whole sequence is one. Makes
    of a GPT one whose context is so many chunks."""
    held_out_sequences: int = 1000
    """Size of the fixed test set."""
    data_seed: int = 0
    """Seed of the fixed test set."""

    def __post_init__(self) -> None:
        for name in ("keys", "distance", "fillers", "document_chunks", "held_out_sequences"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"task.{name} must be at least 1, not {getattr(self, name)}")
        if self.values < 2:
            raise ValueError(f"task.values must be at least 2, not {self.values}: there is else nothing to recall")
        if self.chunk < max(self.keys + 1, 3):
            raise ValueError(
                f"task.chunk {self.chunk} is too short for {self.keys} keys and a filler, or for a filler, a question "
                f"and its answer: set it to {max(self.keys + 1, 3)} or more"
            )
        if self.values**self.keys >= 2**62:
            raise ValueError(f"{self.keys} keys of {self.values} values are more combinations than can be numbered")


class Recall(Task, World):
    """As text: symbols with spaces between them: keys `1:0`, `2:0`, ... (or `0`, ...), fillers `.0`, questions `?1`."""

    Config = RecallConfig
    decoded = False  # the answer stands between fillers, so it is asked for where the true past is given

    def __init__(self, config: RecallConfig, kept: Kept | None = None) -> None:
        self.config = config
        kinds = [f"{key + 1}:" for key in range(config.keys)] if config.own_symbols else [""]
        self._first = np.arange(config.keys) * config.values * config.own_symbols  # the first symbol of each key
        self._fillers = len(kinds) * config.values  # the first filler
        self.vocab = Vocab([
            *(f"{kind}{value}" for kind in kinds for value in range(config.values)),
            *(f".{filler}" for filler in range(config.fillers)),
            *(f"?{key + 1}" for key in range(config.keys)),
        ])  # fmt: skip
        self.context = config.chunk * (1 + config.distance)
        self.headline = Headline("recall", higher_is_better=True, solved_at=0.99)
        names = ["recall", *(f"recall_distance_{distance + 1}" for distance in range(config.distance))]
        self.chance = dict.fromkeys(names, 1 / config.values)
        self._held_out: Examples | None = None

    @property
    def _answers(self) -> np.ndarray:
        """(distance,): columns that the answer may have, behind its question."""
        return (2 + np.arange(self.config.distance)) * self.config.chunk - 1

    def _distances(self, rows: np.ndarray) -> np.ndarray:
        """(n,): how many chunks behind the keys each row asks, counted from 0."""
        found: np.ndarray = (rows[:, self._answers - 1] >= self._fillers + self.config.fillers).argmax(axis=1)
        return found

    def training(self) -> None:
        """Sequences are drawn afresh without end."""

    def sample(self, rng: np.random.Generator, n: int) -> Examples:
        """n training sequences; none of them is ever held out."""
        return self._draw(rng, n, held_out=False)

    def held_out(self, n: int | None = None) -> Examples:
        """The fixed test set, or its first n sequences."""
        if self._held_out is None:
            rng = np.random.default_rng([self.config.data_seed, 2])
            self._held_out = self._draw(rng, self.config.held_out_sequences, held_out=True)
        return self._held_out[: n if n is not None else len(self._held_out)]

    def _draw(self, rng: np.random.Generator, n: int, *, held_out: bool) -> Examples:
        rows, fruitless = np.empty((0, self.context), np.int64), 0
        while len(rows) < n:
            drawn = self._draw_any(rng, int((n - len(rows)) * (HELD_OUT_SHARE if held_out else 1.1)) + 64)
            chosen = (hash_rows(drawn) >> np.uint64(32)) % np.uint64(HELD_OUT_SHARE) == 0
            before = len(rows)
            rows = np.concatenate([rows, drawn[chosen == held_out]])
            fruitless = 0 if len(rows) > before else fruitless + 1
            if fruitless == 100:
                raise ValueError("there are too few different sequences to hold some out: set task.chunk higher")
        return self._examples(rows[:n])

    def _draw_any(self, rng: np.random.Generator, n: int) -> np.ndarray:
        """(n, T): sequences of either side."""
        config = self.config
        rows = self._fillers + rng.integers(config.fillers, size=(n, self.context))
        keys = rows[:, : config.keys] = self._first + rng.integers(config.values, size=(n, config.keys))
        asked, each = rng.integers(config.keys, size=n), np.arange(n)
        answer = self._answers[rng.integers(config.distance, size=n)]
        rows[each, answer - 1] = self._fillers + config.fillers + asked
        rows[each, answer] = keys[each, asked]
        return rows

    def _examples(self, rows: np.ndarray) -> Examples:
        """Of whole sequences (n, T), of which the answer alone is asked for."""
        asked = np.zeros(rows.shape, bool)
        asked[np.arange(len(rows)), self._answers[self._distances(rows)]] = True
        n, documents = len(rows), None
        if self.config.document_chunks is not None:
            number = np.arange(self.context) // (self.config.chunk * self.config.document_chunks) + 1
            documents = np.broadcast_to(number, rows.shape)
        prompts = np.full(n, self.config.keys)
        return Examples(rows, np.full(n, self.context), prompts, documents, asked)

    # Text and files

    def encode(self, text: str) -> np.ndarray:
        """Token ids of symbols with spaces between them."""
        return self.vocab.encode(text.split())

    def decode(self, tokens: Sequence[int] | np.ndarray) -> str:
        """Symbols with spaces between them."""
        return " ".join(self.vocab.decode(tokens))

    def read(self, path: Path) -> Examples:
        """Whole sequences, one a line. Raises `ValueError` with the line for one of another form, or a wrong answer."""
        rows, problems = [], Problems(path)
        for number, line in read_lines(path):
            try:
                row = self.encode(line)
                wrong = self._what_is_wrong(row)
            except ValueError as error:
                wrong = str(error)
            if wrong:
                problems.add(number, wrong)
            else:
                rows.append(row)
        problems.raise_if_any()
        return self._examples(np.stack(rows))

    def _what_is_wrong(self, row: np.ndarray) -> str:
        if len(row) != self.context:
            return f"{len(row)} symbols, but a sequence of this task has {self.context}"
        for place, token in enumerate(row):
            if token not in self.legal(row[:place]):
                allowed = self.vocab.decode(self.legal(row[:place]))
                named = allowed[0] if len(allowed) == 1 else f"one of {allowed[0]} to {allowed[-1]}"
                return f"symbol {place + 1} is {self.vocab.symbols[token]}, but {named} belongs there"
        return ""

    # Scores

    def score(self, examples: Examples, completions: Sequence[Completion]) -> dict[str, float]:
        """`recall`, of completions that reach the answer: the share that is right. An evaluation asks for answers where
        the true past is given instead: see `score_positions`."""
        places = self._answers[self._distances(examples.tokens)]
        right = 0
        for row, completion in enumerate(completions):
            given = np.concatenate([examples.prompt(row), completion.tokens])
            right += len(given) > places[row] and given[places[row]] == examples.tokens[row, places[row]]
        return {"recall": right / len(completions)}

    def score_positions(self, examples: Examples, chosen: np.ndarray) -> dict[str, float]:
        """`recall`: the share of answers that are the model's first choice; `recall_distance_1`, ...: of those so many
        chunks behind the keys."""
        distances, each = self._distances(examples.tokens), np.arange(len(examples))
        places = self._answers[distances]
        right = chosen[each, places] == examples.tokens[each, places]
        by_distance = {
            f"recall_distance_{distance + 1}": float(right[distances == distance].mean())
            for distance in np.unique(distances).tolist()
        }
        return {"recall": float(right.mean()), **by_distance}

    # World

    def labels(self, examples: Examples) -> np.ndarray:
        """(n, T): the keys, as one number, from where the last of them stands; -1 before."""
        keys = examples.tokens[:, : self.config.keys] - self._first
        number = keys @ self.config.values ** np.arange(self.config.keys)
        known = np.arange(examples.tokens.shape[1]) >= self.config.keys - 1
        return np.where(known, number[:, None], -1)

    def legal(self, prefix: np.ndarray) -> np.ndarray:
        """The symbols that belong to a place; of answers the one that is right."""
        config, place = self.config, len(prefix)
        if place >= self.context:
            return np.empty(0, np.int64)
        if place < config.keys:
            return self._first[place] + np.arange(config.values)
        fillers = self._fillers + np.arange(config.fillers)
        questions = self._fillers + config.fillers + np.arange(config.keys)
        if np.isin(prefix[-1], questions):
            return prefix[[prefix[-1] - questions[0]]]
        if place + 1 in self._answers and not np.isin(prefix, questions).any():
            return questions if place + 1 == self._answers[-1] else np.concatenate([fillers, questions])
        return fillers
