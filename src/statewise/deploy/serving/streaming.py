"""Requests that wait for their rows, and answers as server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from statewise.deploy.serving.answers import Answer, event
from statewise.deploy.serving.engine import Engine
from statewise.deploy.serving.refusals import Refusal
from statewise.deploy.serving.rows import Ticket

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
    """What functions return, called one by one in the models' thread between the steps of other requests; None: the
    client has left, and what it still waited for is not called. Raises `Refusal` if that takes too long, or as
    `Engine.call` does."""
    found: list[Returned] = []
    client = request.client.host if request.client else ""

    async def call_all() -> None:
        for function in work:
            future = engine.call(model, function, begun=bool(found), client=client)
            found.append(await asyncio.wrap_future(future))

    calling, leaving = asyncio.create_task(call_all()), asyncio.create_task(_left(request.receive))
    try:
        async with asyncio.timeout(engine.settings.request_seconds):
            await asyncio.wait((calling, leaving), return_when=asyncio.FIRST_COMPLETED)
        if calling.done():
            calling.result()
            return found
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
        found = []
        for index in sorted(self._open):
            row, sent = self.ticket.rows[index], self._sent[index]
            last = row.finish is not None
            text = row.text[: row.released]
            if len(text) == len(sent) and not last:
                continue
            begin, end = self._tokens[index], len(row.shown)
            while not last and end > begin and row.transcript.offsets[end - 1] >= len(text):
                end -= 1
            found.append(self.answer.chunk_event(index, len(sent), len(text), slice(begin, end), last))
            self._sent[index], self._tokens[index] = text, end
            if last:
                self._open.discard(index)
        return found
