"""Evaluation protocols of models that carry a state from chunk to chunk."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple, get_args

from statewise.runtime.messages import short

StateProtocol = Literal["carried", "fresh", "same-chunk"]
"""The state with which a chunk is read:
- `carried`: the state after the preceding chunks;
- `fresh`: the initial state, for every chunk;
- `same-chunk`: the initial state, updated by some passes over the chunk itself. The state has then seen the tokens that
  it helps to predict, so the loss is not a likelihood."""
MOST_PASSES = 100
"""The most passes over a chunk before the one that counts."""
PROTOCOLS: tuple[StateProtocol, ...] = get_args(StateProtocol)


class StateReading(NamedTuple):
    """How chunks are read: a protocol, and its number of passes over a chunk before the one that counts, which is 0
    except for `same-chunk`."""

    protocol: StateProtocol
    passes: int

    @property
    def label(self) -> str:
        """The name in tables and reports."""
        return f"{self.protocol}, {self.passes} pass{'es' * (self.passes > 1)}" if self.passes else self.protocol


def state_reading(protocol: StateProtocol, warmup: int | None = None) -> StateReading:
    """A protocol with its passes; `warmup` is for `same-chunk` only, where the default is 1.

    Raises `ValueError` for an unknown protocol, and for `warmup` with another protocol.
    """
    if protocol not in PROTOCOLS:
        raise ValueError(f"unknown protocol {protocol!r}: {', '.join(PROTOCOLS)}")
    if warmup is not None and protocol != "same-chunk":
        raise ValueError("a warm-up reads the chunk itself: use the protocol same-chunk")
    if warmup is not None and not 1 <= warmup <= MOST_PASSES:
        raise ValueError(f"the warm-up must be 1 to {MOST_PASSES:,} passes, not {short(warmup)}")
    return StateReading(protocol, (1 if warmup is None else warmup) if protocol == "same-chunk" else 0)


def state_readings(chosen: str | None, warmup: int | None) -> list[StateReading]:
    """A reading under the protocol `chosen`, or under every protocol for `all` and None; `warmup` is for `same-chunk`.
    Raises as `state_reading`."""
    if chosen not in (None, "all"):
        return [state_reading(chosen, warmup)]  # type: ignore[arg-type]
    return [state_reading(protocol, warmup if protocol == "same-chunk" else None) for protocol in PROTOCOLS]


def seeing_targets(labels: Iterable[str]) -> list[str]:
    """The labels of protocols under which the state has seen the tokens that it helps to predict."""
    return [label for label in labels if label.startswith("same-chunk")]
