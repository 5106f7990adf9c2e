"""The inference interface of trained models: the predictor, and what only some models can do, a type each.

`require(predictor, Drafter)` gives a decoder what it needs, or raises the error for models that cannot do that.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, TypeVar

import numpy as np

from statewise.runtime.messages import LacksCapability

if TYPE_CHECKING:
    from torch import Tensor

    from statewise.batch import Batch, Hidden
    from statewise.decoding.carried_state import StateProtocol


class Capability(ABC):
    """What some predictors can do and others cannot."""

    needed: ClassVar[str]
    """The error message if a predictor lacks it: what needs which kind of model."""


Kind = TypeVar("Kind", bound=Capability)


class Predictor(ABC):
    """Predicts the next token of B sequences at once; what was read so far is in a cursor private to the predictor."""

    vocabulary: int
    """Number V of token ids."""
    context: int
    """Longest sequence it can read."""
    state_is_last: bool = True
    """Whether the state of `states` is the last layer's output; False: it is the input of several last layers."""
    reads_answers: bool = True
    """Whether an answer's tokens affect predictions of later ones; False: all depend on the prompt alone."""

    @abstractmethod
    def start(self, prompts: Tensor, counts: np.ndarray | None = None) -> tuple[Any, Tensor]:
        """Reads `prompts` (B, T), the first `counts[b]` >= 1 tokens of row b; None: all. Returns a cursor and the next
        token's logits (B, V)."""

    @abstractmethod
    def extend(self, cursor: Any, tokens: Tensor, counts: np.ndarray | None = None) -> Tensor:
        """Reads further `tokens` (B, n), the first `counts[b]` >= 0 of row b; None: all. Returns the logits (B, n, V)
        after each token; those at unread tokens are meaningless."""

    @abstractmethod
    def rewind(self, cursor: Any, positions: int | np.ndarray) -> None:
        """Forgets the last `positions` tokens of every row, or `positions[b]` of row b. It can always return to where
        `hold` was called; beyond that, models that do not keep everything may raise `ValueError`."""

    def hold(self, cursor: Any) -> None:  # noqa: B027 -- a predictor may keep everything anyway
        """Pins this position, so that later `rewind` calls can return to it, no matter how much is read in between."""

    def release(self, cursor: Any) -> None:  # noqa: B027 -- as above
        """Undoes `hold`."""

    @abstractmethod
    def join(self, cursor: Any, other: Any) -> None:
        """Appends the rows of another cursor to `cursor`; `other` must not be used afterwards."""

    @abstractmethod
    def reorder(self, cursor: Any, rows: Tensor) -> None:
        """Replaces row b by the former row `rows[b]`; `rows` (B',) int64."""

    @abstractmethod
    def states(self, batch: Batch) -> Hidden:
        """Belief states of every position, (B, T, D)."""

    @abstractmethod
    def logits(self, batch: Batch) -> Tensor:
        """(B, T, V): the teacher-forced logits of the next token after every position."""

    def capability(self, kind: type[Kind]) -> Kind | None:
        """The object with the methods of `kind`, for this predictor and its cursors; None: the model cannot do that."""
        return self if isinstance(self, kind) else None


def require(predictor: Predictor, kind: type[Kind]) -> Kind:
    """`Predictor.capability`. Raises `LacksCapability`, a `ValueError`, if the model cannot do that."""
    able = predictor.capability(kind)
    if able is None:
        raise LacksCapability(kind.needed, kind)
    return able


class Drafter(Capability):
    """A predictor that can guess several tokens ahead without running its backbone."""

    needed = "drafts need a model that can guess several tokens ahead (with `drafter` prompt_lookup, any model)"

    @abstractmethod
    def guesses(self, cursor: Any, token: Tensor, among: Tensor | None = None) -> Generator[Tensor, Tensor, None]:
        """Guesses the tokens after `token` (B,), which itself follows what the cursor has read, one place at a time:
        yields the logits (B, V) of a place, or (B, K), those of the tokens `among` (K,) only, and is sent the tokens
        (B,) chosen there. Ends where the model cannot guess any further. Does not move the cursor. Logits of a place
        may be less precise than those of `extend`."""


