"""Recall over distance: the first chunk gives keys, and a later one queries one of them.

A sequence is a chunk with the keys, `1:7 2:3 .0 .2`, and chunks of fillers, one of which ends with a question and its
answer, `.1 .1 ?2 2:3`. A model that attends only within a chunk must carry the keys in a state, or guess. There is one
question, since the answer to a first would help with a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from statewise.data_types import Completion, Examples, Headline
from statewise.runtime.bounds import bounded, check_tokens
from statewise.tasks.base import Kept, SpacedText, Vocab, World
from statewise.tasks.holding_out import ONE_IN, chosen, collect, hash_rows
from statewise.tasks.own_files.lines import read_rows


@dataclass(frozen=True)
class RecallConfig:
    """Fields of `task: recall`."""

    keys: int = 2
    """Number of keys."""
    values: int = 16
    """Number of values of a key."""
    own_symbols: bool = True
    """Whether each key has its own symbols, `1:7` and `2:7`; otherwise all share the symbol `7`, and the model must
    also remember which key it belongs to, which is much harder to learn."""
    chunk: int = 16
    """Tokens of a chunk."""
    distance: int = 3
    """Chunks after the first; the question is in any of them with equal probability."""
    fillers: int = 4
    """Number of filler symbols, drawn at random for all other positions."""
    document_chunks: int | None = None
    """Chunks per document, to which attention is limited; null: the whole sequence is one document. Limits the context
    of a GPT to so many chunks."""
    held_out_sequences: int = 1000
    """Size of the fixed test set."""
    data_seed: int = 0
    """Seed of the fixed test set."""

    def __post_init__(self) -> None:
        bounded(self, "keys", "distance", "fillers", "document_chunks", prefix="task.", at_least=1, at_most=10**6)
        bounded(self, "held_out_sequences", prefix="task.", at_least=1, at_most=10**8)
        bounded(self, "values", "chunk", prefix="task.", at_most=10**6)
        bounded(self, "values", prefix="task.", at_least=2, reason="otherwise there is nothing to recall")
        bounded(self, "data_seed", prefix="task.", at_least=0)
        if self.chunk < max(self.keys + 1, 3):
            raise ValueError(
                f"task.chunk {self.chunk} is too short for {self.keys} keys and a filler, or for a filler, a question "
                f"and its answer: set it to {max(self.keys + 1, 3)} or more"
            )
        if self.values**self.keys >= 2**62:
            raise ValueError(f"{self.keys} keys of {self.values} values have more than 2^62 combinations")


class Recall(SpacedText, World):
    """The text of a sequence is its symbols, separated by spaces: keys `1:0`, `2:0`, ... (or `0`, ...), fillers `.0`,
    questions `?1`."""

    Config = RecallConfig
    decoded = False  # the answer is between fillers, so it is evaluated with teacher forcing

    def __init__(self, config: RecallConfig, kept: Kept | None = None) -> None:
        self.config = config
        kinds = [f"{key + 1}:" for key in range(config.keys)] if config.own_symbols else [""]
        self._first = np.arange(config.keys) * config.values * config.own_symbols  # the first symbol of each key
        self._fillers = len(kinds) * config.values  # the first filler
        self.vocab = Vocab(
            [
                *(f"{kind}{value}" for kind in kinds for value in range(config.values)),
                *(f".{filler}" for filler in range(config.fillers)),
                *(f"?{key + 1}" for key in range(config.keys)),
            ]
        )
        self.context = config.chunk * (1 + config.distance)
        check_tokens("task.held_out_sequences", config.held_out_sequences, self.context)
        self.headline = Headline("recall", higher_is_better=True, solved_at=0.99)
        names = ["recall", *(f"recall_distance_{distance + 1}" for distance in range(config.distance))]
        self.chance = dict.fromkeys(names, 1 / config.values)
        self._held_out: Examples | None = None

    @property
    def _answers(self) -> np.ndarray:
        """(distance,): possible columns of the answer, which follows its question."""
        return (2 + np.arange(self.config.distance)) * self.config.chunk - 1

    def _distances(self, rows: np.ndarray) -> np.ndarray:
        """(n,): distance in chunks from keys to question, minus 1."""
        distances: np.ndarray = (rows[:, self._answers - 1] >= self._fillers + self.config.fillers).argmax(axis=1)
        return distances

    def training(self) -> None:
        """Returns None: every batch has fresh sequences."""

    def sample(self, rng: np.random.Generator, n: int) -> Examples:
        """n training sequences, never held-out ones."""
        return self._draw(rng, n, held_out=False)

    def held_out(self, n: int | None = None) -> Examples:
        """The fixed test set, or its first n sequences."""
        if self._held_out is None:
            rng = np.random.default_rng([self.config.data_seed, 2])
            self._held_out = self._draw(rng, self.config.held_out_sequences, held_out=True)
        return self._held_out[: n if n is not None else len(self._held_out)]

    def _draw(self, rng: np.random.Generator, n: int, *, held_out: bool) -> Examples:
        def draw(missing: int) -> np.ndarray:
            drawn = self._draw_any(rng, int(missing * (ONE_IN if held_out else 1.1)) + 64)
            return drawn[chosen(hash_rows(drawn)) == held_out]

        rows = collect(draw, n, width=self.context)
        if len(rows) < n:
            raise ValueError("there are too few different sequences to hold some out: set task.chunk higher")
        return self._examples(rows)

    def _draw_any(self, rng: np.random.Generator, n: int) -> np.ndarray:
        """(n, T): sequences of either split."""
        config = self.config
        rows = self._fillers + rng.integers(config.fillers, size=(n, self.context))
        keys = rows[:, : config.keys] = self._first + rng.integers(config.values, size=(n, config.keys))
        queried, each = rng.integers(config.keys, size=n), np.arange(n)
        answer = self._answers[rng.integers(config.distance, size=n)]
        rows[each, answer - 1] = self._fillers + config.fillers + queried
        rows[each, answer] = keys[each, queried]
        return rows

    def _examples(self, rows: np.ndarray) -> Examples:
        """Examples of whole sequences (n, T), of which only the answer is scored."""
        scored = np.zeros(rows.shape, bool)
        scored[np.arange(len(rows)), self._answers[self._distances(rows)]] = True
        n, documents = len(rows), None
        if self.config.document_chunks is not None:
            number = np.arange(self.context) // (self.config.chunk * self.config.document_chunks) + 1
            documents = np.broadcast_to(number, rows.shape)
        prompts = np.full(n, self.config.keys)
        return Examples(rows, np.full(n, self.context), prompts, documents, scored)

    # Text and files

    def read(self, path: Path) -> Examples:
        """Whole sequences, one per line. Raises `ValueError` with the line for another form or a wrong answer."""
        rows = read_rows(path, self.encode, self._problem)
        return self._examples(np.stack(rows))

    def _problem(self, row: np.ndarray) -> str:
        if len(row) != self.context:
            return f"{len(row)} symbols, but a sequence of this task has {self.context}"
        for position, token in enumerate(row):
            if token not in self.legal(row[:position]):
                allowed = self.vocab.decode(self.legal(row[:position]))
                named = allowed[0] if len(allowed) == 1 else f"one of {allowed[0]} to {allowed[-1]}"
                return f"symbol {position + 1} is {self.vocab.symbols[token]}, but must be {named}"
        return ""

    # Scores

    def score(self, examples: Examples, completions: Sequence[Completion]) -> dict[str, float]:
        """`recall`: the share of completions with the right answer. Evaluations use teacher forcing instead: see
        `score_positions`."""
        columns = self._answers[self._distances(examples.tokens)]
        right = 0
        for row, (completion, column) in enumerate(zip(completions, columns)):
            sequence = np.concatenate([examples.prompt(row), completion.tokens])
            right += len(sequence) > column and sequence[column] == examples.tokens[row, column]
        return {"recall": right / len(completions)}

    def score_positions(self, examples: Examples, chosen: np.ndarray) -> dict[str, float]:
        """`recall`: the share of answers that are the most likely token; `recall_distance_1`, ...: by the distance in
        chunks from keys to question."""
        distances, each = self._distances(examples.tokens), np.arange(len(examples))
        columns = self._answers[distances]
        right = chosen[each, columns] == examples.tokens[each, columns]
        by_distance = {
            f"recall_distance_{distance + 1}": float(right[distances == distance].mean())
            for distance in np.unique(distances).tolist()
        }
        return {"recall": float(right.mean()), **by_distance}

    # World

    def labels(self, examples: Examples) -> np.ndarray:
        """(n, T): all keys as one number, from the last key on; -1 before."""
        keys = examples.tokens[:, : self.config.keys] - self._first
        number = keys @ self.config.values ** np.arange(self.config.keys)
        known = np.arange(examples.tokens.shape[1]) >= self.config.keys - 1
        return np.where(known, number[:, None], -1)

    def legal(self, prefix: np.ndarray) -> np.ndarray:
        """The legal symbols at a position; for the answer only the correct one."""
        config, position = self.config, len(prefix)
        if position >= self.context:
            return np.empty(0, np.int64)
        if position < config.keys:
            return self._first[position] + np.arange(config.values)
        fillers = self._fillers + np.arange(config.fillers)
        questions = self._fillers + config.fillers + np.arange(config.keys)
        if np.isin(prefix[-1], questions):
            return prefix[[prefix[-1] - questions[0]]]
        if position + 1 in self._answers and not np.isin(prefix, questions).any():
            return questions if position + 1 == self._answers[-1] else np.concatenate([fillers, questions])
        return fillers
