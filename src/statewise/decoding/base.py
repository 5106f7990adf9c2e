"""How a trained model is asked: the predictor, the powers it may have beyond that, and the decoder.

A decoder is handed a predictor and sees no network. Powers that only some models have are types of
their own, so that a decoder can say which models it needs instead of trying.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np

from statewise.types import Batch, Carried, Completion, Hidden

if TYPE_CHECKING:
    from torch import Tensor


class Predictor(ABC):
    """Predicts the next token of B sequences at once, read so far by a cursor that only it understands."""

    vocabulary: int
    """Number V of token ids."""
    context: int
    """Longest sequence it can read."""
    reads_answers: bool = True
    """Whether the tokens of an answer bear on those after them; False: the prompt alone decides all of them."""

    @abstractmethod
    def start(self, prompts: Tensor) -> tuple[Any, Tensor]:
        """Reads `prompts` (B, T), T >= 1. Returns a cursor and the next token's logits (B, V)."""

    @abstractmethod
    def extend(self, cursor: Any, tokens: Tensor) -> Tensor:
        """Reads `tokens` (B, n) behind what the cursor has read. Returns logits (B, n, V) after each."""

    @abstractmethod
    def rewind(self, cursor: Any, positions: int) -> None:
        """Forgets the last `positions` tokens. It can come back to where `hold` was called; further than that a model
        that does not keep all that it read may raise `ValueError`."""

    def hold(self, cursor: Any) -> None:  # noqa: B027 -- most predictors keep everything anyway
        """Says that `rewind` may come back to here, however much is read until then."""

    @abstractmethod
    def reorder(self, cursor: Any, rows: Tensor) -> None:
        """Row b becomes what row `rows[b]` was; `rows` (B',) int64."""

    @abstractmethod
    def states(self, batch: Batch) -> Hidden:
        """Belief states of every position, (B, T, D)."""

    @abstractmethod
    def logits(self, batch: Batch) -> Tensor:
        """(B, T, V): the next token's logits after every position, teacher-forced."""


class Drafter(ABC):
    """A predictor that can guess several tokens ahead without running its backbone."""

    @abstractmethod
    def draft(self, cursor: Any, token: Tensor, steps: int) -> tuple[Tensor, Tensor]:
        """Guesses what follows `token` (B,), which itself comes next after what the cursor has read.

        Returns the most likely tokens (B, steps) and the logits they were taken from (B, steps, V).
        """


class FutureReader(ABC):
    """A predictor whose belief states tell the whole future by themselves: the past is not read again."""

    @abstractmethod
    def future(self, states: Tensor, tokens: Tensor) -> Tensor:
        """(M,): log-probability that the tokens (M, n), n >= 1, follow the prefixes whose states are (M, D)."""


class Traced(NamedTuple):
    """A forward pass whose every use of parameters can be followed."""

    losses: Tensor
    """(B,) nats of one token of each row, with their graph."""
    uses: Sequence[Any]
    """Each has `output` (B, S, T, d), or (B, T, d) where a place is one slot, and `weight`, broadcastable to it: the
    norm over d of (gradient at the output) * weight is that of the gradient of the parameters as used there."""


class Traceable(ABC):
    """A predictor that can tell by which uses of its parameters a loss came about."""

    @property
    @abstractmethod
    def slots(self) -> tuple[str, ...]:
        """What a place is made of: the input alone, or the input and the slot that predicts."""

    @abstractmethod
    def trace(self, tokens: Tensor, places: Tensor, source: int = 0) -> Traced:
        """Reads `tokens` (B, T) and predicts, with gradients, the token behind place `places[b]` of each row b;
        `places` (B,), each below T - 1. The rows do not differ before `source`; what is there is read once, without
        gradients: the uses are those of the places from `source` on. The vocabulary head is no use."""


class StateLimiter(ABC):
    """A predictor of which there is one that forgets."""

    @abstractmethod
    def limited(self, places: int) -> Predictor:
        """The same model, whose kept keys are read for the last `places` places only, the query's own included."""


class Carrier(ABC):
    """A predictor whose model carries a state from chunk to chunk of what it reads.

    `Hidden.state` is D wide, and behind that come the slots that the position read, `slot_count` times D.
    """

    chunk: int
    """Tokens of a chunk."""
    slot_count: int
    """Slots S of the state."""

    @abstractmethod
    def under(self, protocol: Carried, warmup: int) -> Predictor:
        """The same model, asked under another protocol: `carried`, the state comes from the chunks before; `fresh`,
        each chunk begins anew; `same-chunk`, so too, but passes `warmup` times over a chunk before it predicts it: it
        then sees what it is to predict."""

    @abstractmethod
    def keep(self, cursor: Any) -> dict[str, Tensor]:
        """What the cursor knows, to go on from later: tensors by name."""

    @abstractmethod
    def resume(self, kept: Mapping[str, Tensor]) -> Any:
        """A cursor that stands where the kept one stood. Raises `ValueError` for one of another shape of model."""


