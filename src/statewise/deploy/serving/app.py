"""The routes of the server, as an ASGI application. Its docstrings name the protocols that a route follows."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Collection, Sequence
from email.message import Message
from functools import partial
from typing import Any, TypeVar

import numpy as np
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from statewise.analysis.beliefs.vectors import Side, beliefs
from statewise.data_types import Examples
from statewise.deploy.serving import bodies
from statewise.deploy.serving.answers import (
    Answer,
    EventStream,
    LlamaAnswer,
    MistralAnswer,
    TextAnswer,
    called,
    following,
)
from statewise.deploy.serving.bodies import CompletionBody
from statewise.deploy.serving.engine import Engine
from statewise.deploy.serving.guard import Guard
from statewise.deploy.serving.refusals import Refusal
from statewise.deploy.serving.rows import Row, Ticket
from statewise.deploy.serving.served import Served
from statewise.model.snapshots import snapshot

LONG = 20_000
"""Characters or tokens beyond which texts are encoded in another thread, so that other requests need not wait."""
Returned = TypeVar("Returned")
KINDS = ("", "application/json", "application/x-www-form-urlencoded")
"""Content types of bodies, which are JSON. The last is curl's default."""

OF_CHATS = ("/v1/chat/completions", "/v1/responses", "/v1/messages")
"""Routes of other servers for chat models."""
COMPLETE = ": these models continue a text and do not chat: send the text as `prompt` to /v1/completions"


def create_app(engine: Engine, *, routes: Sequence[BaseRoute] = (), open_paths: Collection[str] = ()) -> Starlette:
    """The application. `routes` are further ones, such as pages at `/`; `open_paths` of them need no key, and all below
    those that end with `/` except the root. Routes find the engine as `request.app.state.engine`."""
    own = [
        Route("/v1/completions", completions, methods=["POST"]),
        Route("/v1/fim/completions", fim_completions, methods=["POST"]),
        Route("/infill", infill, methods=["POST"]),
        Route("/v1/embeddings", embeddings, methods=["POST"]),
        Route("/v1/models", models),
        Route("/v1/models/{name:path}", one_model),
        Route("/tokenize", tokenize, methods=["POST"]),
        Route("/detokenize", detokenize, methods=["POST"]),
        Route("/tokenizer_info", tokenizer_info),
        Route("/health", health),
        Route("/ready", ready),
        Route("/metrics", metrics),
    ]
    settings = engine.settings
    named = {route.path for route in (*own, *routes)}
    guard = Middleware(Guard, settings=settings, metrics=engine.metrics, routes=named, open_paths=open_paths)
    cors = Middleware(
        CORSMiddleware, allow_origins=list(settings.origins), allow_methods=["GET", "POST"], allow_headers=["*"]
    )
    app = Starlette(
        routes=[*own, *routes],
        middleware=[cors, guard] if settings.origins else [guard],
        exception_handlers={Refusal: _refused, HTTPException: _no_route, ClientDisconnect: _gone, Exception: _broken},
    )
    app.router.redirect_slashes = False
    app.state.engine = engine
    return app


# Completions


async def completions(request: Request) -> Response:
    """OpenAI's /v1/completions."""
    return await _complete(request, bodies.completion(await body_of(request)), TextAnswer)


async def fim_completions(request: Request) -> Response:
    """Mistral's /v1/fim/completions."""
    return await _complete(request, bodies.mistral(await body_of(request)), MistralAnswer)


async def infill(request: Request) -> Response:
    """llama.cpp's /infill."""
    return await _complete(request, bodies.llama(await body_of(request)), LlamaAnswer)


async def _complete(request: Request, body: CompletionBody, kind: type[Answer]) -> Response:
    engine: Engine = request.app.state.engine
    served = find_model(engine, body.model)
    limit = min(body.max_tokens, engine.settings.max_tokens)
    completions, most = len(body.prompts) * body.n, engine.settings.max_waiting
    if completions > most:
        cause = f"{len(body.prompts):,} prompts with n {body.n} are" if len(body.prompts) > 1 else f"n {body.n} is"
        raise Refusal(
            400,
            f"{cause} {completions:,} completions: at most {most:,} may wait",
            param="prompt" if len(body.prompts) > 1 else "n",
        )
    length = (sum(map(len, body.prompts)) + len(body.suffix or "")) * (body.n if body.decoding.echo else 1)
    rows, read = await _aside(length, partial(_rows, served, body, limit))
    ticket = Ticket(rows, stream=body.stream, client=request.client.host if request.client else "")
    answer = kind(served, rows, read, include_usage=body.include_usage)
    engine.submit(ticket, served.name)
    if body.stream:
        return EventStream(engine, ticket, answer)
    async with following(engine, ticket, request.receive):
        await ticket.event.wait()
    if ticket.error is not None:
        raise ticket.error
    return Response() if ticket.cancelled else JSONResponse(answer.whole())


