"""Whatever a body holds, the answer is one of the protocol's: 200, or 4xx with a message that names the field."""

import json

import pytest
from doubles import path_star_model
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from running_server import request, running
from small_worlds import model_of

from statewise.deploy.serving import bodies
from statewise.deploy.serving.guard import Guard
from statewise.deploy.serving.metrics import Metrics
from statewise.deploy.serving.refusals import Refusal
from statewise.deploy.serving.settings import ServerSettings

PROMPT = "0,1|1,2|2,3|0,4|4,5|5,6/0,3="

LARGE = [2**31, 2**53, 2**63, 2**64, 10**400, -(2**63), 1e308]
NUMBERS = st.one_of(st.integers(-5, 20), st.integers(), st.floats(), st.sampled_from(LARGE))
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, st.text(max_size=20), st.just(PROMPT)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=6), inner, max_size=3)),
    max_leaves=6,
)
TABLES = (bodies.COMPLETION, bodies.EMBEDDING, bodies.LLAMA, bodies.MISTRAL, bodies.DETOKENIZE, bodies.NEUTRAL)
NAMES = sorted({"user", *(name for table in TABLES for name in table)})
BODIES = st.dictionaries(st.one_of(st.sampled_from(NAMES), st.text(max_size=5)), VALUES, max_size=6)
PATHS = ["/v1/completions", "/v1/fim/completions", "/infill", "/v1/embeddings", "/tokenize", "/detokenize"]


@pytest.fixture(scope="module")
def server():
    with running({"small": path_star_model()}, max_tokens=4, max_body=20_000) as made:
        yield made


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(PATHS), BODIES)
@example("/v1/completions", {"prompt": [10**400]})
@example("/v1/completions", {"prompt": PROMPT, "stop": "\ud800"})
@example("/v1/completions", {"prompt": PROMPT, "seed": True})
@example("/v1/embeddings", {"input": [[]]})
@example("/detokenize", {"tokens": [2**52]})
def test_no_body_breaks_the_server(server, path, fields):
    prompt = "input" if path == "/v1/embeddings" else "prompt"
    for body in (fields, {prompt: PROMPT, **fields}):
        status, answer = server.post(path, json.dumps(body).encode())
        if status == 200:
            continue
        assert 400 <= status < 500, answer
        error = answer["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["type"] in ("invalid_request_error", "rate_limit_error")
        assert 0 < len(error["message"]) < 2000


def refused(path, body, **fields):
    return {"path": path, "body": body, **fields}


DEEP = b'{"prompt": ' + b"[" * 9000 + b"]" * 9000 + b"}"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "it is empty"),
        (b"{", "not JSON"),
        (b"[1]", "must be a JSON object"),
        (b'{"prompt": "\xff"}', "not UTF-8"),
        (b'{"prompt": NaN}', "not JSON: it has neither NaN"),
        (b'{"temperature": 1e999}', "and no number too large to read"),
        (b'{"prompt": "\\ud800"}', "surrogate"),
        (b'{"n": ' + b"9" * 5000 + b"}", "more digits than can be read"),
        (DEEP, "nested too deeply"),
        (b'{"prompt": "1", "tempurature": 1}', "did you mean temperature?"),
        (b'{"prompt": "1", "temperature": "hot"}', "temperature must be 0, or a number from 1e-100 to 100"),
        (b'{"prompt": "1", "temperature": true}', "temperature must be"),
        (b'{"prompt": "1", "top_p": 0}', "top_p must be a number above 0"),
        (b'{"prompt": "1", "n": 1.5}', "n must be a whole number"),
        (b'{"prompt": "1", "n": 100000}', "n must be a whole number from 1 to 128"),
        (b'{"prompt": "1", "max_tokens": 0}', "max_tokens must be at least 1"),
        (b'{"prompt": "1", "logprobs": 6}', "logprobs must be a whole number from 0 to 5"),
        (b'{"prompt": "1", "stop": [""]}', "stop must be"),
        (b'{"prompt": "1", "logit_bias": {"1": 5}}', "logit_bias is not supported"),
        (b'{"prompt": "1", "frequency_penalty": 0.5}', "frequency_penalty is not supported"),
        (b'{"prompt": "1", "best_of": 3}', "best_of is not supported"),
        (b'{"prompt": [[1], "2"], "suffix": 3}', "suffix must be"),
        (b'{"prompt": [1, -1]}', "prompt must be"),
        (b'{"prompt": [1, 99999]}', "no token has the id 99999"),
        (b'{"prompt": "x"}', "prompt: "),
        (b'{"prompt": "1", "temperature": 1e-300}', "temperature must be 0, or a number from 1e-100 to 100"),
        (json.dumps({"prompt": ["0,1"] * 2048, "n": 128}).encode(), "2,048 prompts with n 128 are 262,144 completions"),
        (b'{"prompt": "1", "max_tokens": 1, "max_tokens": 9}', 'the key "max_tokens" occurs twice'),
        (
            b'{"prompt": "1", "stream": true, "stream_options": {"include_usage": true, "include_usage": false}}',
            'the key "include_usage" occurs twice',
        ),
        ('{"prompt": "1"}'.encode("utf-16"), "not UTF-8"),
        (
            b'{"prompt": "1", "stream": true, "stream_options": {"include_usages": true}}',
            'unknown field "stream_options.include_usages": did you mean include_usage?',
        ),
        (
            b'{"prompt": "1", "stream": true, "stream_options": {"include_obfuscation": true}}',
            "stream_options.include_obfuscation is not supported",
        ),
        (
            b'{"prompt": "1", "stream": true, "stream_options": {"include_usage": 1}}',
            "stream_options.include_usage must be true or false",
        ),
        (b'{"prompt": "1", "stream": true, "stream_options": [1]}', "stream_options must be an object"),
        (b'{"prompt": "1", "stream_options": {"include_usage": true}}', "stream_options needs stream true"),
        (b'{"prompt": ""}', "the prompt is empty"),
        (b"{}", "prompt is missing"),
        (b'{"prompt": "0,1", "suffix": "2"}', "cannot condition on a suffix"),
    ],
)
def test_what_is_wrong_is_said(server, body, message):
    status, answer = server.post("/v1/completions", body)
    assert status == 400
    assert message in answer["error"]["message"]


