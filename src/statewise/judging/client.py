"""A judge behind the OpenAI-compatible chat protocol.

It uses the `openai` package, which honours `retry-after`, backs off from errors, bounds both and is thread-safe.
"""

from __future__ import annotations

from statewise.judging.protocol import Judge
from statewise.messages import short, to_install

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
    ) -> None:
        """`key` is the server's bearer token, None if it needs none. A request that meets a transient error, or whose
        answer does not go on for `timeout` seconds, is retried up to `retries` times. `temperature` None: the
        server's own.

        Raises `ValueError` for a malformed URL, and if the extra `judge` is missing.
        """
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"--url must begin with http:// or https://, not {url!r}")
        try:
            import openai
        except ImportError:
            raise ValueError(f"judging needs the extra `judge`: {to_install('judge')}") from None
        self.url, self.model, self.retries = url, model, retries
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
                # OpenAI accounts named in the environment must not reach other servers.
                default_headers={"OpenAI-Organization": openai.Omit(), "OpenAI-Project": openai.Omit()},
            )
        except Exception as error:  # the package below it has errors of its own for what is no URL
            raise ValueError(f"--url {short(url)} is no URL: {short(str(error))}") from None

    def ask(self, instructions: str, question: str) -> str:
        """See `Judge.ask`. Raises `ConnectionError` if the server cannot be reached or stays busy, and `ValueError` if
        it refuses the request or answers in another protocol."""
        messages = [{"role": "system", "content": instructions}, {"role": "user", "content": question}]
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
            raise ValueError(f"{self.url} does not answer in the chat protocol: {error}") from None
        except (ValueError, RecursionError):  # of JSON
            raise self._other_protocol() from None
        try:
            content = reply.choices[0].message.content
        except (AttributeError, LookupError, TypeError):
            raise self._other_protocol() from None
        if not isinstance(content, str | None):
            raise self._other_protocol()
        return content or ""

    def _other_protocol(self) -> ValueError:
        return ValueError(
            f"{self.url} does not answer in the chat protocol: is this the base URL, such as http://HOST/v1?"
        )