def _rows(served: Served, body: CompletionBody, limit: int) -> tuple[list[Row], int]:
    """The rows of a request, and the number of tokens that they read."""
    prompts = [served.encode(prompt, "prompt") for prompt in body.prompts]
    suffix = None if body.suffix is None else served.encode(body.suffix, "suffix", later=True)
    rows = []
    for number, (original, prompt) in enumerate(zip(body.prompts, prompts)):
        numbers = range(number * body.n, (number + 1) * body.n)
        rows += served.rows(
            prompt, suffix, body.decoding, limit=limit, numbers=numbers, exact=body.ignore_eos, original=original
        )
    return rows, sum(map(len, prompts)) + (0 if suffix is None else len(suffix) * len(prompts))


# Embeddings


async def embeddings(request: Request) -> Response:
    """OpenAI's /v1/embeddings: the belief state after the last token of each input, as the model holds it, not
    normalised. With `"of": "suffix"`, that of the input as a suffix."""
    engine: Engine = request.app.state.engine
    fields = bodies.read(await body_of(request), bodies.EMBEDDING, bodies.IGNORED)
    served = find_model(engine, fields["model"])
    inputs = bodies.prompts(fields["input"], "input")
    rows = await _aside(sum(map(len, inputs)), lambda: [served.encode(value, "input") for value in inputs])
    for row in rows:
        if not len(row):
            raise Refusal(400, "input is empty: give at least one symbol", param="input")
        if len(row) > served.context:
            raise Refusal(
                400,
                f"an input has {len(row)} tokens, and the model's context is {served.context}",
                param="input",
                code="context_length_exceeded",
            )
    work = [partial(_vectors, served, some, fields["of"]) for some in _in_parts(rows, engine.settings.prompt_tokens)]
    try:
        parts = await called(engine, served.name, work, request)
    except ValueError as error:
        raise Refusal(400, str(error), param="of") from None
    if parts is None:
        return Response()
    vectors = np.concatenate(parts)
    data = [
        {"object": "embedding", "index": index, "embedding": _encoded_vector(vector, fields["encoding_format"])}
        for index, vector in enumerate(vectors)
    ]
    count = sum(map(len, rows))
    usage = {"prompt_tokens": count, "total_tokens": count}
    return JSONResponse({"object": "list", "data": data, "model": served.name, "usage": usage})


def _vectors(served: Served, rows: list[np.ndarray], of: Side) -> np.ndarray:
    """(n, D) float32."""
    return beliefs(snapshot(served.model.objective), Examples.of(rows, [0] * len(rows)), "last", of).vectors


def _encoded_vector(vector: np.ndarray, encoding: str) -> list[float] | str:
    if encoding == "float":
        return [float(value) for value in vector]
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()


def _in_parts(rows: Sequence[np.ndarray], most: int) -> list[list[np.ndarray]]:
    """Consecutive rows, as many as have `most` tokens together, or one."""
    parts: list[list[np.ndarray]] = []
    longest = 0
    for row in rows:
        longest = max(longest, len(row))
        if not parts or longest * (len(parts[-1]) + 1) > most:
            parts.append([])
            longest = len(row)
        parts[-1].append(row)
    return parts


# Models and tokens


async def models(request: Request) -> Response:
    """OpenAI's /v1/models."""
    return JSONResponse({"object": "list", "data": [_described(one) for one in request.app.state.engine.models]})


async def one_model(request: Request) -> Response:
    """OpenAI's /v1/models/{model}."""
    return JSONResponse(_described(find_model(request.app.state.engine, request.path_params["name"])))


def _described(served: Served) -> dict[str, Any]:
    return {
        "id": served.name,
        "object": "model",
        "created": served.created,
        "owned_by": "statewise",
        "max_model_len": served.context,
    }


async def tokenize(request: Request) -> Response:
    """vLLM's /tokenize: the tokens that a completion of the prompt would read. No special token is ever added."""
    fields = bodies.read(await body_of(request), bodies.TOKENIZE)
    served = find_model(request.app.state.engine, fields["model"])
    prompt = bodies.needed(fields["prompt"], "prompt")
    tokens = (await _aside(len(prompt), lambda: served.encode(prompt, "prompt"))).tolist()
    texts = {"token_strs": [served.token_text(token) for token in tokens]} if fields["return_token_strs"] else {}
    return JSONResponse({"count": len(tokens), "max_model_len": served.context, "tokens": tokens, **texts})


async def detokenize(request: Request) -> Response:
    """vLLM's /detokenize."""
    fields = bodies.read(await body_of(request), bodies.DETOKENIZE)
    served = find_model(request.app.state.engine, fields["model"])
    tokens = served.encode(bodies.needed(fields["tokens"], "tokens"), "tokens")
    return JSONResponse({"prompt": served.decode(tokens.tolist())})


