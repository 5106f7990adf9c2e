"""Sequences that are being generated, and requests that wait for them.

The engine's thread writes to rows, the asyncio thread reads them: what a reader needs is set before the flag that tells
it to look (`Row.released`, `Row.finish`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from statewise.decoding.base import Request
from statewise.decoding.sample import SampleConfig
from statewise.deploy.serving.refusals import Refusal
from statewise.deploy.serving.text import Stops, Transcript

Alternatives = list[tuple[int, float]]
"""Likely tokens with their log-probabilities, likeliest first."""


@dataclass(frozen=True)
class DecodingOptions:
    """How the rows of a request are generated."""

    sampling: SampleConfig | None
    """None: the most likely token at every step."""
    seed: int
    """Seed of the draws; each draw also depends on the row's number and the position."""
    stops: Stops
    alternatives: int | None
    """How many likely tokens to report at each place; None: no log-probabilities are wanted."""
    echo: bool
    """Whether the text begins with the prompt."""

    @property
    def scores_prompts(self) -> bool:
        """Whether the log-probabilities of the prompt's tokens are wanted."""
        return self.echo and self.alternatives is not None


class ShownToken(NamedTuple):
    """A token of a row's text."""

    token: int
    log_probability: float | None
    """Log-probability given the tokens before; None for the first token of a sequence."""
    alternatives: Alternatives


class Row:
    """One sequence: a prompt and its completion so far."""

    def __init__(
        self, request: Request, prompt: np.ndarray, limit: int, decoding: DecodingOptions, transcript: Transcript
    ) -> None:
        """`request` has one prompt, what the model reads; `prompt` is the part of it that the user wrote. At most
        `limit` tokens are generated."""
        self.request, self.prompt, self.limit, self.decoding = request, prompt, limit, decoding
        self.transcript = transcript
        self.tokens: list[int] = []
        """Generated tokens, with the one that ended the row."""
        self.shown: list[ShownToken] = []
        """Tokens of the text, in order, with log-probabilities if they are wanted."""
        self.text = ""
        """The text so far."""
        self.released = 0
        """The number of its characters that will not change."""
        self.finish: Literal["stop", "length"] | None = None
        self.stopped_by = ""
        """The stop string that ended the text, if one did."""
        self.cancelled = False
        self.ticket: Ticket | None = None
        self.submitted = time.monotonic()
        self.last_token_at = 0.0
        self.counted = 0
        """The number of `tokens` that the metrics have counted."""
        self._begin = 0
        if decoding.echo:
            for token in prompt.tolist():
                transcript.add(token)
            self._begin = len(transcript.text)
            self.text = transcript.text

    @property
    def ended(self) -> bool:
        """Whether no further token is wanted."""
        return self.finish is not None or self.cancelled

    @property
    def number(self) -> int:
        """The row's number, which selects its draws."""
        return int(self.request.numbers[0])

    @property
    def read(self) -> np.ndarray:
        """(t,) tokens that the model reads before it generates."""
        return self.request.prompts[0]

    @property
    def position(self) -> int:
        """The number of tokens before the next one, in the whole sequence."""
        return self.request.offset + len(self.read) + len(self.tokens)

    def fail(self, refusal: Refusal) -> None:
        """Ends the row, and all others of its request, with an error."""
        self.cancelled = self.finish is None
        if self.ticket is not None:
            self.ticket.fail(refusal)

    def score_prompt(self, scores: Sequence[ShownToken]) -> None:
        """Takes the scores of all tokens read, in order."""
        self.shown += scores[len(scores) - len(self.prompt) :] if len(self.prompt) else ()

    def finish_without_tokens(self) -> None:
        """Ends a row whose request wants only the prompt."""
        self._close("length")

    def add(self, token: int, log_probability: float, alternatives: Alternatives) -> None:
        """Appends a generated token, and ends the row if this is the last one."""
        self.tokens.append(token)
        request = self.request
        if token == request.stop:
            self._close("stop")
            return
        before = len(self.text)
        self.transcript.add(token)
        if self.decoding.alternatives is not None:
            self.shown.append(ShownToken(token, log_probability, alternatives))
        self._look(before)
        if self.finish is None and len(self.tokens) == self.limit:
            self._close("length")

    def _look(self, before: int) -> None:
        """Looks for stop strings in the text, of which `before` characters were searched."""
        text, stops = self.transcript.text, self.decoding.stops
        self.text = text
        place = stops.find(text, self._begin, before)
        if place is None:
            self.released = stops.settled(text, self._begin)
            return
        self.stopped_by = next(stop for stop in stops.stops if text.startswith(stop, place))
        self.text, self.released = text[:place], place
        del self.shown[sum(offset < place for offset in self.transcript.offsets) :]
        self.finish = "stop"

    def _close(self, why: Literal["stop", "length"]) -> None:
        before = len(self.text)
        self.transcript.close()
        self._look(before)
        if self.finish is None:
            self.released = len(self.text)
            self.finish = why


class Ticket:
    """A request that waits for its rows. Made in the asyncio loop that waits."""

    def __init__(self, rows: Sequence[Row], *, stream: bool, client: str = "") -> None:
        """`stream`: whether to wake the waiting task at every token, and not only at the end. `client`: the address
        that asked; clients of one address share their part of the queue."""
        self.rows, self.stream, self.client = list(rows), stream, client
        self.error: Refusal | None = None
        self.event = asyncio.Event()
        self.loop = asyncio.get_running_loop()
        self.woken_at = 0.0
        """Time when the waiting task was last woken."""
        for row in self.rows:
            row.ticket = self

    def fail(self, refusal: Refusal) -> None:
        """Ends all rows that have not ended, with an error."""
        self.error = self.error or refusal
        self.cancel()

    def cancel(self) -> None:
        """Ends all rows that have not ended."""
        for row in self.rows:
            row.cancelled = row.finish is None

    @property
    def cancelled(self) -> bool:
        """Whether the client has left."""
        return self.error is None and any(row.cancelled for row in self.rows)

    @property
    def done(self) -> bool:
        """Whether the answer is complete or has failed."""
        return self.error is not None or all(row.ended for row in self.rows)
