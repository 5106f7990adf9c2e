"""One connection: HTTP/1.1 by h11, with a time limit for headers, and errors in the shape of the OpenAI protocol."""

from __future__ import annotations

from asyncio import TimerHandle, Transport
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from statewise.serving.refusals import Refusal


class Connection(H11Protocol):  # type: ignore[misc]  # the extra may be missing
    """uvicorn limits only how long a connection may be idle between requests."""

    header_seconds: float = 10.0

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._late: TimerHandle | None = None

    def connection_made(self, transport: Transport) -> None:
        """See `asyncio.Protocol`."""
        super().connection_made(transport)
        self._late = self.loop.call_later(self.header_seconds, self._headers_late)

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._no_longer_late()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._no_longer_late()
        elif self._late is None and self.conn.trailing_data[0]:
            self._late = self.loop.call_later(self.header_seconds, self._headers_late)

    def send_400_response(self, msg: str) -> None:
        """Answers what is no HTTP."""
        self._refuse(Refusal(400, msg))

    def _no_longer_late(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _headers_late(self) -> None:
        self._refuse(Refusal(408, "the headers did not arrive in time", code="header_timeout"))

    def _refuse(self, refusal: Refusal) -> None:
        """Answers and closes, if no answer has begun."""
        self._no_longer_late()
        if self.cycle is None or self.cycle.response_complete:
            body = refusal.body
            self.transport.write(
                f"HTTP/1.1 {refusal.status} Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\n"
                f"content-length: {len(body)}\r\n\r\n".encode()
                + body
            )
        self.transport.close()
