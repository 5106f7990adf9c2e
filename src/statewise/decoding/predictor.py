"""How a trained model is asked: the predictor, and the powers that it may have beyond that.

Powers that only some models have are types of their own, so that a decoder can say which models it needs instead of
trying.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from statewise.carried_state.protocol import StateProtocol
from statewise.types import Batch, Hidden, LacksPower

if TYPE_CHECKING:
    from torch import Tensor


class Predictor(ABC):
    """Predicts the next token of B sequences at once, read so far by a cursor that only it understands."""

    vocabulary: int
    """Number V of token ids."""
    context: int
    """Longest sequence it can read."""
    state_is_last: bool = True
    """Whether the state that `states` gives is the last layer's output; False: it is what several last layers read."""
    reads_answers: bool = True
    """Whether the tokens of an answer bear on those after them; False: the prompt alone decides all of them."""

    @abstractmethod
    def start(self, prompts: Tensor, counts: np.ndarray | None = None) -> tuple[Any, Tensor]:
        """Reads `prompts` (B, T), of row b the first `counts[b]` >= 1 tokens; None: all. Returns a cursor and the next
        token's logits (B, V)."""

    @abstractmethod
    def extend(self, cursor: Any, tokens: Tensor, counts: np.ndarray | None = None) -> Tensor:
        """Reads `tokens` (B, n) behind what the cursor has read, of row b the first `counts[b]` >= 0; None: all.
        Returns logits (B, n, V) after each, without meaning behind those."""

    @abstractmethod
    def rewind(self, cursor: Any, positions: int | np.ndarray) -> None:
        """Forgets the last `positions` tokens of every row, or `positions[b]` of row b. It can always return to where
        `hold` was called; further than that a model that does not keep all that it read may raise `ValueError`."""

    def hold(self, cursor: Any) -> None:  # noqa: B027 -- a predictor may keep everything anyway
        """Pins this position, so that later `rewind` calls can return to it, however much is read until then."""

    def release(self, cursor: Any) -> None:  # noqa: B027 -- as above
        """Takes `hold` back."""

    @abstractmethod
    def join(self, cursor: Any, other: Any) -> None:
        """Adds the rows of another cursor behind those of `cursor`; `other` must not be used any more."""

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
    """Each has `output` (B, S, T, d), or (B, T, d) where a place is one stream, and `weight`, broadcastable to it: the
    norm over d of (gradient at the output) * weight is that of the gradient of the parameters as used there."""


class Traceable(ABC):
    """A predictor that can tell by which uses of its parameters a loss came about."""

    @property
    @abstractmethod
    def streams(self) -> tuple[Literal["input", "prediction"], ...]:
        """What a place is made of: the input alone, or the input and the stream that predicts."""

    @abstractmethod
    def trace(self, tokens: Tensor, places: Tensor, source: int = 0) -> Traced:
        """Reads `tokens` (B, T) and predicts, with gradients, the token behind place `places[b]` of each row b;
        `places` (B,), each below T - 1. The rows do not differ before `source`; what is there is read once, without
        gradients: the uses are those of the places from `source` on. The vocabulary head is no use."""


class Fetcher(Predictor):
    """A predictor whose predictions attend to the inputs of their own positions."""

    @property
    @abstractmethod
    def streams(self) -> tuple[Literal["input", "prediction"], ...]:
        """What a place is made of, as the model stands; without a prediction `fetches` raises `ValueError`."""

    @abstractmethod
    def fetches(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """(B, T, L, H): the attention weight of each position's prediction on its own input, by layer and head; and
        (B, T): how many keys the prediction reads. Without meaning on padding."""


class StateLimiter(ABC):
    """A predictor of which there is one that forgets."""

    @abstractmethod
    def limited(self, places: int) -> Predictor:
        """The same model, whose kept keys are read for `places` places onwards, as a window's are: at their own place
        and at so many behind it."""


class Carrier(ABC):
    """A predictor whose model carries a state from chunk to chunk of what it reads.

    `Hidden.state` is D wide, and behind that come the slots that the position read, `slot_count` times D.
    """

    chunk: int
    """Tokens of a chunk."""
    slot_count: int
    """Slots S of the state."""

    @abstractmethod
    def under(self, protocol: StateProtocol, warmup: int) -> Predictor:
        """The same model, asked under another protocol, with so many passes over a chunk before it counts."""

    @abstractmethod
    def chunk_logits(self, tokens: Tensor) -> Iterator[Tensor]:
        """The next token's logits after every one of `tokens` (B, T), however many these are: (B, n, V) of one chunk
        after the other, teacher-forced, under the protocol."""

    @abstractmethod
    def keep(self, cursor: Any) -> dict[str, Tensor]:
        """What the cursor knows, to go on from later: tensors by name."""

    @abstractmethod
    def resume(self, kept: Mapping[str, Tensor]) -> Any:
        """A cursor that stands where the kept one stood. Raises `ValueError` for one of another shape of model."""


def carrier(predictor: Predictor) -> Carrier:
    """The predictor, if it has that power. Raises `ValueError` if not."""
    if not isinstance(predictor, Carrier):
        raise LacksPower("a carried state needs a model that carries one from chunk to chunk", Carrier)
    return predictor


class GoalScorer(ABC):
    """A predictor that can predict towards a goal, and say how likely a sequence leads to it."""

    predicts_previous: bool = True
    """Whether `score_ending` can be asked for the previous-token head."""

    @abstractmethod
    def start_with_goal(self, prompts: Tensor, goal: Tensor, counts: np.ndarray | None = None) -> tuple[Any, Tensor]:
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
        raise LacksPower("a goal needs a model that can head for it and score it", GoalScorer)
    return predictor


class SuffixEncoder(ABC):
    """A predictor that also keeps beliefs of what is still to come, read from the end backwards."""

    @abstractmethod
    def suffix_states(self, batch: Batch) -> Tensor:
        """(B, T, D): belief of the suffix that begins at each position; without meaning on padding."""


def suffix_encoder(predictor: Predictor) -> SuffixEncoder:
    """The predictor, if it has that power. Raises `ValueError` if not."""
    if not isinstance(predictor, SuffixEncoder):
        raise LacksPower("beliefs of suffixes need a model that reads backwards as well", SuffixEncoder)
    return predictor
