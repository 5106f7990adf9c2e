"""Traces: what a model predicts and holds after each token of a sequence, as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

DIGITS = 5
"""Significant digits of numbers in JSON."""

Weighted = list[tuple[int, float]]
"""Numbers of tokens or states, each with a log-probability or a weight."""


@dataclass(frozen=True)
class Place:
    """One token of a sequence, and the model after it."""

    token: int
    log_probability: float | None
    """Log-probability of the token given those before it; None for the first one."""
    next: Weighted
    """The likeliest next tokens with their log-probabilities, likeliest first, then the other legal ones."""
    legal: list[int] | None
    """The legal next tokens; None: any, or unknown."""
    true_next: list[float] | None
    """True probabilities of the tokens in `next`; None: unknown."""
    state: tuple[float, float]
    """The belief state on the plane of `Description.plane`."""
    true: Weighted | None
    """The true state, or the belief that is exact: its coordinates by number, zeros left out; None: unknown."""
    read: Weighted | None
    """The true state as read off the belief state by least squares."""
    true_at: list[tuple[float, float]] | None = None
    """Where the exact belief is on each of `Description.planes`; None: the task has none, or it is unknown."""
    read_at: list[tuple[float, float]] | None = None
    """Where the belief read off the state is."""
    drafted: bool = False
    """Whether the token was drafted, and accepted."""
    offered: int | None = None
    """Tokens that were drafted for the pass that this token ends; None if the token ends no pass."""


@dataclass(frozen=True)
class Trace:
    """A sequence as one model sees it."""

    model: str
    prompt: int
    """Number of tokens of the prompt."""
    given: int
    """Number of tokens that were given: the prompt and the tokens forced after it."""
    places: Sequence[Place]
    goal: Sequence[int]
    """Tokens that the completion was conditioned on; empty: none."""
    finish: str
    """`stop`: the model ended the sequence; `length`: the limit was reached."""
    passes: int | None
    """Number of passes for the completion with drafts; None if nothing was drafted."""
    texts: Mapping[int, str]
    """Texts of all tokens that occur."""
    scene: Mapping[str, Any]
    """See `Task.scene`."""

    def as_json(self) -> dict[str, Any]:
        """JSON values with rounded numbers; fields of places that are None or false are left out."""
        places = [
            {name: value for name, value in vars(place).items() if value is not None and value is not False}
            for place in self.places
        ]
        texts = {str(token): text for token, text in self.texts.items()}
        content: dict[str, Any] = rounded({**vars(self), "places": places, "texts": texts})
        return content


def rounded(value: Any) -> Any:
    """JSON values with numbers of at most `DIGITS` significant digits."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, Mapping):
        return {str(key): rounded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(item) for item in value]
    return value
