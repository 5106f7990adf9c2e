"""The server: a socket, uvicorn with time limits for clients, and the engine's thread, from start to an orderly end."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
import sys
from asyncio import TimerHandle, Transport
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from types import FrameType
from typing import Any, Literal

import h11
import uvicorn
from typing_extensions import override
from uvicorn.protocols.http.h11_impl import H11Protocol

from statewise.deploy.serving.app import create_app
from statewise.deploy.serving.engine import Engine
from statewise.deploy.serving.guard import MOST_HEADERS
from statewise.deploy.serving.metrics import Metrics
from statewise.deploy.serving.refusals import Refusal
from statewise.deploy.serving.served import Served
from statewise.deploy.serving.settings import ServerSettings
from statewise.runtime.messages import say
from statewise.training import machine

Limited = Literal["headers", "rest of a body", "reading"]

CONNECTIONS = 2000
"""Maximum number of connections; further ones get a plain 503."""
GRACE = 1.0
"""Seconds after a second signal in which clients learn that their requests failed."""
KEEP_ALIVE = 30
"""Seconds that an idle connection is kept."""


class Connection(H11Protocol):  # type: ignore[misc]  # the extra may be missing
    """A connection with HTTP/1.1 by h11, with time limits for what the client does, and errors in the shape of the
    OpenAI protocol. uvicorn limits only how long a connection may be idle between requests."""

    def __init__(self, *, header_seconds: float, reading_seconds: float, **of_uvicorn: Any) -> None:
        """`header_seconds`: time in which headers must arrive, and after an answer the rest of a body that was not
        read. `reading_seconds`: time in which a client that has stopped reading must continue."""
        super().__init__(**of_uvicorn)
        self.header_seconds, self.reading_seconds = header_seconds, reading_seconds
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
        """Answers what is not HTTP."""
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
                self.cycle.disconnected = True  # what its application still writes is discarded
            body = refusal.body
            self.transport.write(
                f"HTTP/1.1 {refusal.status} {HTTPStatus(refusal.status).phrase}\r\ncontent-type: application/json\r\n"
                f"connection: close\r\ncontent-length: {len(body)}\r\n\r\n".encode()
                + body
            )
        self.transport.close()


class Server(uvicorn.Server):  # type: ignore[misc]  # the extra may be missing
    """uvicorn with the engine: after a signal to stop, running requests have `drain_seconds` to finish."""

    def __init__(self, engine: Engine, app: Any) -> None:
        settings = engine.settings
        connection = partial(Connection, header_seconds=settings.body_seconds, reading_seconds=settings.request_seconds)
        super().__init__(
            uvicorn.Config(
                app,
                http=connection,
                ws="none",
                lifespan="off",
                log_level="warning",
                access_log=False,
                log_config=None,  # its records go to our handlers
                proxy_headers=False,
                server_header=False,
                date_header=False,
                limit_concurrency=CONNECTIONS,
                h11_max_incomplete_event_size=2 * MOST_HEADERS,
                timeout_keep_alive=KEEP_ALIVE,
                timeout_graceful_shutdown=int(settings.drain_seconds) + 5,
            )
        )
        self.engine = engine
        self.should_exit: bool = False
        self.hurried = False
        """Whether a second signal came: running requests fail."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal lets running requests finish; the second does not."""
        self.engine.drain()
        self.hurried = self.should_exit
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Closes the socket, and waits for running requests."""
        self.engine.drain()
        ending = asyncio.create_task(self._end_requests())
        await super().shutdown(sockets)
        ending.cancel()

    async def _end_requests(self) -> None:
        """Fails running requests after `drain_seconds`, or once hurried. Clients that are still connected learn so
        before they are cut off."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self.engine.settings.drain_seconds
        while not self.hurried and loop.time() < end:
            await asyncio.sleep(0.05)
        self.engine.abandon()
        while not self.hurried:
            await asyncio.sleep(0.05)
        await asyncio.sleep(GRACE)
        self.force_exit = True


def listen(host: str, port: int) -> socket.socket:
    """A bound socket; port 0 is a free one. Raises `OSError` if the address cannot be used."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    made = socket.socket(family, kind, protocol)
    if os.name == "posix":  # elsewhere it lets two servers listen at one address
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    with _explaining(made, host, port):
        made.bind(address)
    return made


@contextmanager
def _explaining(bound: socket.socket, host: str, port: int) -> Iterator[None]:
    """Within, errors of the socket say what to do."""
    try:
        yield
    except OSError as error:
        bound.close()
        raise OSError(error.errno, f"{error.strerror}: choose another `port` or `host`", f"{host}:{port}") from None


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def run(
    models: Sequence[Served],
    settings: ServerSettings,
    bound: socket.socket,
    announce: Callable[[str], None] = lambda line: say(line, flush=True),
    **options: Any,
) -> int:
    """Serves until a signal; `options` are those of `create_app`. Returns the exit code: 0, or 1 if the models stopped
    by themselves, or 130 if running requests were not waited for."""
    machine.keep_freed_memory()
    engine = Engine(models, settings, Metrics())
    server = Server(engine, create_app(engine, **options))
    host, port = bound.getsockname()[:2]
    with _explaining(bound, host, port):
        bound.listen(server.config.backlog)  # before the address is announced
    engine.start()
    names = ", ".join(engine.lanes)
    announce(f"serving {names} at http://{f'[{host}]' if ':' in host else host}:{port}/v1; Ctrl-C to stop")
    server.run(sockets=[bound])
    engine.stop()
    if engine.failure is not None:
        say("statewise: the models stopped; see above", file=sys.stderr)
        return 1
    return 130 if server.hurried else 0
