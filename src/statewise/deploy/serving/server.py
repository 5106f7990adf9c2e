"""The server: a socket, uvicorn, and the engine's thread, from start to an orderly end."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import uvicorn

from statewise.deploy.serving.app import create_app
from statewise.deploy.serving.connection import Connection
from statewise.deploy.serving.engine import Engine
from statewise.deploy.serving.guard import MOST_HEADERS
from statewise.deploy.serving.metrics import Metrics
from statewise.deploy.serving.served import Served
from statewise.deploy.serving.settings import Settings
from statewise.runtime.messages import say
from statewise.training import machine

CONNECTIONS = 2000
"""Beyond that, connections get a plain 503."""
TELLING = 1.0
"""Seconds after a second signal in which requests are told that they failed."""
KEEP_ALIVE = 30
"""Seconds that an idle connection is kept."""


class Server(uvicorn.Server):  # type: ignore[misc]  # the extra may be missing
    """uvicorn, which tells the engine when to stop. Once told, running requests have `drain_seconds` to finish."""

    def __init__(self, engine: Engine, app: Any) -> None:
        settings = engine.settings
        limits = {"header_seconds": settings.body_seconds, "reading_seconds": settings.request_seconds}
        connection = type("Connection", (Connection,), limits)
        super().__init__(
            uvicorn.Config(
                app,
                http=connection,
                ws="none",
                lifespan="off",
                log_level="warning",
                access_log=False,
                log_config=None,  # its records go where ours go
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
        """Fails running requests after `drain_seconds`, or once hurried. Then what is still connected is told so before
        it is cut off."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self.engine.settings.drain_seconds
        while not self.hurried and loop.time() < end:
            await asyncio.sleep(0.05)
        self.engine.abandon()
        while not self.hurried:
            await asyncio.sleep(0.05)
        await asyncio.sleep(TELLING)
        self.force_exit = True


def listen(host: str, port: int) -> socket.socket:
    """A bound socket; port 0 is a free one. Raises `OSError` if the address cannot be had."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    made = socket.socket(family, kind, protocol)
    if os.name == "posix":  # elsewhere it lets two servers listen at one address
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    with _telling(made, host, port):
        made.bind(address)
    return made


@contextmanager
def _telling(bound: socket.socket, host: str, port: int) -> Iterator[None]:
    """Within, errors of the socket say what to do."""
    try:
        yield
    except OSError as error:
        bound.close()
        raise OSError(error.errno, f"{error.strerror}: choose another --port or --host", f"{host}:{port}") from None


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def run(
    models: Sequence[Served],
    settings: Settings,
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
    with _telling(bound, host, port):
        bound.listen(server.config.backlog)  # before anyone is told where
    engine.start()
    names = ", ".join(engine.lanes)
    announce(f"serving {names} at http://{f'[{host}]' if ':' in host else host}:{port}/v1; Ctrl-C to stop")
    server.run(sockets=[bound])
    engine.stop()
    if engine.failure is not None:
        say("statewise: the models stopped; see above", file=sys.stderr)
        return 1
    return 130 if server.hurried else 0
