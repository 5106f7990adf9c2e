"""Sequences that are being generated: their text while tokens arrive one by one, stop strings in it, and the requests
that wait for them.

The thread of the engine writes to rows, the asyncio thread reads them: what a reader needs is set before the flag that
tells it to look (`Row.released`, `Row.finish`).
"""

from __future__ import annotations

import asyncio
import bisect
import codecs
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from typing_extensions import override

from statewise.decoding.base import Request
from statewise.decoding.sample import SampleConfig
from statewise.deploy.serving.refusals import Refusal

INCOMPLETE = "\ufffd"
"""The character that tokenizers write for a part of a character."""


class Transcript(ABC):
    """The text of the tokens so far."""

    def __init__(self) -> None:
        self.text = ""
        """The text, without an incomplete character at its end."""
        self.offsets: list[int] = []
        """Index in the text at which each token begins."""

    @abstractmethod
    def add(self, token: int) -> None:
        """Appends a token."""

    def lead(self, offset: int, symbol: str) -> str:
        """The separator that stands between the beginning `offset` of a token in the text and its `symbol`."""
        return ""

    def close(self) -> None:  # noqa: B027 -- most texts have no incomplete characters
        """Called after the last token: an incomplete character at the end becomes a replacement character."""


class Spelled(Transcript):
    """The text of tokens that stand for bytes of UTF-8."""

    def __init__(self, spellings: Sequence[bytes]) -> None:
        """`spellings`: the bytes of each token."""
        super().__init__()
        self._spellings = spellings
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @override
    def add(self, token: int) -> None:
        self.offsets.append(len(self.text))
        self.text += self._decoder.decode(self._spellings[token])

    @override
    def close(self) -> None:
        self.text += self._decoder.decode(b"", final=True)


class Written(Transcript):
    """The text of symbols that a task writes in its own way. Text that was written is never changed."""

    def __init__(
        self,
        continuation: Callable[[str | Sequence[int], Sequence[int]], str],
        before: Sequence[int],
        written: str | None = None,
    ) -> None:
        """`continuation`: as `Task.continuation`. `before`: the tokens that this text follows, and how they were
        `written`, if someone wrote them."""
        super().__init__()
        self._continuation, self._before, self._tokens = continuation, list(before), list[int]()
        self._prefix = self._before if written is None else written
        self._whole = ""  # with an incomplete character

    @override
    def add(self, token: int) -> None:
        self.offsets.append(len(self.text))
        whole = self._continuation(self._prefix, [*self._tokens, token])
        if not whole.startswith(self.text):  # the task now writes earlier symbols differently
            whole = self._whole + self._continuation([*self._before, *self._tokens], [token])
        self._tokens.append(token)
        self._whole, self.text = whole, whole.rstrip(INCOMPLETE)

    @override
    def lead(self, offset: int, symbol: str) -> str:
        after = bisect.bisect_right(self.offsets, offset)
        piece = self.text[offset : self.offsets[after] if after < len(self.offsets) else None]
        return piece.removesuffix(symbol) if piece.endswith(symbol) else ""

    @override
    def close(self) -> None:
        self.text = self._whole


class Stops:
    """Strings that end a text and are not part of it."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.stops = tuple(stops)
        self._longest = max(map(len, stops), default=0)

    def find(self, text: str, start: int, before: int) -> int | None:
        """Where the first one begins, from `start` on; None: nowhere. Up to `before` characters were searched."""
        if not self.stops:
            return None
        begin = max(start, before - self._longest + 1)
        places = [place for place in (text.find(stop, begin) for stop in self.stops) if place >= 0]
        return min(places, default=None)

    def settled(self, text: str, start: int) -> int:
        """The number of leading characters that cannot belong to a stop string that is completed later, at least
        `start`."""
        for size in range(min(self._longest - 1, len(text) - start), 0, -1):
            if any(stop.startswith(text[-size:]) for stop in self.stops):
                return len(text) - size
        return len(text)


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
        """Looks for stop strings in the text, whose first `before` characters were searched already."""
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
        of the client; clients of one address share their part of the queue."""
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
