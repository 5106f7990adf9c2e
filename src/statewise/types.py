"""The types that travel between the rooms of the library.

Shape letters, used everywhere: `B` batch, `T` positions, `D` width, `V` vocabulary, `L` layers,
`H` heads, `K` rollout horizon, `n` examples.

This module imports neither torch nor anything of ours, so that tasks and the command line stay light.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Examples:
    """Sequences in columns: what a task hands out, before anything knows about torch."""

    tokens: np.ndarray
    """(n, T) int64, right-padded with 0."""
    lengths: np.ndarray
    """(n,) int64: tokens of each sequence, prompt included."""
    prompt_lengths: np.ndarray
    """(n,) int64: tokens given, never asked for; of each document where several share a row. 0: there is no prompt."""
    documents: np.ndarray | None = None
    """(n, T) int64, from 1 and not falling: the document of each position when several share a row; None: one a row."""
    asked: np.ndarray | None = None
    """(n, T) bool: of the tokens behind the prompt those that are asked for; None: all."""

    @classmethod
    def of(cls, rows: Sequence[np.ndarray], prompt_lengths: Sequence[int]) -> Examples:
        """Sequences of token ids, at least one, side by side."""
        lengths = np.array([len(row) for row in rows], np.int64)
        tokens = np.zeros((len(rows), lengths.max()), np.int64)
        for place, row in enumerate(rows):
            tokens[place, : len(row)] = row
        return cls(tokens, lengths, np.array(prompt_lengths, np.int64))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, rows: slice | np.ndarray) -> Examples:
        """The chosen rows, cut to the longest of them."""
        lengths = self.lengths[rows]
        longest = int(lengths.max()) if len(lengths) else 0
        documents = None if self.documents is None else self.documents[rows, :longest]
        asked = None if self.asked is None else self.asked[rows, :longest]
        return Examples(self.tokens[rows, :longest], lengths, self.prompt_lengths[rows], documents, asked)

    def prompt(self, row: int) -> np.ndarray:
        """(prompt length,) tokens given in one row."""
        return self.tokens[row, : self.prompt_lengths[row]]

    def answer(self, row: int) -> np.ndarray:
        """(length - prompt length,) tokens asked for in one row."""
        return self.tokens[row, self.prompt_lengths[row] : self.lengths[row]]


class Rows(Protocol):
    """Examples by number: all of them in memory (`Examples` itself), or read when asked for."""

    def __len__(self) -> int:
        """How many there are."""

    def __getitem__(self, rows: np.ndarray) -> Examples:
        """Those of the given numbers, in that order."""


class Batch(NamedTuple):
    """What an objective is trained on. A named tuple, since wrappers of torch rebuild their inputs."""

    tokens: Tensor
    """(B, T) int64, right-padded with 0."""
    scored: Tensor
    """(B, T) bool: the token is a target of the token-level losses. Never the first token of a document."""
    real: Tensor
    """(B, T) bool: False on padding."""
    documents: Tensor | None
    """(B, T) int64 document of each position when several share a row (0 on padding); None: one a row."""
    span: tuple[int, int]
    """Columns [first, end) that hold every scored token: known on the host, so slicing needs no sync."""

    @property
    def owners(self) -> Tensor:
        """(B, T) int64: the document of each position, whether or not there is one a row; 0 on padding."""
        return self.real.long() if self.documents is None else self.documents

    @property
    def targets(self) -> tuple[Tensor, Tensor]:
        """Tokens to predict and their mask, both (B, end - first)."""
        first, end = self.span
        return self.tokens[:, first:end], self.scored[:, first:end]


class Hidden(NamedTuple):
    """What a backbone makes of each position; the two differ only where a paper says so."""

    state: Tensor
    """(B, T, D) the belief state: what probes read and what later positions may rest on."""
    readout: Tensor
    """(B, T, D) what the vocabulary head reads."""


class Part(NamedTuple):
    """One named part of a loss, kept as sums and counts so that means over batches and processes are exact.

    A part has one sum, or m of them (one a rollout step, say); its mean is then the mean of the m means.
    """

    total: Tensor
    """() or (m,): sums over everything counted."""
    terms: Tensor
    """() or (m,): how many terms the mean is over. Of a batch that is a share of a larger one: those of the whole."""
    weight: float
    """Factor of this part's mean in the training loss."""

    def mean(self) -> Tensor:
        """Scalar; a sum over nothing counts as 0."""
        share = self.total / self.terms.clamp(min=1)
        return share.mean() if share.dim() else share


class Loss(NamedTuple):
    """The parts of an objective's loss. The training loss is the weighted sum of the parts' means."""

    parts: dict[str, Part]

    def value(self) -> Tensor:
        """Scalar to differentiate."""
        terms = [part.weight * part.mean() for part in self.parts.values()]
        return sum(terms[1:], start=terms[0])


@dataclass(frozen=True)
class Completion:
    """What a decoder returns for one prompt."""

    tokens: np.ndarray
    """(m,) int64 tokens after the prompt, the end token included if one came."""
    log_probability: float
    """Natural log of the probability that the model gave to these tokens."""
    score: float | None = None
    """By what a search ranked it among its candidates, in nats, higher is better; None where nothing was ranked."""


@dataclass(frozen=True)
class Headline:
    """The one metric by which a task's checkpoints and runs are ranked."""

    metric: str
    higher_is_better: bool
    solved_at: float | None = None
    """Value from which on the task counts as solved, if it can be solved."""

    def better(self, value: float, than: float) -> bool:
        """Whether `value` beats `than`."""
        return value > than if self.higher_is_better else value < than

    def solved(self, value: float) -> bool:
        """Whether `value` solves the task."""
        return self.solved_at is not None and not self.better(self.solved_at, value)


@dataclass(frozen=True)
class Evaluation:
    """What a model did on a set of examples."""

    metrics: dict[str, float]
    num: int
    """Examples evaluated."""
    samples: list[dict[str, Any]]
    """A few prompts with true and predicted answers, as plain data; what a report shows."""


Carried = Literal["carried", "fresh", "same-chunk"]
"""How a model that carries a state from chunk to chunk is asked; see `backbones.base.Carrying.under`."""


class NotFinite(ArithmeticError):
    """A loss part or the gradient became infinite or undefined."""
