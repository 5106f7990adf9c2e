"""The page and its data on a server: `/` and `/playground`, `GET /v1/trace` about the models, `POST /v1/trace`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from statewise.decoding.sample import SampleConfig
from statewise.deploy.playground.observer import Observer, Trace, TraceRequest
from statewise.deploy.playground.page import page, policy
from statewise.deploy.serving.answers import called
from statewise.deploy.serving.app import body_of, find_model
from statewise.deploy.serving.bodies import INT64, TEMPERATURE, Field, needed, read
from statewise.deploy.serving.engine import Engine
from statewise.deploy.serving.refusals import Refusal
from statewise.deploy.serving.served import Served
from statewise.runtime.json_files import COUNT, TEXT, Leaf
from statewise.runtime.messages import in_words

OPEN_PATHS = ("/", "/playground")
"""The page itself holds no data, and asks for the key."""
MOST_TOP = 100
TRACE = {
    "model": Field(TEXT),
    "prompt": Field(Leaf("a text or a list of token ids", lambda value: isinstance(value, str) or _is_tokens(value))),
    "forced": Field([COUNT], []),
    "goal": Field(Leaf("a text or a list of token ids", lambda value: isinstance(value, str) or _is_tokens(value))),
    "max_tokens": Field(COUNT, 16),
    "top": Field(
        Leaf(f"a whole number from 1 to {MOST_TOP}", lambda value: COUNT.holds(value) and 1 <= value <= MOST_TOP), 8
    ),
    "temperature": Field(TEMPERATURE, 0.0),
    "seed": Field(INT64, 0),
}


def routes(models: Sequence[Served], recorded: dict[str, Any] | None = None) -> list[BaseRoute]:
    """The routes of the page and its data, for `create_app`, with `OPEN_PATHS`. `recorded`: as for `page`."""
    content, rules = page(recorded), policy()
    observers = {served.name: Observer(served) for served in models}
    descriptions: dict[str, dict[str, Any]] = {}

    async def shown(request: Request) -> Response:
        headers = {
            "content-security-policy": rules,
            "x-content-type-options": "nosniff",
            "cache-control": "no-cache",
            "referrer-policy": "no-referrer",
        }
        return Response(content, media_type="text/html", headers=headers)

    async def described(request: Request) -> Response:
        engine: Engine = request.app.state.engine
        left_out: dict[str, str] = {}
        for name, observer in observers.items():
            if name not in descriptions:
                try:
                    descriptions[name] = await asyncio.wrap_future(engine.call(name, observer.description))
                except (ValueError, OSError) as error:
                    left_out[name] = in_words(error)
        if not descriptions:
            raise _without_data(*next(iter(left_out.items())))
        models = [descriptions[name] for name in observers if name in descriptions]
        return JSONResponse({"models": models, "left_out": left_out})

    async def traced(request: Request) -> Response:
        engine: Engine = request.app.state.engine
        fields = read(await body_of(request), TRACE)
        served = find_model(engine, fields["model"])
        observer = observers[served.name]
        wanted = _trace_request(served, fields, engine.settings.max_tokens)
        steps = observer.trace(wanted)
        try:
            passes = await called(engine, served.name, _passes(steps), request)
        except (ValueError, OSError) as error:
            raise _without_data(served.name, in_words(error)) from None
        if passes is None:  # a pass may still run: `steps` is closed when that has ended
            return Response()
        steps.close()
        return Response() if passes[-1] is None else JSONResponse(passes[-1].as_json())

    return [
        Route("/", shown),
        Route("/playground", shown),
        Route("/v1/trace", described),
        Route("/v1/trace", traced, methods=["POST"]),
    ]


def _without_data(name: str, why: str) -> Refusal:
    """The refusal for a model whose held-out sequences, which are needed to show its states, cannot be read."""
    return Refusal(503, f"{name} cannot be shown: {why}", code="no_data")


def _is_tokens(value: Any) -> bool:
    return isinstance(value, list) and all(map(COUNT.holds, value))


def _trace_request(served: Served, fields: dict[str, Any], most: int) -> TraceRequest:
    """Raises `Refusal` for what the task does not understand."""
    prompt = served.encode(needed(fields["prompt"], "prompt"), "prompt")
    forced = served.encode(fields["forced"], "forced", later=True).tolist()
    goal = None if not fields["goal"] else served.encode(fields["goal"], "goal", later=True)
    temperature = float(fields["temperature"])
    if temperature:
        try:
            SampleConfig(temperature, seed=fields["seed"])
        except ValueError as error:
            raise Refusal(400, str(error), param="seed") from None
    return TraceRequest(
        prompt, forced, goal, min(fields["max_tokens"], most), fields["top"], temperature, fields["seed"]
    )


def _passes(steps: Generator[None, None, Trace]) -> Iterator[Callable[[], Trace | None]]:
    """Calls that continue a trace by one pass each; the last one returns it."""
    done: list[Trace] = []

    def advance() -> Trace | None:
        try:
            next(steps)
        except StopIteration as end:
            done.append(end.value)
        return done[0] if done else None

    while not done:
        yield advance
