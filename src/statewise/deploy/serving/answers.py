"""Answers to requests: their formats (OpenAI's completions, Mistral's and llama.cpp's), and how clients wait for them,
whole or as server-sent events.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from typing_extensions import override

from statewise.deploy.serving.engine import Engine
from statewise.deploy.serving.refusals import Refusal
from statewise.deploy.serving.rows import Row, ShownToken, Ticket
from statewise.deploy.serving.served import Served


class Answer(ABC):
    """The answer to one request, whole or in chunks."""

    def __init__(self, served: Served, rows: Sequence[Row], prompt_tokens: int, *, include_usage: bool) -> None:
        """`prompt_tokens`: number of tokens of all prompts, each counted once. `include_usage`: a last chunk counts
        tokens."""
        self.served, self.rows, self.prompt_tokens, self.include_usage = served, rows, prompt_tokens, include_usage

    @abstractmethod
    def whole(self) -> dict[str, Any]:
        """The answer, once all rows have ended."""

    @abstractmethod
    def chunk(self, index: int, start: int, stop: int, tokens: slice, last: bool) -> dict[str, Any]:
        """Characters `start` to `stop` of a row, with the `tokens` of `Row.shown` that begin there; `last`: nothing
        more will come."""

    def chunk_event(self, index: int, start: int, stop: int, tokens: slice, last: bool) -> bytes:
        """`chunk` as a server-sent event."""
        return event(self.chunk(index, start, stop, tokens, last))

    def ending(self) -> list[dict[str, Any]]:
        """The objects that follow the chunks of all rows."""
        return []

    end: bytes = b"data: [DONE]\n\n"
    """The bytes that end a stream."""

    @property
    def usage(self) -> dict[str, int]:
        """Counts of tokens. A token that ended a completion counts, also if it is not shown."""
        made = sum(len(row.tokens) for row in self.rows)
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": made,
            "total_tokens": self.prompt_tokens + made,
        }


class TextAnswer(Answer):
    """OpenAI's text completion."""

    def __init__(self, served: Served, rows: Sequence[Row], prompt_tokens: int, *, include_usage: bool) -> None:
        super().__init__(served, rows, prompt_tokens, include_usage=include_usage)
        self._head = {
            "id": f"cmpl-{secrets.token_hex(12)}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": served.name,
            "system_fingerprint": served.fingerprint,
        }
        self._begin = f'data: {_compact(self._head)[:-1]},"choices":['

    @override
    def whole(self) -> dict[str, Any]:
        choices = [self._choice(index, row.text, slice(None), row.finish) for index, row in enumerate(self.rows)]
        return {**self._head, "choices": choices, "usage": self.usage}

    @override
    def chunk(self, index: int, start: int, stop: int, tokens: slice, last: bool) -> dict[str, Any]:
        row = self.rows[index]
        return {
            **self._head,
            "choices": [self._choice(index, row.text[start:stop], tokens, row.finish if last else None)],
        }

    def chunk_event(self, index: int, start: int, stop: int, tokens: slice, last: bool) -> bytes:
        """See `Answer.chunk_event`; what all chunks share is made once."""
        row = self.rows[index]
        choice = self._choice(index, row.text[start:stop], tokens, row.finish if last else None)
        return f"{self._begin}{_compact(choice)}]}}\n\n".encode()

    @override
    def ending(self) -> list[dict[str, Any]]:
        return [{**self._head, "choices": [], "usage": self.usage}] if self.include_usage else []

    def _choice(self, index: int, text: str, tokens: slice, finish: str | None) -> dict[str, Any]:
        return {
            "index": index,
            "text": text,
            "logprobs": self._log_probabilities(index, tokens),
            "finish_reason": finish,
        }

    def _log_probabilities(self, index: int, tokens: slice) -> dict[str, Any] | None:
        row = self.rows[index]
        if row.decoding.alternatives is None:
            return None
        shown: list[ShownToken] = row.shown[tokens]
        text_of, offsets = self.served.token_text, row.transcript.offsets[: len(row.shown)][tokens]
        leads = [row.transcript.lead(at, text_of(one.token)) for at, one in zip(offsets, shown, strict=True)]
        return {
            "tokens": [lead + text_of(one.token) for lead, one in zip(leads, shown)],
            "token_logprobs": [one.log_probability for one in shown],
            "top_logprobs": [
                None
                if one.log_probability is None
                else {lead + text_of(token): value for token, value in one.alternatives}
                for lead, one in zip(leads, shown)
            ],
            "text_offset": offsets,
        }


class MistralAnswer(Answer):
    """Mistral's completion of the gap between a prompt and a suffix, which has the form of a chat's answer."""

    def __init__(self, served: Served, rows: Sequence[Row], prompt_tokens: int, *, include_usage: bool) -> None:
        super().__init__(served, rows, prompt_tokens, include_usage=include_usage)
        self._head = {"id": f"cmpl-{secrets.token_hex(12)}", "created": int(time.time()), "model": served.name}

    @override
    def whole(self) -> dict[str, Any]:
        choices = [
            {"index": index, "message": {"role": "assistant", "content": row.text}, "finish_reason": row.finish}
            for index, row in enumerate(self.rows)
        ]
        return {**self._head, "object": "chat.completion", "choices": choices, "usage": self.usage}

    @override
    def chunk(self, index: int, start: int, stop: int, tokens: slice, last: bool) -> dict[str, Any]:
        row = self.rows[index]
        delta = {"role": "assistant", "content": row.text[start:stop]}
        choice = {"index": index, "delta": delta, "finish_reason": row.finish if last else None}
        counted = {"usage": self.usage} if last else {}
        return {**self._head, "object": "chat.completion.chunk", "choices": [choice], **counted}


