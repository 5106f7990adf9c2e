"""Types shared by the packages of the library.

Shape letters, used everywhere: `B` batch, `T` positions, `D` width, `V` vocabulary, `L` layers,
`H` heads, `K` rollout horizon, `n` examples.

This module imports no torch, and only `runtime` of statewise, so that tasks and the command line load fast.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol

import numpy as np

from statewise.batch import Batch, Continuation, Hidden, Loss, Part, Plan
from statewise.runtime.json_files import COUNT, MEASURED, TEXT, metric
from statewise.runtime.messages import LacksCapability

if TYPE_CHECKING:
    pass


__all__ = [
    "DETAILS",
    "Batch",
    "Completion",
    "Continuation",
    "Evaluation",
    "Examples",
    "Headline",
    "Hidden",
    "LacksCapability",
    "Loss",
    "Metrics",
    "NotFinite",
    "Part",
    "Plan",
    "Rows",
    "Sample",
    "Scored",
]


@dataclass(frozen=True)
class Examples:
    """Sequences of a task as NumPy arrays."""

    tokens: np.ndarray
    """(n, T) int64, right-padded with 0."""
    lengths: np.ndarray
    """(n,) int64: tokens of each sequence, prompt included."""
    prompt_lengths: np.ndarray
    """(n,) int64: tokens of the prompt, never scored; per document where several share a row. 0: no prompt."""
    documents: np.ndarray | None = None
    """(n, T) int64, counted from 1: the document of each position; None: one document per row."""
    scored: np.ndarray | None = None
    """(n, T) bool: which tokens after the prompt are scored; None: all."""

    @classmethod
    def of(cls, rows: Sequence[np.ndarray], prompt_lengths: Sequence[int]) -> Examples:
        """Stacks one or more sequences of token ids."""
        lengths = np.array([len(row) for row in rows], np.int64)
        tokens = np.zeros((len(rows), lengths.max()), np.int64)
        for number, row in enumerate(rows):
            tokens[number, : len(row)] = row
        return cls(tokens, lengths, np.array(prompt_lengths, np.int64))

    @classmethod
    def joined(cls, parts: Sequence[Examples]) -> Examples:
        """Concatenates one or more sets of examples of one task, padded to the widest."""
        width = max(part.tokens.shape[1] for part in parts)

        def column(name: str, mode: Literal["constant", "edge"]) -> np.ndarray:
            arrays = [getattr(part, name) for part in parts]
            return np.concatenate([np.pad(array, ((0, 0), (0, width - array.shape[1])), mode) for array in arrays])

        return cls(
            column("tokens", "constant"),
            np.concatenate([part.lengths for part in parts]),
            np.concatenate([part.prompt_lengths for part in parts]),
            None if parts[0].documents is None else column("documents", "edge"),
            None if parts[0].scored is None else column("scored", "constant"),
        )

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, rows: slice | np.ndarray) -> Examples:
        """The selected rows, without columns that are padding in all of them."""
        lengths = self.lengths[rows]
        longest = int(lengths.max()) if len(lengths) else 0
        documents = None if self.documents is None else self.documents[rows, :longest]
        scored = None if self.scored is None else self.scored[rows, :longest]
        return Examples(self.tokens[rows, :longest], lengths, self.prompt_lengths[rows], documents, scored)

    def prompt(self, row: int) -> np.ndarray:
        """(prompt length,) tokens of a row's prompt."""
        return self.tokens[row, : self.prompt_lengths[row]]

    def answer(self, row: int) -> np.ndarray:
        """(length - prompt length,) tokens of a row's answer."""
        return self.tokens[row, self.prompt_lengths[row] : self.lengths[row]]


class Rows(Protocol):
    """Examples by row number: in memory (`Examples` itself) or read on access."""

    def __len__(self) -> int:
        """Number of rows."""

    def __getitem__(self, rows: np.ndarray) -> Examples:
        """The rows of the given numbers, in that order."""


