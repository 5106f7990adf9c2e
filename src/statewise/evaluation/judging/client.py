"""A judge behind the OpenAI-compatible chat protocol.

It uses the `openai` package, which honours `retry-after`, backs off from errors, bounds both and is thread-safe.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

from statewise.evaluation.judging.judgements import Judge
from statewise.runtime.messages import short, to_install

DEADLINE = 900.0
"""Seconds for one answer, retries included, unless the caller gives others."""
MOST_BYTES = 2**20
"""Maximum bytes of one answer, likewise. A long answer of a model has about ten thousand."""
TRANSIENT = (408, 409, 429)
"""HTTP status codes after which a request is retried, as it is from 500 on."""


class ChatJudge(Judge):
    """A model at the base URL of a server, such as `http://localhost:8000/v1`."""

    def __init__(
        self,
        url: str,
        model: str,
        key: str | None,
        *,
        timeout: float,
        retries: int,
        temperature: float | None = None,
        deadline: float = DEADLINE,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        """`key` is the server's bearer token, None if it needs none. A request that meets a transient error, or whose
        answer does not go on for `timeout` seconds, is retried up to `retries` times. `deadline`: seconds within which
        an answer must be complete, whatever the server sends meanwhile, retries included. `most_bytes`: maximum size of
        an answer. `temperature` None: the server's own.

        Raises `ValueError` for a malformed URL, and if the extra `judge` is missing.
        """
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"`url` must begin with http:// or https://, not {url!r}")
        try:
            import openai
        except ImportError:
            raise ValueError(f"judging needs the extra `judge`: {to_install('judge')}") from None
        self.url, self.model, self.retries = url, model, retries
        self._deadline, self._bound = deadline, _Bound(most_bytes)
        self._options = {} if temperature is None else {"temperature": temperature}
        self._errors = openai
        if key is not None and not key.isascii():
            raise ValueError("the judge's key may hold ASCII characters only")
        try:
            self._client = openai.OpenAI(
                base_url=url,
                api_key=key or "none",
                timeout=timeout,
                max_retries=retries,
                http_client=openai.DefaultHttpxClient(
                    timeout=timeout,
                    headers={"accept-encoding": "identity"},  # the bound is of what is read, not of what it unpacks to
                    event_hooks={"response": [self._bound]},
                ),
                # OpenAI accounts named in the environment must not reach other servers.
                default_headers={"OpenAI-Organization": openai.Omit(), "OpenAI-Project": openai.Omit()},
            )
        except Exception as error:  # the package below it has errors of its own for malformed URLs
            raise ValueError(f"`url` {short(url)} is not a URL: {short(str(error))}") from None

    def ask(self, instructions: str, question: str) -> str:
        """See `Judge.ask`. Raises `ConnectionError` if the server cannot be reached, stays busy, or does not complete
        the answer before the deadline, and `ValueError` if it refuses the request, answers in another protocol, or
        sends too much."""
        answer: Future[str] = Future()

        def work() -> None:
            try:
                answer.set_result(self._ask(instructions, question))
            except BaseException as error:
                answer.set_exception(error)

        # The package bounds only the time between two parts of an answer, headers included. A thread that nobody waits
        # for any more ends with the process.
        threading.Thread(target=work, daemon=True).start()
        try:
            return answer.result(min(self._deadline, threading.TIMEOUT_MAX))
        except TimeoutError:
            raise ConnectionError(
                f"{self.url} did not complete its answer within {self._deadline:g} seconds: give it more with "
                "`deadline`, or ask another server"
            ) from None

    def _ask(self, instructions: str, question: str) -> str:
        """Asks the judge, without a deadline."""
        messages = [{"role": "system", "content": instructions}, {"role": "user", "content": question}]
        self._bound.exceeded = False
        try:
            reply = self._client.chat.completions.create(model=self.model, messages=messages, **self._options)
        except self._errors.APITimeoutError:
            raise ConnectionError(f"{self.url} timed out {self.retries + 1} times") from None
        except self._errors.APIConnectionError as error:
            raise ConnectionError(f"{self.url} cannot be reached: {error.__cause__ or error}") from None
        except self._errors.APIStatusError as error:
            said = str(error)
            if said == f"Error code: {error.status_code}":  # the package knows one form of errors, servers have others
                said = f"{said} {error.response.text}"
            text = "".join(letter for letter in said if letter.isprintable() or letter.isspace())
            what = " ".join(text.split())[:300]
            if error.status_code in TRANSIENT or error.status_code >= 500:
                wait = error.response.headers.get("retry-after")
                later = f"; retry after {wait} seconds" if wait else ""
                raise ConnectionError(f"{self.url} is still busy or broken after retries: {what}{later}") from None
            raise ValueError(f"{self.url} refuses: {what}") from None
        except self._errors.APIError as error:
            self._check_size()
            raise ValueError(f"{self.url} does not answer in the chat protocol: {error}") from None
        except (ValueError, RecursionError):  # of JSON
            self._check_size()
            raise self._other_protocol() from None
        self._check_size()
        try:
            content = reply.choices[0].message.content
        except (AttributeError, LookupError, TypeError):
            raise self._other_protocol() from None
        if not isinstance(content, str | None):
            raise self._other_protocol()
        return content or ""

    def _check_size(self) -> None:
        if self._bound.exceeded:
            raise ValueError(
                f"{self.url} answers with more than {self._bound.most:,} bytes, which no judgement needs: allow more "
                "with `max_answer`, or ask another server"
            )

    def _other_protocol(self) -> ValueError:
        return ValueError(
            f"{self.url} does not answer in the chat protocol: is this the base URL, such as http://HOST/v1?"
        )


class _Bound(threading.local):
    """A hook of the HTTP client that cuts responses off after `most` bytes. `exceeded` tells whether the last response
    of each thread was cut off."""

    def __init__(self, most: int) -> None:
        self.most, self.exceeded = most, False

    def __call__(self, response: Any) -> None:
        """Bounds a response whose headers have arrived."""
        from httpx2 import SyncByteStream

        self.exceeded = False
        stream, bound = response.stream, self

        class Bounded(SyncByteStream):  # type: ignore[misc]  # the extra may be missing
            def __iter__(self) -> Iterator[bytes]:
                size = 0
                for part in stream:
                    size += len(part)
                    if size > bound.most:
                        bound.exceeded = True
                        return
                    yield part

            def close(self) -> None:
                stream.close()

        response.stream = Bounded()
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            response.headers["content-encoding"] = "identity"  # not unpacked, and so no JSON