class LlamaAnswer(Answer):
    """llama.cpp's completion."""

    end = b""

    @override
    def whole(self) -> dict[str, Any]:
        (row,) = self.rows
        return {"content": row.text, "stop": True, **self._ended(row)}

    @override
    def chunk(self, index: int, start: int, stop: int, tokens: slice, last: bool) -> dict[str, Any]:
        row = self.rows[index]
        return {"content": row.text[start:stop], "stop": last, **(self._ended(row) if last else {})}

    def _ended(self, row: Row) -> dict[str, Any]:
        return {
            "model": self.served.name,
            "stop_type": "limit" if row.finish == "length" else "word" if row.stopped_by else "eos",
            "stopping_word": row.stopped_by,
            "tokens_evaluated": self.prompt_tokens,
            "tokens_predicted": len(row.tokens),
            "truncated": False,
        }


def event(content: dict[str, Any]) -> bytes:
    """A server-sent event."""
    return f"data: {_compact(content)}\n\n".encode()


def _compact(content: dict[str, Any]) -> str:
    return json.dumps(content, separators=(",", ":"), allow_nan=False)


Returned = TypeVar("Returned")


@asynccontextmanager
async def following(engine: Engine, ticket: Ticket, receive: Any) -> AsyncIterator[None]:
    """Within, a client that leaves ends its rows, and so does the time limit, with `Refusal`."""

    async def leave() -> None:
        await _left(receive)
        engine.cancel(ticket)
        engine.metrics.cancelled.inc()
        ticket.event.set()

    watching = asyncio.create_task(leave())
    try:
        async with asyncio.timeout(engine.settings.request_seconds):
            yield
    except TimeoutError:
        raise Refusal(504, "the request was not answered in time", code="timeout") from None
    finally:
        watching.cancel()
        if not ticket.done:
            engine.cancel(ticket)


async def called(
    engine: Engine, model: str, work: Iterable[Callable[[], Returned]], request: Request
) -> list[Returned] | None:
    """The results of functions, called one by one in the models' thread between the steps of other requests; None: the
    client has left, and the remaining functions are not called. Raises `Refusal` if that takes too long, or as
    `Engine.call` does."""
    returned: list[Returned] = []
    client = request.client.host if request.client else ""

    async def call_all() -> None:
        for function in work:
            future = engine.call(model, function, begun=bool(returned), client=client)
            returned.append(await asyncio.wrap_future(future))

    calling, leaving = asyncio.create_task(call_all()), asyncio.create_task(_left(request.receive))
    try:
        async with asyncio.timeout(engine.settings.request_seconds):
            await asyncio.wait((calling, leaving), return_when=asyncio.FIRST_COMPLETED)
        if calling.done():
            calling.result()
            return returned
        engine.metrics.cancelled.inc()
        return None
    except TimeoutError:
        raise Refusal(504, "the request was not answered in time", code="timeout") from None
    finally:
        calling.cancel()
        leaving.cancel()


async def _left(receive: Any) -> None:
    """Returns when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):  # type: ignore[misc]  # the extra may be missing
    """Sends what is new of every row as soon as it is settled. A client that reads slowly gets larger chunks, and keeps
    nobody waiting; one that leaves ends its rows."""

    def __init__(self, engine: Engine, ticket: Ticket, answer: Answer) -> None:
        self.engine, self.ticket, self.answer = engine, ticket, answer
        self.background, self.status_code = None, 200
        self.init_headers({"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"})
        self._sent = [""] * len(ticket.rows)
        self._tokens = [0] * len(ticket.rows)
        self._open = set(range(len(ticket.rows)))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """See ASGI."""
        ticket = self.ticket
        try:
            async with following(self.engine, ticket, receive):
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                while True:
                    await ticket.event.wait()
                    ticket.event.clear()
                    done = ticket.done
                    if ticket.cancelled:
                        return
                    if chunks := self._new():
                        await send({"type": "http.response.body", "body": b"".join(chunks), "more_body": True})
                    if done:
                        break
            if ticket.error is not None:
                raise ticket.error
            last = [*map(event, self.answer.ending()), self.answer.end]
        except Refusal as refusal:
            last = [event(refusal.content)]
        await send({"type": "http.response.body", "body": b"".join(last), "more_body": False})

    def _new(self) -> list[bytes]:
        """Chunks of what has been settled since the last call."""
        chunks = []
        for index in sorted(self._open):
            row, sent = self.ticket.rows[index], self._sent[index]
            last = row.finish is not None
            text = row.text[: row.released]
            if len(text) == len(sent) and not last:
                continue
            begin, end = self._tokens[index], len(row.shown)
            while not last and end > begin and row.transcript.offsets[end - 1] >= len(text):
                end -= 1
            chunks.append(self.answer.chunk_event(index, len(sent), len(text), slice(begin, end), last))
            self._sent[index], self._tokens[index] = text, end
            if last:
                self._open.discard(index)
        return chunks