async def tokenizer_info(request: Request) -> Response:
    """vLLM's /tokenizer_info, of the model `?model=NAME`."""
    served = find_model(request.app.state.engine, request.query_params.get("model"))
    end = served.end_text
    return JSONResponse(
        {
            "tokenizer_class": type(served.task).__name__,
            "vocab_size": len(served.task.vocab),
            "model_max_length": served.context,
            "bos_token": None,
            "eos_token": end,
            "pad_token": end,
            "chat_template": None,
        }
    )


# State


async def health(request: Request) -> Response:
    """200 while the models run, else 503."""
    engine: Engine = request.app.state.engine
    if engine.alive:
        return JSONResponse({"status": "ok"})
    return JSONResponse({"status": "the models have stopped"}, 503)


async def ready(request: Request) -> Response:
    """200 while requests are accepted, else 503."""
    engine: Engine = request.app.state.engine
    if engine.alive and not engine.draining:
        return JSONResponse({"status": "ready"})
    return JSONResponse({"status": "shutting down" if engine.draining else "the models have stopped"}, 503)


async def metrics(request: Request) -> Response:
    """Prometheus."""
    metrics = request.app.state.engine.metrics
    return Response(metrics.text(), media_type=None, headers={"content-type": metrics.content_type})


# Requests


def find_model(engine: Engine, name: str | None) -> Served:
    """The model of a request; without a name, the only one. Raises `Refusal`."""
    names = ", ".join(engine.lanes)
    if name is None and len(engine.lanes) > 1:
        raise Refusal(400, f"model is missing: the models are {names}", param="model")
    if name is not None and name not in engine.lanes:
        raise Refusal(
            404, f"there is no model {name[:100]!r}: the models are {names}", param="model", code="model_not_found"
        )
    return engine.models[0] if name is None else engine.lanes[name].served


async def body_of(request: Request) -> dict[str, Any]:
    """The JSON object of a request's body. Raises `Refusal` if it is too large, comes too slowly, or is malformed."""
    settings = request.app.state.engine.settings
    close = {"connection": "close"}
    if wrong := _unreadable(request.headers):
        raise Refusal(415, wrong, code="unsupported_media_type", headers=close)
    too_large = Refusal(
        413, f"the body may have at most {settings.max_body:,} bytes", code="body_too_large", headers=close
    )
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length[:20]) > settings.max_body:
        raise too_large
    content = bytearray()
    try:
        async with asyncio.timeout(settings.body_seconds):
            async for part in request.stream():
                content += part
                if len(content) > settings.max_body:
                    raise too_large
    except TimeoutError:
        raise Refusal(408, "the body did not arrive in time", code="body_timeout", headers=close) from None
    return bodies.parsed(bytes(content))


def _unreadable(headers: Headers) -> str:
    """Why a body with these headers cannot be read; empty if it can."""
    header = Message()
    header["content-type"] = headers.get("content-type", "")
    parameters = header.get_params([])
    kind = parameters[0][0].strip().lower() if parameters else ""
    if kind not in KINDS:
        return f"the body must be application/json, not {kind[:100]}"
    for name, value in parameters[1:]:
        value = str(value)  # charset*= gives several texts
        if name.strip().lower() == "charset" and value.strip().lower() not in ("utf-8", "utf8"):
            return f"the body must be UTF-8, not {value[:100]}: JSON has no other encoding"
    coding = headers.get("content-encoding", "").strip()
    if coding.lower() not in ("", "identity"):
        return f"the body must not be compressed ({coding[:100]}): omit the header Content-Encoding"
    return ""


async def _aside(length: int, work: Callable[[], Returned]) -> Returned:
    """Calls `work`, in another thread if it concerns many characters or tokens (`length`)."""
    return await asyncio.to_thread(work) if length > LONG else work()


async def _refused(request: Request, refusal: Refusal) -> Response:
    return JSONResponse(refusal.content, refusal.status, refusal.headers)


async def _no_route(request: Request, error: HTTPException) -> Response:
    path = request.url.path
    hint = COMPLETE if path in OF_CHATS else ""
    what = {404: f"there is no route {path[:100]}{hint}", 405: f"{request.method} is not allowed here"}
    refusal = Refusal(error.status_code, what.get(error.status_code, str(error.detail)))
    return JSONResponse(refusal.content, error.status_code, error.headers)


async def _gone(request: Request, error: ClientDisconnect) -> Response:
    return Response()  # the client has left


async def _broken(request: Request, error: Exception) -> Response:
    return JSONResponse(Refusal(500, "the server failed: see its log").content, 500)
