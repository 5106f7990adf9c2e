"""The text of a sequence while its tokens arrive one by one, and stop strings in it."""

from __future__ import annotations

import bisect
import codecs
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from typing_extensions import override

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