def test_what_changes_nothing_is_accepted(server):
    neutral = {
        "logit_bias": {},
        "frequency_penalty": 0,
        "presence_penalty": 0.0,
        "best_of": 1,
        "seed": None,
        "user": "I",
        "stream_options": None,
    }
    status, answer = server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 2, **neutral})
    assert status == 200, answer


def test_options_of_streams(server):
    body = {"prompt": PROMPT, "max_tokens": 2, "stream": True}
    for options, usage in (({"include_usage": True, "include_obfuscation": False}, True), ({}, False), (None, False)):
        status, content = server.post("/v1/completions", {**body, "stream_options": options})
        assert status == 200
        assert (b'"usage":{' in content) == usage, content


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
def test_clients_of_chats_are_told_where_to_ask(server, path):
    status, answer = server.post(path, {"model": "small", "messages": [{"role": "user", "content": "1"}]})
    assert status == 404
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    assert f"there is no route {path}" in answer["error"]["message"]
    assert "send the text as `prompt` to /v1/completions" in answer["error"]["message"]
    assert "/v1/completions" not in server.post("/v1/nothing", {})[1]["error"]["message"]


JSON = "content-type: application/json"


@pytest.mark.parametrize(
    ("headers", "status", "said"),
    [
        (f"{JSON}; charset=utf-8\r\n", 200, ""),
        (f'{JSON};charset="UTF-8"; x=y\r\n', 200, ""),
        (f"{JSON}; charset=latin-1\r\n", 415, "must be UTF-8, not latin-1"),
        (f"{JSON}; charset=utf-8; charset=utf-16\r\n", 415, "must be UTF-8, not utf-16"),
        (f"{JSON}; charset*=utf-8''latin-1\r\n", 415, "must be UTF-8"),
        (f"{JSON};;;=;\r\n", 200, ""),
        ("content-encoding: identity\r\n", 200, ""),
        ("content-encoding: gzip\r\n", 415, "must not be compressed (gzip): omit the header Content-Encoding"),
        (f"{JSON}\r\n{JSON}\r\n", 400, "the header content-type occurs twice"),
        ("authorization: Bearer a\r\nAuthorization: Bearer b\r\n", 400, "the header authorization occurs twice"),
        ("origin: http://localhost\r\norigin: http://localhost\r\n", 400, "the header origin occurs twice"),
        ("host: localhost\r\n", 400, ""),
        ("x-many: one\r\nx-many: two\r\n", 200, ""),
    ],
)
def test_what_could_be_read_in_two_ways_is_refused(server, headers, status, said):
    found, answer = server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 1}, headers)
    assert found == status, answer
    if status != 200:
        assert set(answer["error"]) == {"message", "type", "param", "code"}
        assert said in answer["error"]["message"]


