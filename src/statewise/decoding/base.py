"""What a decoder is asked for, and what it is: prompts to completions, through a predictor. It sees no network."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np

from statewise.decoding.predictor import Predictor
from statewise.types import Completion


@dataclass(frozen=True)
class Request:
    """What a decoder is asked for: completions of prompts, which may differ in length.

    Raises `ValueError` if a prompt or the goal is empty, or if `limit` is not positive.
    """

    prompts: Sequence[np.ndarray] | np.ndarray
    """(T_b,) int64 tokens of each of B prompts, or (B, T)."""
    limit: int
    """Most tokens of a completion."""
    end: int | None = None
    """The token that ends a completion, if there is one; a completion holds it."""
    goal: np.ndarray | None = None
    """(G,) tokens that shall follow the completion. They are not part of it, and it is then exact."""
    exact: bool = False
    """Whether completions have exactly `limit` tokens, or as many as fit, with `end` no choice."""
    rows: Sequence[int] | None = None
    """A number for each prompt, by which its draws are told from those of others; None: 0 .. B - 1. With the same
    number it draws the same, whatever it is decoded beside."""

    def __post_init__(self) -> None:
        if any(len(prompt) == 0 for prompt in self.prompts):
            raise ValueError("the prompt is empty: it needs at least one symbol")
        if self.goal is not None and len(self.goal) == 0:
            raise ValueError("the goal is empty: give at least one symbol, or leave --goal away")
        if self.limit < 1:
            raise ValueError(f"limit must be at least 1, not {self.limit}")

    @property
    def stop(self) -> int | None:
        """The token behind which a completion ends; None: only its length ends it."""
        return None if self.exact or self.goal is not None else self.end

    @property
    def banned(self) -> int | None:
        """The token that is no choice."""
        return self.end if self.exact or self.goal is not None else None

    @property
    def numbers(self) -> np.ndarray:
        """(B,) int64: see `rows`."""
        return np.arange(len(self.prompts)) if self.rows is None else np.asarray(self.rows, np.int64)

    def single(self, row: int) -> Request:
        """The same for one of its prompts."""
        return replace(self, prompts=[self.prompts[row]], rows=[int(self.numbers[row])])

    def limits(self, context: int) -> np.ndarray:
        """(B,) tokens that may be generated for each prompt: `limit`, or what prompt and goal leave of the context.
        Raises `ValueError` if that is nothing."""
        lengths, G = np.array([len(prompt) for prompt in self.prompts]), 0 if self.goal is None else len(self.goal)
        longest = int(lengths.max(initial=0))
        if context <= longest:
            raise ValueError(f"the prompt has {longest} tokens, and the model's context is {context}")
        if context <= longest + G:
            raise ValueError(
                f"a goal of {G} tokens behind a prompt of {longest} leaves no room in the context of {context}"
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
    """What one step of decoding adds to the completions."""

    tokens: np.ndarray
    """(B, m) int64 tokens of each row in order, -1 behind its last new one."""
    log_probabilities: np.ndarray
    """(B, m) natural logs of the probabilities that the model gave to them; 0 where there is none."""
    drafted: np.ndarray
    """(B,) how many of them were drafted and accepted, rather than chosen from the model's own distribution."""


class Decoder(ABC):
    """Turns prompts into completions. Built as `cls(config)`."""

    Config: ClassVar[type]
    """Dataclass of its fields."""

    def __init__(self, config: Any) -> None:
        self.config = config

    @abstractmethod
    def steps(self, predictor: Predictor, request: Request) -> Iterator[Step]:
        """The completions, as they come about. Raises `ValueError` if a prompt leaves no room in the context, if the
        predictor lacks a power that this decoder needs, or if there is a goal and the predictor can predict towards
        none."""

    def decode(self, predictor: Predictor, request: Request) -> list[Completion]:
        """A completion for each prompt; raises as `steps`."""
        tokens: list[list[int]] = [[] for _ in request.prompts]
        totals = np.zeros(len(tokens))
        for step in self.steps(predictor, request):
            totals += step.log_probabilities.sum(1)
            for row, new in zip(tokens, step.tokens.tolist()):
                row += [token for token in new if token >= 0]
        return [Completion(np.array(row, np.int64), float(total)) for row, total in zip(tokens, totals)]


class Search(Decoder):
    """A decoder that finds several completions of a prompt and ranks them."""

    @abstractmethod
    def search(self, predictor: Predictor, request: Request) -> list[Completion]:
        """The candidates for the one prompt of `request`, with their scores, best first; raises as `steps`."""

    def steps(self, predictor: Predictor, request: Request) -> Iterator[Step]:
        """The best candidate of one prompt after the other, each as a whole."""
        for row in range(len(request.prompts)):
            best = self.search(predictor, request.single(row))[0]
            tokens = np.full((len(request.prompts), len(best.tokens)), -1, np.int64)
            gained = np.zeros(tokens.shape)
            tokens[row], gained[row, :1] = best.tokens, best.log_probability
            yield Step(tokens, gained, np.zeros(len(tokens), np.int64))

    def decode(self, predictor: Predictor, request: Request) -> list[Completion]:
        """The best candidate for each prompt."""
        return [self.search(predictor, request.single(row))[0] for row in range(len(request.prompts))]