class FutureReader(Capability):
    """A predictor that can predict the whole future from a belief state alone, without rereading the past."""

    needed = "decoding the future from a state alone needs a model trained for it"

    @abstractmethod
    def future(self, states: Tensor, tokens: Tensor) -> Tensor:
        """(M,): log-probability that the tokens (M, n), n >= 1, follow the prefixes whose states are (M, D)."""

    @abstractmethod
    def read_future(self, states: Tensor, count: int) -> Tensor:
        """(M, count): the `count` >= 1 last tokens of sequences, decoded greedily from the states (M, D) of the
        prefixes before them."""


class StateDynamics(Capability):
    """A predictor whose model has learned how a token changes the state."""

    needed = "rolling states along tokens needs a model with latent dynamics"

    @abstractmethod
    def advance(self, states: Tensor, tokens: Tensor) -> Tensor:
        """(M, E): the states predicted after the tokens (M,), from the states (M, E) before them."""

    @abstractmethod
    def read_states(self, states: Tensor) -> Tensor:
        """(M, V): logits of the next token, read off states (M, E) that `advance` returned. What the model itself
        predicts is `Predictor.logits`."""


class Traced(NamedTuple):
    """A forward pass that records every use of parameters."""

    losses: Tensor
    """(B,) nats of one token of each row, with their autograd graph."""
    uses: Sequence[Any]
    """Each has `output` (B, S, T, d), or (B, T, d) where a place is one stream, and `weight`, broadcastable to it: the
    norm over d of (gradient at the output) * weight is that of the gradient of the parameters as used there."""


class Traceable(Capability):
    """A predictor that can attribute a loss's gradient to single uses of its parameters."""

    needed = "gradient-ratio needs a model whose every use of parameters can be traced"

    @property
    @abstractmethod
    def streams(self) -> tuple[Literal["input", "prediction"], ...]:
        """The streams of each place: the input alone, or the input and the predicting stream."""

    @abstractmethod
    def trace(self, tokens: Tensor, places: Tensor, source: int = 0) -> Traced:
        """Reads `tokens` (B, T) and predicts, with gradients, the token after place `places[b]` of each row b;
        `places` (B,), each below T - 1. Rows must be equal before `source`; that part is read once, without gradients:
        only uses at places from `source` on are recorded. The vocabulary head does not count as a use."""


