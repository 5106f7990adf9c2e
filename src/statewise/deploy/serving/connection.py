"""One connection: HTTP/1.1 by h11, with time limits for what the client does, and errors in the shape of the OpenAI
protocol."""

from __future__ import annotations

from asyncio import TimerHandle, Transport
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Literal

import h11
from typing_extensions import override
from uvicorn.protocols.http.h11_impl import H11Protocol

from statewise.deploy.serving.refusals import Refusal

Limited = Literal["headers", "rest of a body", "reading"]


class Connection(H11Protocol):  # type: ignore[misc]  # the extra may be missing
    """uvicorn limits only how long a connection may be idle between requests."""

    header_seconds: float = 10.0
    """Within which headers must arrive, and after an answer the rest of a body that was not read."""
    reading_seconds: float = 600.0
    """Within which a client that has stopped to read must go on."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._limits: dict[Limited, TimerHandle] = {}

    @override
    def connection_made(self, transport: Transport) -> None:
        super().connection_made(transport)
        self._limit("headers", self.header_seconds, self._headers_late)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        for what in list(self._limits):
            self._unlimit(what)
        super().connection_lost(exc)

    @override
    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is not h11.SEND_BODY:
            self._unlimit("rest of a body")
        if self.conn.their_state is not h11.IDLE:
            self._unlimit("headers")
        elif "headers" not in self._limits and self.conn.trailing_data[0]:
            self._limit("headers", self.header_seconds, self._headers_late)

    def on_response_complete(self) -> None:
        """Called when an answer is whole. If the request is not, each of its bytes would put off uvicorn's limit."""
        super().on_response_complete()
        if self.conn.their_state is h11.SEND_BODY and not self.transport.is_closing():
            self._limit("rest of a body", self.header_seconds, self.transport.close)

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`: the client does not read."""
        super().pause_writing()
        self._limit("reading", self.reading_seconds, self.transport.abort)

    @override
    def resume_writing(self) -> None:
        self._unlimit("reading")
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        """Called when a connection has been idle. To close it waits for what its client has not read by now."""
        super().timeout_keep_alive_handler()
        if self.transport.get_write_buffer_size():
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """Answers what is no HTTP."""
        self._refuse(Refusal(400, msg))

    def _should_upgrade(self) -> bool:
        """Never: the header Upgrade may be ignored (RFC 9110, section 7.8). uvicorn would log how to install
        WebSockets, which no route has."""
        return False

    def _limit(self, what: Limited, seconds: float, end: Callable[[], None]) -> None:
        self._unlimit(what)
        self._limits[what] = self.loop.call_later(seconds, end)

    def _unlimit(self, what: Limited) -> None:
        timer = self._limits.pop(what, None)
        if timer is not None:
            timer.cancel()

    def _headers_late(self) -> None:
        self._refuse(Refusal(408, "the headers did not arrive in time", code="header_timeout"))

    def _refuse(self, refusal: Refusal) -> None:
        """Answers and closes, if no answer has begun."""
        self._unlimit("headers")
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            if self.cycle is not None:
                self.cycle.disconnected = True  # what its application still writes goes nowhere
            body = refusal.body
            self.transport.write(
                f"HTTP/1.1 {refusal.status} {HTTPStatus(refusal.status).phrase}\r\ncontent-type: application/json\r\n"
                f"connection: close\r\ncontent-length: {len(body)}\r\n\r\n".encode()
                + body
            )
        self.transport.close()