class Ragged:
    """n sequences of different lengths, concatenated without padding, in the smallest integer type that holds their
    tokens; satisfies `Rows`."""

    def __init__(self, tokens: np.ndarray, lengths: np.ndarray, prompt_lengths: np.ndarray) -> None:
        """`tokens` (sum of lengths,) of any integer type; `lengths` and `prompt_lengths` (n,)."""
        self.tokens, self.lengths, self.prompt_lengths = tokens, lengths, prompt_lengths
        self.starts = np.cumsum(lengths) - lengths

    @classmethod
    def of(cls, rows: Sequence[np.ndarray], prompt_lengths: Sequence[int], vocabulary: int) -> Ragged:
        """One or more sequences of token ids below `vocabulary`."""
        tokens = np.concatenate([row.astype(np.min_scalar_type(vocabulary - 1)) for row in rows])
        return cls(tokens, np.array([len(row) for row in rows], np.int64), np.array(prompt_lengths, np.int64))

    @classmethod
    def unpadded(cls, examples: Examples, vocabulary: int) -> Ragged:
        """Examples that have one document per row and score every answer token."""
        assert examples.documents is None
        assert examples.scored is None
        real = np.arange(examples.tokens.shape[1]) < examples.lengths[:, None]
        kind = np.min_scalar_type(vocabulary - 1)
        return cls(examples.tokens.astype(kind)[real], examples.lengths, examples.prompt_lengths)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, rows: slice | np.ndarray) -> Examples:
        """The selected rows, padded to the longest of them."""
        lengths = self.lengths[rows]
        tokens = np.zeros((len(lengths), int(lengths.max()) if len(lengths) else 0), np.int64)
        for place, (start, length) in enumerate(zip(self.starts[rows].tolist(), lengths.tolist())):
            tokens[place, :length] = self.tokens[start : start + length]
        return Examples(tokens, lengths, self.prompt_lengths[rows])

    def part(self, which: np.ndarray) -> Ragged:
        """The rows `which`, (n,) bool, in their order."""
        return Ragged(self.tokens[np.repeat(which, self.lengths)], self.lengths[which], self.prompt_lengths[which])

    def row(self, number: int) -> np.ndarray:
        """(length,) tokens of one row, of the type in which they are kept."""
        return self.tokens[self.starts[number] : self.starts[number] + self.lengths[number]]

    def holds(self, examples: Examples) -> np.ndarray:
        """(n,) bool: whether an example of one document is one of these rows, with the same prompt."""
        kind = self.tokens.dtype
        asked = [
            (prompt, row[:length].astype(kind).tobytes())
            for prompt, row, length in zip(examples.prompt_lengths.tolist(), examples.tokens, examples.lengths)
        ]
        missing = set(asked)
        for number, prompt in enumerate(self.prompt_lengths.tolist()):
            missing.discard((prompt, self.row(number).tobytes()))
        return np.array([one not in missing for one in asked], bool)

    def columns(self) -> np.ndarray:
        """(sum of lengths,) int64: the place of each token in its row."""
        return np.arange(len(self.tokens)) - np.repeat(self.starts, self.lengths)


@dataclass(frozen=True)
class Completion:
    """A decoder's answer to one prompt."""

    tokens: np.ndarray
    """(m,) int64 tokens after the prompt, including the end token if it was reached."""
    log_probability: float
    """Natural logarithm of the tokens' probability under the model."""
    score: float | None = None
    """The score by which a search ranked its candidates, in nats, higher is better; None without a ranking."""
    closed: bool = False
    """Whether the model ended it with the closing symbol: the gap before the goal is filled."""


@dataclass(frozen=True)
class Headline:
    """The metric that ranks a task's checkpoints and runs."""

    metric: str
    higher_is_better: bool
    solved_at: float | None = None
    """The task counts as solved from this value on; None: it has no such threshold."""

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Headline:
        """The headline that a report names; its other keys are ignored."""
        return cls(content["metric"], content["higher_is_better"], content.get("solved_at"))

    def better(self, value: float, than: float) -> bool:
        """Whether `value` beats `than`."""
        return value > than if self.higher_is_better else value < than

    def solved(self, value: float) -> bool:
        """Whether `value` solves the task; NaN does not."""
        if self.solved_at is None:
            return False
        return value >= self.solved_at if self.higher_is_better else value <= self.solved_at


DETAILS = ("position_", "step_")
"""Prefixes of metrics that are details of another one: reports keep them, short lines and comparisons omit them."""


Metrics = Annotated[dict[str, float], {...: metric}]
"""Values of metrics by name."""
Sample = Annotated[
    dict[str, Any],
    {
        "prompt": TEXT,
        "truth": TEXT,
        "predicted": TEXT,
        "graph?": {"edges": [[COUNT]], "start": COUNT, "goal": COUNT, "truth": [COUNT], "predicted": [COUNT]},
    },
]
"""A prompt with the true and the predicted answer, and the graph that is asked about."""
Scored = Annotated[dict[str, Any], {"text": TEXT, "tokens": COUNT, "nats_per_token": MEASURED, "copies": COUNT}]
"""A sequence: its text (truncated if long), the number of scored tokens, nats per token, and how often it occurs."""


@dataclass(frozen=True)
class Evaluation:
    """A model's results on a set of examples. A report holds the fields; their types say what it may hold (see
    `statewise.runtime.json_files`)."""

    metrics: Metrics
    num: int
    """Number of evaluated examples."""
    samples: list[Sample]
    """A few prompts with true and predicted answers."""
    continuations: list[Sample] = field(default_factory=list)
    """For sequences without prompts: a few prefixes, each with the true and the predicted continuation."""
    baselines: dict[str, Metrics] = field(default_factory=dict)
    """Metrics of each baseline on the same examples, named as in `metrics`; empty for tasks without baselines."""
    hardest: list[Scored] = field(default_factory=list)
    """Sequences with the most nats per token."""
    easiest: list[Scored] = field(default_factory=list)
    """Sequences with the fewest nats per token."""


class NotFinite(ArithmeticError):
    """Raised if a part of the loss or the gradient is infinite or NaN."""