class Fetcher(Capability):
    """A predictor whose predictions attend to the inputs of their own positions."""

    needed = "fetch needs a model whose predictions attend to their own inputs"

    @property
    @abstractmethod
    def streams(self) -> tuple[Literal["input", "prediction"], ...]:
        """What a place is made of, as the model stands; without a prediction `fetches` raises `ValueError`."""

    @abstractmethod
    def fetches(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """(B, T, L, H): the attention weight of each position's prediction on its own input, by layer and head; and
        (B, T): how many keys the prediction reads. Without meaning on padding."""


class StateLimiter(Capability):
    """A predictor whose memory can be limited."""

    needed = "restricted-state needs a model whose kept state can be limited"

    @abstractmethod
    def limited(self, places: int) -> Predictor:
        """This model with a window: kept keys are read at their own place and at the `places` places after it."""


class Carrier(Capability):
    """A predictor whose model carries a state from chunk to chunk.

    `Hidden.state` has D features, followed by the slots that the position read, `slot_count` times D.
    """

    needed = "a carried state needs a model that carries one from chunk to chunk"

    chunk: int
    """Tokens per chunk."""
    slot_count: int
    """Slots S of the state."""

    @abstractmethod
    def under(self, protocol: StateProtocol, warmup: int) -> Predictor:
        """This model under another protocol, with `warmup` passes over each chunk before the one that counts."""

    @abstractmethod
    def chunk_logits(self, tokens: Tensor) -> Iterator[Tensor]:
        """Teacher-forced logits of the next token after each of `tokens` (B, T), for any T: (B, n, V) chunk by chunk,
        under the protocol."""

    @abstractmethod
    def keep(self, cursor: Any) -> dict[str, Tensor]:
        """The cursor's state, to resume from later: tensors by name."""

    @abstractmethod
    def resume(self, kept: Mapping[str, Tensor]) -> Any:
        """A cursor restored from a kept one. Raises `ValueError` if it belongs to a model of another shape."""


class GoalScorer(Capability):
    """A predictor that can condition on a goal, and score how likely a sequence reaches it."""

    needed = "a goal, or goal_search, needs a model that can condition on a goal and score it"

    predicts_previous: bool = True
    """Whether `score_ending` supports the previous-token head."""
    closing: int | None = None
    """V, the id of the closing symbol, which means that the gap before the goal is filled; None: the model has none.
    Rows that are finished may read it."""

    @abstractmethod
    def start_with_goal(
        self, prompts: Tensor, goal: Tensor, counts: np.ndarray | None = None, *, may_close: bool = False
    ) -> tuple[Any, Tensor]:
        """`Predictor.start`, with every prediction of the cursor conditioned on the sequence ending in `goal` (G,);
        with G = 0 it is `Predictor.start`. Prompts may be empty (T = 0). `may_close`: the cursor's logits include that
        of `closing`, (..., V + 1)."""

    @abstractmethod
    def score_goal(self, cursor: Any, goal: Tensor) -> Tensor:
        """(B,): log-likelihood of `goal` (G,), G >= 1, directly after what the cursor has read, each of its tokens
        predicted from those before and those after it (BST, equation 7). Does not move the cursor."""

    @abstractmethod
    def score_ending(self, sequences: Tensor, count: int, head: Literal["previous", "next"]) -> Tensor:
        """(B,): log-likelihood of the last `count` tokens of `sequences` (B, T), each predicted from those before
        and those after it by the previous-token head (BST, equation 8) or by the next-token head."""


def start_conditioned(
    predictor: Predictor,
    prompts: Tensor,
    goal: Tensor | None,
    counts: np.ndarray | None = None,
    *,
    may_close: bool = False,
) -> tuple[Any, Tensor]:
    """`GoalScorer.start_with_goal`, or without a goal `Predictor.start`. Raises `ValueError` if the predictor cannot
    condition on goals."""
    if goal is None:
        return predictor.start(prompts, counts)
    scorer = require(predictor, GoalScorer)
    if may_close:
        return scorer.start_with_goal(prompts, goal, counts, may_close=True)
    return scorer.start_with_goal(prompts, goal, counts)


def closing_symbol(predictor: Predictor) -> int:
    """`GoalScorer.closing`. Raises `ValueError` if the predictor has none."""
    closing = require(predictor, GoalScorer).closing
    if closing is None:
        raise ValueError(
            "this model has no closing symbol, so completions before a goal have a fixed length: train belief_state "
            "with --objective.min_gap 1, or stories with --task.encoding fill_in_the_middle"
        )
    return closing


class Reversible(Capability):
    """A predictor whose model also predicts previous tokens."""

    needed = "decoding backwards needs a model that predicts previous tokens"

    @abstractmethod
    def backwards(self) -> Predictor:
        """A `GoalScorer` that predicts previous tokens. Its sequences are in reverse order: its prompt is a suffix,
        which may be empty, and its goal a prefix."""


class SuffixEncoder(Capability):
    """A predictor that also has belief states of suffixes, read from the end backwards."""

    needed = "beliefs of suffixes need a model that reads backwards as well"

    @abstractmethod
    def suffix_states(self, batch: Batch) -> Tensor:
        """(B, T, D): belief state of the suffix that starts at each position; meaningless on padding."""