class GoalScorer(ABC):
    """A predictor that knows how to head for a goal, and how well a sequence leads to it."""

    predicts_previous: bool = True
    """Whether `score_ending` can be asked for the previous-token head."""

    @abstractmethod
    def start_towards(self, prompts: Tensor, goal: Tensor) -> tuple[Any, Tensor]:
        """`Predictor.start`, with every prediction of the cursor made in the knowledge that the sequence will end
        in `goal` (G,); with G = 0 it is `Predictor.start`."""

    @abstractmethod
    def score_goal(self, cursor: Any, goal: Tensor) -> Tensor:
        """(B,): log-likelihood of `goal` (G,), G >= 1, right behind what the cursor has read, each of its tokens
        predicted from those before and those after it (BST, equation 7). The cursor stays where it was."""

    @abstractmethod
    def score_ending(self, sequences: Tensor, count: int, head: Literal["previous", "next"]) -> Tensor:
        """(B,): log-likelihood of the last `count` tokens of `sequences` (B, T), each predicted from those before
        and those after it by the previous-token head (BST, equation 8) or by the next-token head."""


def goal_scorer(predictor: Predictor) -> GoalScorer:
    """The predictor, if it has that power. Raises `ValueError` if not."""
    if not isinstance(predictor, GoalScorer):
        raise ValueError(
            "this model cannot head for a goal or score one: of the objectives, belief_state can, if its backward is on"
        )
    return predictor


class SuffixEncoder(ABC):
    """A predictor that also keeps beliefs of what is still to come, read from the end backwards."""

    @abstractmethod
    def suffix_states(self, batch: Batch) -> Tensor:
        """(B, T, D): belief of the suffix that begins at each position; without meaning on padding."""


def suffix_encoder(predictor: Predictor) -> SuffixEncoder:
    """The predictor, if it has that power. Raises `ValueError` if not."""
    if not isinstance(predictor, SuffixEncoder):
        raise ValueError("this model has no beliefs of suffixes: of the objectives, belief_state has them")
    return predictor


class Decoder(ABC):
    """Turns prompts into completions. Built as `cls(config)`."""

    Config: ClassVar[type]
    """Dataclass of its fields."""

    config: Any
    """What it was built with."""

    @abstractmethod
    def decode(
        self,
        predictor: Predictor,
        prompts: np.ndarray,
        *,
        limit: int,
        end: int | None,
        goal: np.ndarray | None = None,
        exact: bool = False,
    ) -> list[Completion]:
        """Completes `prompts` (B, T), all of one length, by at most `limit` tokens, or up to the token `end`.

        `exact`: by exactly `limit` tokens, with `end` no choice. `goal` (G,) are tokens that shall follow the
        completion; they are not part of it, and it is then exact. Raises `ValueError` if the
        predictor lacks a power that this decoder needs, or if a goal is given to one that cannot head for it.
        """


class Search(Decoder):
    """A decoder that finds several completions of a prompt and ranks them."""

    @abstractmethod
    def search(
        self,
        predictor: Predictor,
        prompt: np.ndarray,
        *,
        limit: int,
        end: int | None,
        goal: np.ndarray | None = None,
        exact: bool = False,
    ) -> list[Completion]:
        """The candidates for one `prompt` (T,), with their scores, best first; else as `decode`."""

    def decode(
        self,
        predictor: Predictor,
        prompts: np.ndarray,
        *,
        limit: int,
        end: int | None,
        goal: np.ndarray | None = None,
        exact: bool = False,
    ) -> list[Completion]:
        """The best candidate for each prompt."""
        return [self.search(predictor, prompt, limit=limit, end=end, goal=goal, exact=exact)[0] for prompt in prompts]


def room_for(prompts: np.ndarray, limit: int, context: int, goal: np.ndarray | None = None) -> int:
    """How many tokens may be generated: `limit`, or what prompt (..., T) and goal (G,) leave of the context.

    Raises `ValueError` if that is nothing, if a prompt or the goal is empty, or if `limit` is not positive.
    """
    T, G = prompts.shape[-1], 0 if goal is None else len(goal)
    if T == 0:
        raise ValueError("the prompt is empty: it needs at least one symbol")
    if goal is not None and G == 0:
        raise ValueError("the goal is empty: give at least one symbol, or leave --goal away")
    if context <= T:
        raise ValueError(f"the prompt has {T} tokens, and the model's context is {context}")
    if context <= T + G:
        raise ValueError(f"a goal of {G} tokens behind a prompt of {T} leaves no room in the context of {context}")
    if limit < 1:
        raise ValueError(f"limit must be at least 1, not {limit}")
    return min(limit, context - T - G)
