"""Limits of a server, and who may use it."""

from __future__ import annotations

from dataclasses import dataclass

from statewise.deploy.serving.choosing import Length, Source


@dataclass(frozen=True)
class ServerSettings:
    """Limits, times in seconds, and access."""

    max_rows: int = 32
    """Sequences of one model that are decoded together."""
    max_waiting: int = 256
    """Sequences that may wait for a place; beyond that, requests get status 429."""
    max_tokens: int = 4096
    """Maximum number of tokens of a completion."""
    max_body: int = 2**20
    """Maximum size of a request's body, in bytes."""
    body_seconds: float = 10.0
    """Seconds within which the headers, and then the body of a request must arrive."""
    request_seconds: float = 600.0
    """Seconds within which a request must be answered, waiting included."""
    drain_seconds: float = 30.0
    """Seconds that running requests get to finish after the signal to stop."""
    chunk_seconds: float = 0.05
    """Minimum time between two chunks of a stream; tokens that come faster share one."""
    prompt_tokens: int = 256
    """Tokens of prompts that are read between two steps of the running rows."""
    draft: Length = 0
    """Tokens that models draft in each cycle, at most; `auto`: the number measured to be fastest. Models that cannot
    draft decode without drafts."""
    drafter: Source = "model"
    """What drafts: the models themselves, or for any model what followed its last tokens before."""
    key: str | None = None
    """The key that requests must carry; None: no key is needed."""
    hosts: tuple[str, ...] = ()
    """Names in the Host header that are allowed besides IP addresses and localhost."""
    origins: tuple[str, ...] = ()
    """Origins of web pages that may read answers; without one, browsers keep answers from pages of other sites."""
