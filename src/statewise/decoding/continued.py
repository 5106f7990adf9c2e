"""Decoding that goes on from a kept state, and can be gone on from."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, get_args

import torch
from torch import Tensor

from statewise.decoding.base import Carrier, Predictor
from statewise.types import Batch, Carried, Completion, Hidden


def carrier(predictor: Predictor) -> Carrier:
    """The predictor, if it has that power. Raises `ValueError` if not."""
    if not isinstance(predictor, Carrier):
        raise ValueError(
            "this model carries no state that can be asked for: those of the backbone belief_slots do, with the "
            "objectives next_token and next_latent"
        )
    return predictor


def under(predictor: Predictor, protocol: Carried, warmup: int | None = None) -> Predictor:
    """The predictor, asked under a protocol; `warmup` goes with `same-chunk` and is 1 there unless it is given. Raises
    `ValueError` for an unknown protocol, for passes that would let another one see its targets, or for a predictor
    without a state."""
    if protocol not in get_args(Carried):
        raise ValueError(f"unknown protocol {protocol!r}: {', '.join(get_args(Carried))}")
    if warmup is not None and protocol != "same-chunk":
        raise ValueError("a warm-up passes over the chunk itself: that is the protocol same-chunk")
    if warmup is not None and warmup < 1:
        raise ValueError(f"the warm-up must be at least 1 pass, not {warmup}")
    passes = 1 if warmup is None else warmup
    return carrier(predictor).under(protocol, passes if protocol == "same-chunk" else 0)


class Continued(Predictor):
    """A predictor whose one sequence begins where a kept one stood, and which can say where it stands in the end.

    Only for decoders that read one sequence straight on: those that search would leave other branches behind.
    """

    def __init__(self, predictor: Predictor, kept: Mapping[str, Tensor] | None) -> None:
        """`kept`: what `state` gave; None: from the beginning. Raises `ValueError` for a predictor without a state."""
        self.predictor, self.carrier, self.kept = predictor, carrier(predictor), kept
        self.vocabulary, self.context = predictor.vocabulary, sys.maxsize
        self._cursor: Any = None
        self._read = 0

    def start(self, prompts: Tensor) -> tuple[Any, Tensor]:
        """See `Predictor.start`; of one row, which begins with what was pending."""
        assert len(prompts) == 1
        self._read = prompts.shape[1]
        if self.kept is None:
            self._cursor, logits = self.predictor.start(prompts)
        else:
            self._cursor = self.carrier.resume({name: kept for name, kept in self.kept.items() if name != "pending"})
            logits = self.predictor.extend(self._cursor, prompts)[:, -1]
        return self._cursor, logits

    def extend(self, cursor: Any, tokens: Tensor) -> Tensor:
        """See `Predictor.extend`."""
        self._read += tokens.shape[1]
        return self.predictor.extend(cursor, tokens)

    def rewind(self, cursor: Any, positions: int) -> None:
        """See `Predictor.rewind`."""
        self._read -= positions
        self.predictor.rewind(cursor, positions)

    def reorder(self, cursor: Any, rows: Tensor) -> None:
        """Raises `ValueError`: there is one sequence."""
        raise ValueError("a kept state goes with decoders that read straight on: greedy and sample")

    def states(self, batch: Batch) -> Hidden:
        """See `Predictor.states`."""
        return self.predictor.states(batch)

    def logits(self, batch: Batch) -> Tensor:
        """See `Predictor.logits`."""
        return self.predictor.logits(batch)

    def state(self, prompt_length: int, completion: Completion) -> dict[str, Tensor]:
        """Where the sequence stands behind a completion. What of it was not read any more is `pending` (m,), m >= 1:
        who goes on reads it before anything else."""
        pending = torch.from_numpy(completion.tokens[self._read - prompt_length :])
        return {**self.carrier.keep(self._cursor), "pending": pending}
