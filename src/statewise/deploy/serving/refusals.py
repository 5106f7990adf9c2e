"""Errors that clients get, in the format of the OpenAI protocol."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
"""Types of errors by HTTP status; others are `invalid_request_error`, from 500 on `server_error`."""


class Refusal(Exception):
    """An answer with an error status."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """`param`: the field of the request that is wrong; `code`: the error's name for programs."""
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = dict(headers or {})

    @property
    def type(self) -> str:
        """The error's type in the protocol."""
        return TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")

    @property
    def content(self) -> dict[str, Any]:
        """The body of the answer."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}

    @property
    def body(self) -> bytes:
        """The body of the answer as JSON."""
        return json.dumps(self.content).encode()
