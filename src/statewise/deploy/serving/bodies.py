"""Request bodies: which fields they may have, and what these may hold.

A field that is unknown is an error, so that a request never means something else than its sender thinks. Those that
only concern other servers are ignored (`IGNORED`); those that we do not offer may hold only what changes nothing
(`NEUTRAL`).
"""

from __future__ import annotations

import codecs
import json
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from statewise.decoding.sample import LEAST_TEMPERATURE, SampleConfig
from statewise.deploy.serving.refusals import Refusal
from statewise.deploy.serving.rows import DecodingOptions, Stops
from statewise.deploy.serving.served import TextOrTokens
from statewise.runtime.json_files import AMOUNT, ANYTHING, COUNT, FLAG, NUMBER, TEXT, Leaf, Shape, check, finite, loads
from statewise.runtime.messages import short, suggestion
from statewise.runtime.text_files import decoded

MOST_STOPS, LONGEST_STOP = 16, 1000
MOST_CHOICES = 128
MOST_INPUTS = 2048

IGNORED = {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"}
"""Fields of the OpenAI protocol that do not change an answer here."""
NEUTRAL: Mapping[str, Collection[Any]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": ({},),
    "best_of": (1,),
    "min_p": (0,),
    "min_tokens": (0,),
    "stream_options.include_obfuscation": (False,),
    "stream_options.continuous_usage_stats": (False,),
}
"""Fields that are not supported, with the values that change nothing."""


class Field(NamedTuple):
    """A field of a request's body."""

    shape: Shape
    default: Any = None
    """The value of a field that is missing or null."""


def _whole(least: int, most: int) -> Leaf:
    return Leaf(
        f"a whole number from {least:,} to {most:,}",
        lambda value: COUNT.holds(abs_of(value)) and least <= value <= most,
    )


def abs_of(value: Any) -> Any:
    """The absolute value of a number; anything else as it is."""
    return abs(value) if NUMBER.holds(value) else value


INT64 = Leaf(
    "a whole number of 64 bits",
    lambda value: isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**64,
)
TOP_P = Leaf("a number above 0, at most 1", lambda value: AMOUNT.holds(value) and 0 < value <= 1)
TEMPERATURE = Leaf(
    f"0, or a number from {LEAST_TEMPERATURE:g} to 100",
    lambda value: NUMBER.holds(value) and (value == 0 or LEAST_TEMPERATURE <= value <= 100),
)

SAMPLING: Mapping[str, Field] = {
    "temperature": Field(TEMPERATURE, 1.0),
    "top_p": Field(TOP_P, 1.0),
    "top_k": Field(_whole(-1, 2**31), 0),
    "seed": Field(INT64),
    "stop": Field(ANYTHING),
}
COMPLETION: Mapping[str, Field] = {
    **SAMPLING,
    "model": Field(TEXT),
    "prompt": Field(ANYTHING),
    "suffix": Field(ANYTHING),
    "max_tokens": Field(_whole(0, 2**31), 16),
    "n": Field(_whole(1, MOST_CHOICES), 1),
    "logprobs": Field(_whole(0, 5)),
    "echo": Field(FLAG, False),
    "stream": Field(FLAG, False),
    "stream_options": Field({...: ANYTHING}),
    "ignore_eos": Field(FLAG, False),
}
EMBEDDING: Mapping[str, Field] = {
    "model": Field(TEXT),
    "input": Field(ANYTHING),
    "encoding_format": Field(Leaf("float or base64", lambda value: value in ("float", "base64")), "float"),
    "of": Field(Leaf("prefix or suffix", lambda value: value in ("prefix", "suffix")), "prefix"),
}
STREAM_OPTIONS: Mapping[str, Field] = {"include_usage": Field(FLAG, False)}
MISTRAL: Mapping[str, Field] = {
    **SAMPLING,
    "model": Field(TEXT),
    "prompt": Field(TEXT, ""),
    "suffix": Field(TEXT),
    "max_tokens": Field(_whole(0, 2**31), 16),
    "random_seed": Field(INT64),
    "stream": Field(FLAG, False),
}
LLAMA: Mapping[str, Field] = {
    **SAMPLING,
    "model": Field(TEXT),
    "input_prefix": Field(TEXT, ""),
    "input_suffix": Field(TEXT, ""),
    "prompt": Field(TEXT, ""),
    "n_predict": Field(_whole(-1, 2**31), 128),
    "stream": Field(FLAG, False),
}
LLAMA_IGNORED = {
    "cache_prompt",
    "id_slot",
    "input_extra",
    "n_cache_reuse",
    "n_indent",
    "response_fields",
    "samplers",
    "t_max_predict_ms",
    "t_max_prompt_ms",
}
"""Fields of llama.cpp that clients send to tune its caches and time limits."""
TOKENIZE: Mapping[str, Field] = {
    "model": Field(TEXT),
    "prompt": Field(TEXT),
    "add_special_tokens": Field(FLAG),
    "return_token_strs": Field(FLAG),
}
DETOKENIZE: Mapping[str, Field] = {"model": Field(TEXT), "tokens": Field([COUNT])}


def parsed(content: bytes) -> dict[str, Any]:
    """The JSON object of a body. Raises `Refusal` if it is malformed."""
    try:
        body = loads(decoded(content.removeprefix(codecs.BOM_UTF8), "not JSON"))
        if not isinstance(body, dict):
            raise ValueError(f"the body must be a JSON object, not {short(body)}")
        if finite(body) != body:
            raise ValueError("not JSON: it has neither NaN nor Infinity, and no number too large to read")
        json.dumps(body, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise Refusal(400, "the body contains half of a surrogate pair, which is not a character") from None
    except RecursionError:
        raise Refusal(400, "not JSON: brackets are nested too deeply") from None
    except ValueError as error:
        raise Refusal(400, f"{error}") from None
    return body


def read(
    body: Mapping[str, Any], fields: Mapping[str, Field], ignored: Collection[str] = (), within: str = ""
) -> dict[str, Any]:
    """The values of all `fields`. Raises `Refusal` for wrong values, and for other fields unless they are `ignored` or
    change nothing. `within`: the field whose value `body` is, and a dot."""
    values = {}
    for name, field in fields.items():
        value = body.get(name)
        if value is None:
            values[name] = field.default
            continue
        try:
            values[name] = check(value, field.shape, "the request", within + name)
        except ValueError as error:
            raise Refusal(400, str(error).removeprefix("the request: "), param=within + name) from None
    for name, value in body.items():
        if name in fields or name in ignored or value is None:
            continue
        whole = within + name
        if whole in NEUTRAL:
            if not any(isinstance(value, bool) == isinstance(one, bool) and value == one for one in NEUTRAL[whole]):
                raise Refusal(400, f"{whole} is not supported", param=whole, code="unsupported_parameter")
            continue
        hint = suggestion(name, fields)
        raise Refusal(
            400,
            f"unknown field {short(whole)}: {hint}fields: {', '.join(sorted(fields))}",
            param=whole[:100],
            code="unknown_parameter",
        )
    return values


def needed(value: Any, name: str) -> Any:
    """The value. Raises `Refusal` if it is None."""
    if value is None:
        raise Refusal(400, f"{name} is missing", param=name, code="missing_required_parameter")
    return value


def prompts(value: Any, name: str) -> list[TextOrTokens]:
    """One or more texts or sequences of token ids, in any form of the protocol. Raises `Refusal`."""
    value = needed(value, name)
    if isinstance(value, str) or (isinstance(value, list) and value and all(map(COUNT.holds, value))):
        return [value]
    if not isinstance(value, list) or not value or not all(_is_text_or_tokens(one) for one in value):
        raise Refusal(
            400,
            f"{name} must be a text, a list of texts, a list of token ids, or a list of such lists, not {short(value)}",
            param=name,
        )
    if len(value) > MOST_INPUTS:
        raise Refusal(400, f"{name} has {len(value):,} entries: at most {MOST_INPUTS:,} are allowed", param=name)
    return value


def _is_text_or_tokens(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(map(COUNT.holds, value)))


def _stops(value: Any) -> Stops:
    stops = [value] if isinstance(value, str) else [] if value is None else value
    good = isinstance(stops, list) and all(isinstance(one, str) and 0 < len(one) <= LONGEST_STOP for one in stops)
    if not good or len(stops) > MOST_STOPS:
        raise Refusal(
            400,
            f"stop must be a text, or a list of at most {MOST_STOPS} texts, of 1 to {LONGEST_STOP:,} characters each",
            param="stop",
        )
    return Stops(stops)


@dataclass(frozen=True)
class CompletionBody:
    """A request for completions, checked."""

    model: str | None
    prompts: Sequence[TextOrTokens]
    suffix: TextOrTokens | None
    max_tokens: int
    decoding: DecodingOptions
    n: int = 1
    stream: bool = False
    include_usage: bool = False
    ignore_eos: bool = False


def _decoding_options(
    values: Mapping[str, Any], seed: int | None, *, alternatives: int | None = None, echo: bool = False
) -> DecodingOptions:
    temperature, top_k = values["temperature"], values["top_k"]
    sampling = SampleConfig(temperature, top_k if top_k > 0 else None, values["top_p"]) if temperature > 0 else None
    drawn = secrets.randbits(63) if seed is None else seed
    return DecodingOptions(sampling, drawn, _stops(values["stop"]), alternatives, echo)


def completion(body: Mapping[str, Any]) -> CompletionBody:
    """A body of /v1/completions."""
    values = read(body, COMPLETION, IGNORED)
    suffix = values["suffix"]
    if suffix is not None and not _is_text_or_tokens(suffix):
        raise Refusal(400, f"suffix must be a text or a list of token ids, not {short(suffix)}", param="suffix")
    if values["max_tokens"] == 0 and not values["echo"]:
        raise Refusal(400, "max_tokens must be at least 1, or echo true", param="max_tokens")
    if values["stream_options"] is not None and not values["stream"]:
        raise Refusal(400, "stream_options needs stream true: add that, or omit it", param="stream_options")
    streaming = read(values["stream_options"] or {}, STREAM_OPTIONS, within="stream_options.")
    return CompletionBody(
        values["model"],
        prompts("" if values["prompt"] is None and suffix else values["prompt"], "prompt"),
        suffix or None,
        values["max_tokens"],
        _decoding_options(values, values["seed"], alternatives=values["logprobs"], echo=values["echo"]),
        values["n"],
        values["stream"],
        streaming["include_usage"],
        values["ignore_eos"],
    )


def mistral(body: Mapping[str, Any]) -> CompletionBody:
    """A body of /v1/fim/completions, as Mistral's clients send it."""
    values = read(body, MISTRAL, IGNORED)
    if values["max_tokens"] == 0:
        raise Refusal(400, "max_tokens must be at least 1", param="max_tokens")
    seed = values["seed"] if values["random_seed"] is None else values["random_seed"]
    return CompletionBody(
        values["model"],
        [values["prompt"]],
        values["suffix"] or None,
        values["max_tokens"],
        _decoding_options(values, seed),
        stream=values["stream"],
    )


def llama(body: Mapping[str, Any]) -> CompletionBody:
    """A body of /infill, as clients of llama.cpp send it: what is before the gap is `input_prefix`, then `prompt`. With
    `n_predict` 0 nothing is generated, with -1 as much as fits."""
    values = read(body, LLAMA, IGNORED | LLAMA_IGNORED)
    most = values["n_predict"] if values["n_predict"] >= 0 else 2**31
    return CompletionBody(
        values["model"],
        [values["input_prefix"] + values["prompt"]],
        values["input_suffix"] or None,
        most,
        _decoding_options(values, values["seed"]),
        stream=values["stream"],
    )