def test_a_body_with_two_lengths_is_refused():
    """A proxy may have read the other one, and what follows it as another request."""
    guard = Guard(None, ServerSettings(), Metrics(), [], [])
    lines = [(b"host", b"localhost"), (b"content-length", b"3"), (b"transfer-encoding", b"chunked")]
    for some in (lines[:2], [lines[0], lines[2]]):
        guard.check("POST", "/v1/completions", some)
    with pytest.raises(Refusal, match="contradict each other") as refused:
        guard.check("POST", "/v1/completions", lines)
    assert (refused.value.status, refused.value.headers) == (400, {"connection": "close"})


def test_each_line_of_a_header_counts(server):
    many = "".join(f"x-many: {'y' * 1000}\r\n" for _ in range(40))
    assert server.get("/v1/models", many)[0] == 431
    assert server.get("/v1/models", many[: len(many) // 2])[0] == 200


def test_tokens_that_cannot_be_chosen_are_not_among_the_likely_ones(tmp_path):
    (tmp_path / "two.txt").write_text("".join(f"{'a ' * n}b\n" for n in range(1, 30)))
    with running({"m": model_of({"name": "sequences", "path": str(tmp_path / "two.txt")})}) as server:
        body = {"prompt": "a b", "logprobs": 5, "ignore_eos": True, "max_tokens": 2, "temperature": 0}
        status, whole = server.post("/v1/completions", body)
        assert status == 200, whole
        found = whole["choices"][0]["logprobs"]["top_logprobs"]
        assert [sorted(likely) for likely in found] == [[" a", " b"], [" a", " b"]]
        status, echoed = server.post("/v1/completions", {**body, "echo": True})
        (choice,) = echoed["choices"]
        assert choice["text"].startswith("a b ")
        assert "".join(choice["logprobs"]["tokens"]) == choice["text"], "each with its separator"
        status, stream = server.post("/v1/completions", {**body, "stream": True})
        assert b"Infinity" not in stream


def test_prompts_that_do_not_fit_are_refused(server):
    context = server.models["small"].task.context
    for path, name in (("/v1/completions", "prompt"), ("/v1/embeddings", "input")):
        status, answer = server.post(path, {name: [1] * (context + 1)})
        assert status == 400
        assert answer["error"]["code"] == "context_length_exceeded"
    status, answer = server.post("/v1/completions", {"prompt": [1] * (context - 2), "max_tokens": 100})
    assert status == 200
    assert answer["usage"]["completion_tokens"] == 2
    assert answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (request("/v1/completions", b"{}", "content-type: text/xml\r\n"), 415),
        (b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99999999\r\n\r\n{", 413),
        (
            b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n5dc0\r\n"
            + b" " * 24000
            + b"\r\n0\r\n\r\n",
            413,
        ),
        (b"GET /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n", 405),
        (b"GET /nothing HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n", 404),
        (b"GET /v1/models/ HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n", 404),
        (b"HELLO\r\n\r\n", 400),
        (
            b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            b"transfer-encoding: chunked\r\n\r\nZZ\r\n",
            400,
        ),
        (b"GET / HTTP/1.1\r\nhost: localhost\r\ncontent-length: nine\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nhost: localhost\r\nx: " + b"y" * 40_000 + b"\r\n\r\n", 431),
    ],
)
def test_other_requests_get_their_status(server, content, status):
    found, answer = server.send(content)
    assert found == status
    assert answer["error"]["type"] == "invalid_request_error"


def test_all_limits_of_a_body_are_checked_before_the_model():
    for body in ({"prompt": "a"}, {"prompt": ["a", "b"]}, {"prompt": [1, 2]}, {"prompt": [[1], [2]]}):
        assert len(bodies.completion(body).prompts) == (2 if body["prompt"] in (["a", "b"], [[1], [2]]) else 1)
    with pytest.raises(Refusal, match="at most 2,048"):
        bodies.completion({"prompt": ["a"] * 3000})
    assert bodies.completion({"suffix": "end"}).prompts == [""]
