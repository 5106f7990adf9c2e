"""Checks of every request before it reaches a route: host, origin, key."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Collection, Sequence
from typing import Any
from urllib.parse import urlsplit

from statewise.deploy.serving.metrics import Metrics
from statewise.deploy.serving.refusals import Refusal
from statewise.deploy.serving.settings import ServerSettings

OPEN = ("/health", "/ready")
"""Paths that need no key, for probes of a load balancer."""

ONCE = ("authorization", "content-encoding", "content-type", "host", "origin")
"""Headers that decide how a request is read, and by whom: each may occur once."""

MOST_HEADERS = 32 * 1024
"""Maximum bytes of the names and values of all header lines."""


class Guard:
    """ASGI middleware.

    A page of another site may send a browser's requests here, to this address or to a name that resolves to it. So the
    Host header must hold an IP address, localhost or an allowed name, and requests that carry another site's Origin are
    refused.
    """

    def __init__(
        self, app: Any, settings: ServerSettings, metrics: Metrics, routes: Collection[str], open_paths: Collection[str]
    ) -> None:
        """`routes`: the paths that metrics name; `open_paths`: paths, and with `/` at the end all below, that need no
        key; `/` is the root alone."""
        self.app, self.settings, self.metrics, self.routes = app, settings, metrics, routes
        self.open = (*OPEN, *open_paths)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        route = scope["path"] if scope["path"] in self.routes else "other"

        async def counted(message: Any) -> None:
            if message["type"] == "http.response.start":
                self.metrics.requests.labels(route, str(message["status"])).inc()
            await send(message)

        try:
            self.check(scope["method"], scope["path"], scope["headers"])
        except Refusal as refusal:
            await answer(refusal, counted)
            return
        await self.app(scope, receive, counted)

    def check(self, method: str, path: str, lines: Sequence[tuple[bytes, bytes]]) -> None:
        """Raises `Refusal` if the request, which has these header `lines`, may not be answered."""
        if sum(len(name) + len(value) for name, value in lines) > MOST_HEADERS:
            raise Refusal(431, f"the headers may have at most {MOST_HEADERS:,} bytes", headers={"connection": "close"})
        headers = _headers(lines)
        if "content-length" in headers and "transfer-encoding" in headers:
            raise Refusal(
                400,
                "the headers content-length and transfer-encoding contradict each other: send one of them",
                code="two_lengths",
                headers={"connection": "close"},
            )
        host = headers.get("host", "")
        if not self._allowed(host):
            raise Refusal(
                403,
                f"the host name {host[:100]!r} is not allowed: start the server with --allowed-host",
                code="host_not_allowed",
            )
        origin = headers.get("origin")
        if origin is not None and _netloc(origin) != host and not self._may_read(origin):
            raise Refusal(
                403,
                f"pages of {origin[:100]} may not use this server: start it with --cors-origin",
                code="origin_not_allowed",
            )
        key = self.settings.key
        preflight = method == "OPTIONS" and origin is not None
        if (
            key is None
            or preflight
            or any(path == one or (one.endswith("/") and one != "/" and path.startswith(one)) for one in self.open)
        ):
            return
        kind, _, sent_key = headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not hmac.compare_digest(sent_key.strip().encode(), key.encode()):
            raise Refusal(
                401,
                "a key is needed: send the header Authorization: Bearer KEY",
                code="invalid_api_key",
                headers={"www-authenticate": "Bearer"},
            )

    def _allowed(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        if name == "localhost" or name in self.settings.hosts or "*" in self.settings.hosts:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    def _may_read(self, origin: str) -> bool:
        return origin in self.settings.origins or "*" in self.settings.origins


async def answer(refusal: Refusal, send: Any) -> None:
    """Sends a refusal as the whole response."""
    body = refusal.body
    headers = {"content-type": "application/json", "content-length": str(len(body)), **refusal.headers}
    encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": refusal.status, "headers": encoded})
    await send({"type": "http.response.body", "body": body})


def _netloc(origin: str) -> str | None:
    """Host and port of an origin; None if it is malformed."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


def _headers(lines: Sequence[tuple[bytes, bytes]]) -> dict[str, str]:
    """Headers by name. Raises `Refusal` if one of `ONCE` occurs twice: proxies may have checked the other line."""
    headers: dict[str, str] = {}
    for line, value in lines:
        name = line.decode("latin-1").lower()
        if name in headers and name in ONCE:
            raise Refusal(
                400,
                f"the header {name} occurs twice: send it once",
                code="repeated_header",
                headers={"connection": "close"},
            )
        headers[name] = value.decode("latin-1")
    return headers
