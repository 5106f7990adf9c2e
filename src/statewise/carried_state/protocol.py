"""How a model that carries a state from chunk to chunk is asked: three protocols with names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple, get_args

StateProtocol = Literal["carried", "fresh", "same-chunk"]
"""Where the state comes from with which a chunk is read:
- `carried`: from the chunks before, in order;
- `fresh`: every chunk begins with the initial state;
- `same-chunk`: so too, and before it counts, the chunk is passed over some times, each pass renewing the state. What
  the state then helps to predict, it has seen: the loss is no likelihood."""
PROTOCOLS: tuple[StateProtocol, ...] = get_args(StateProtocol)


class Asked(NamedTuple):
    """A protocol and its passes over a chunk before it counts; 0 but with `same-chunk`."""

    protocol: StateProtocol
    passes: int

    @property
    def label(self) -> str:
        """What tables and reports call it."""
        return f"{self.protocol}, {self.passes} pass{'es' * (self.passes > 1)}" if self.passes else self.protocol


def ask(protocol: StateProtocol, warmup: int | None = None) -> Asked:
    """A protocol with its passes; `warmup` goes with `same-chunk` and is 1 there unless it is given.

    Raises `ValueError` for an unknown protocol, and for passes that would let another one see its targets.
    """
    if protocol not in PROTOCOLS:
        raise ValueError(f"unknown protocol {protocol!r}: {', '.join(PROTOCOLS)}")
    if warmup is not None and protocol != "same-chunk":
        raise ValueError("a warm-up passes over the chunk itself: that is the protocol same-chunk")
    if warmup is not None and warmup < 1:
        raise ValueError(f"the warm-up must be at least 1 pass, not {warmup}")
    return Asked(protocol, (1 if warmup is None else warmup) if protocol == "same-chunk" else 0)


def ask_each(chosen: str | None, warmup: int | None) -> list[Asked]:
    """The protocol `chosen`, or of `all` and None each; `warmup` passes with `same-chunk`. Raises as `ask`."""
    if chosen not in (None, "all"):
        return [ask(chosen, warmup)]  # type: ignore[arg-type]
    return [ask(protocol, warmup if protocol == "same-chunk" else None) for protocol in PROTOCOLS]


def seeing_targets(labels: Iterable[str]) -> list[str]:
    """Of the labels of protocols those under which the state has seen what it helps to predict."""
    return [label for label in labels if label.startswith("same-chunk")]
