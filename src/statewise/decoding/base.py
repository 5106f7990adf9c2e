"""The decoder interface: from prompts to completions, using only a predictor."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from statewise.data_types import Completion
from statewise.runtime.progress import announced

if TYPE_CHECKING:
    from statewise.decoding.predictor import Predictor


@dataclass(frozen=True)
class Request:
    """A decoding request: prompts, which may differ in length, and limits of their completions.

    Raises `ValueError` if the goal is empty, if a prompt is empty and there is no goal, or if `limit` is not positive.
    """

    prompts: Sequence[np.ndarray] | np.ndarray
    """(T_b,) int64 tokens of each of B prompts, or (B, T). With a goal, all may be empty."""
    limit: int
    """Maximum tokens of a completion."""
    end: int | None = None
    """The end token, if there is one; it is part of the completion."""
    goal: np.ndarray | None = None
    """(G,) tokens that should follow the completion but are not part of it; `end` is never generated before them."""
    exact: bool = False
    """Whether completions have exactly `limit` tokens, or as many as fit, and never contain `end`. With a goal they
    always do, unless there is a `closing` symbol."""
    closing: int | None = None
    """With a goal: the symbol that means that the gap before the goal is filled (`GoalScorer.closing`). It ends a
    completion and is not part of it."""
    rows: Sequence[int] | None = None
    """A number for each prompt that selects its random draws; None: 0 .. B - 1. A prompt with the same number draws the
    same, whatever else is in the batch."""
    offset: int = 0
    """Tokens of the sequences before the prompts, which the predictor has read already. Draws depend on the position in
    the whole sequence, so a completion in two requests is the one that a single request gives."""

    def __post_init__(self) -> None:
        empty = [len(prompt) == 0 for prompt in self.prompts]
        if any(empty) and (self.goal is None or not all(empty)):
            raise ValueError("the prompt is empty: it needs at least one symbol")
        if self.goal is not None and len(self.goal) == 0:
            raise ValueError("the goal is empty: give at least one symbol, or omit `goal`")
        if self.limit < 1:
            raise ValueError(f"limit must be at least 1, not {self.limit}")
        if self.closing is not None and (self.goal is None or self.exact):
            raise ValueError("a closing symbol needs a goal and completions of free length")

    @property
    def stop(self) -> int | None:
        """The token or symbol that ends a completion; None: only `limit` ends it."""
        if self.exact:
            return None
        return self.end if self.goal is None else self.closing

    @property
    def banned(self) -> int | None:
        """The token that must not be generated, if any."""
        return self.end if self.exact or self.goal is not None else None

    @property
    def numbers(self) -> np.ndarray:
        """(B,) int64: see `rows`."""
        return np.arange(len(self.prompts)) if self.rows is None else np.asarray(self.rows, np.int64)

    def completion(self, tokens: Sequence[int], log_probability: float, score: float | None = None) -> Completion:
        """A completion from generated `tokens`, which may end with `closing`; `log_probability` includes it."""
        closed = self.closing is not None and list(tokens[-1:]) == [self.closing]
        kept = np.array(tokens[:-1] if closed else tokens, np.int64)
        return Completion(kept, log_probability, score, closed)

    def single(self, row: int) -> Request:
        """The request for one of its prompts."""
        return replace(self, prompts=[self.prompts[row]], rows=[int(self.numbers[row])])

    def limits(self, context: int) -> np.ndarray:
        """(B,) maximum tokens for each prompt: `limit`, or the rest of the context after prompt and goal. Raises
        `ValueError` if there is no room."""
        lengths, G = np.array([len(prompt) for prompt in self.prompts]), 0 if self.goal is None else len(self.goal)
        longest = int(lengths.max(initial=0))
        if context <= longest:
            raise ValueError(f"the prompt has {longest} tokens, and the model's context is {context}")
        if context <= longest + G:
            raise ValueError(
                f"a goal of {G} tokens after a prompt of {longest} leaves no room in the context of {context}"
            )
        return np.minimum(self.limit, context - lengths - G)

    def padded(self) -> tuple[np.ndarray, np.ndarray]:
        """(B, T) prompts, right-padded with 0, and (B,) their lengths."""
        lengths = np.array([len(prompt) for prompt in self.prompts], np.int64)
        tokens = np.zeros((len(self.prompts), int(lengths.max(initial=0))), np.int64)
        for row, prompt in enumerate(self.prompts):
            tokens[row, : len(prompt)] = prompt
        return tokens, lengths


class Step(NamedTuple):
    """The tokens that one decoding step adds to the completions."""

    tokens: np.ndarray
    """(B, m) int64 new tokens of each row in order, including `Request.closing`, padded with -1."""
    log_probabilities: np.ndarray
    """(B, m) their log-probabilities (natural log) under the model; 0 on padding. A search knows only their sum, which
    is in the first place, even if the completion is empty."""
    drafted: np.ndarray
    """(B,) the number of them that were drafted and accepted."""
    offered: np.ndarray | None = None
    """(B,) the number of tokens drafted for this step, accepted or not; None: this decoder drafts none."""


class Decoder(ABC):
    """Turns prompts into completions. Built as `cls(config)`."""

    Config: ClassVar[type]
    """Dataclass of its fields."""
    only_speed: ClassVar[Collection[str]] = ()
    """Fields that affect speed and memory, not completions."""

    def __init__(self, config: Any) -> None:
        self.config = config

    def check_backwards(self, prompted: bool) -> None:  # noqa: B027
        """Raises `ValueError` for options that have no use in decoding backwards (`Reverse`), where the prompt is the
        goal if there is one (`prompted`); most decoders have none."""

    @abstractmethod
    def steps(self, predictor: Predictor, request: Request) -> Iterator[Step]:
        """Yields the completions step by step. Raises `ValueError` if a prompt leaves no room in the context, or if the
        predictor lacks a capability that this decoder, or a goal, needs."""

    def decode(self, predictor: Predictor, request: Request) -> list[Completion]:
        """A completion for each prompt; raises as `steps`."""
        tokens: list[list[int]] = [[] for _ in request.prompts]
        totals = np.zeros(len(tokens))
        for step in self.steps(predictor, request):
            totals += step.log_probabilities.sum(1)
            for row, new in zip(tokens, step.tokens.tolist()):
                row += [token for token in new if token >= 0]
        return [request.completion(row, float(total)) for row, total in zip(tokens, totals)]


class Search(Decoder):
    """A decoder that finds several completions of a prompt and ranks them."""

    @abstractmethod
    def search(self, predictor: Predictor, request: Request) -> list[Completion]:
        """The candidates for the single prompt of `request`, with their scores, best first; raises as `steps`."""

    def steps(self, predictor: Predictor, request: Request) -> Iterator[Step]:
        """Yields the best candidate of each prompt in turn, as one step."""
        for row in range(len(request.prompts)):
            best = self.search(predictor, request.single(row))[0]
            closing = [request.closing] if best.closed and request.closing is not None else []
            chosen = np.array([*best.tokens, *closing], np.int64)
            tokens = np.full((len(request.prompts), max(1, len(chosen))), -1, np.int64)
            gained = np.zeros(tokens.shape)
            tokens[row, : len(chosen)], gained[row, 0] = chosen, best.log_probability
            yield Step(tokens, gained, np.zeros(len(tokens), np.int64))

    def decode(self, predictor: Predictor, request: Request) -> list[Completion]:
        """The best candidate for each prompt."""
        rows = announced(range(len(request.prompts)), "searches", len(request.prompts))
        return [self.search(predictor, request.single(row))[0] for row in rows]
